// pack: writes a complex operand as the real one of core/complex.h.
//
// Idea:  A block copies a square. Adjacent threads read numbers that are adjacent in memory, and
//        write numbers that are adjacent in a row; where those differ, by way of shared memory.
// Limit: DRAM bandwidth, and the time of one launch more.
// Next:  the pass that splits B for fp16x3 could read complex numbers itself.

#include "core/complex_element.h"
#include "kernels/common/launch.h"
#include "kernels/complex/passes.h"

namespace tiled::cuda {
namespace {

constexpr int kSide = 32, kThreads = 256;
constexpr int kAtOnce = kThreads / kSide;  // rows that a block reads or writes at once

// `by_rows`: a row of the source is read by adjacent threads, which then write it.
template <typename T, bool kByRows>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ Pack pack, int64_t first_block) {
  __shared__ Complex<T> square[kByRows ? 1 : kSide][kSide + 1];
  const int64_t across = ceil_div(pack.cols, kSide), down = ceil_div(pack.rows, kSide);
  const int64_t block = first_block + blockIdx.x;
  const int64_t matrix = block / across / down;
  const int64_t first_row = block / across % down * kSide, first_col = block % across * kSide;
  const int near = threadIdx.x % kSide, far = threadIdx.x / kSide;
  const auto* from =
      static_cast<const Complex<T>*>(pack.from.data) + batch_offset(pack.batch, pack.from, matrix);
  auto* to = static_cast<Complex<T>*>(pack.to) + matrix * pack.matrix_size();
  const auto read = [&](int64_t row, int64_t col) {
    const bool inside = row < pack.rows && col < pack.cols;
    return inside ? from[row * pack.from.row_stride + col * pack.from.col_stride] : Complex<T>{};
  };
  Complex<T> z[kSide / kAtOnce];
  UNROLL
  for (int i = 0; i < kSide / kAtOnce; ++i) {
    const int step = far + i * kAtOnce;
    z[i] = kByRows ? read(first_row + step, first_col + near)
                   : read(first_row + near, first_col + step);
  }
  if constexpr (!kByRows) {
    UNROLL
    for (int i = 0; i < kSide / kAtOnce; ++i) square[far + i * kAtOnce][near] = z[i];
    __syncthreads();
    UNROLL
    for (int i = 0; i < kSide / kAtOnce; ++i) z[i] = square[near][far + i * kAtOnce];
  }
  const int64_t col = first_col + near;
  UNROLL
  for (int i = 0; i < kSide / kAtOnce; ++i) {
    const int64_t row = first_row + far + i * kAtOnce;
    if (row >= pack.rows || col >= pack.cols) continue;
    UNROLL
    for (int copy = 0; copy < 2; ++copy) {
      if (copy == pack.copies) break;
      to[(row * pack.copies + copy) * pack.to_row_stride + col] =
          packed(z[i], copy, pack.negated[copy]);
    }
  }
}

template <typename T>
void launch(const Pack& pack, const Context& context) {
  const bool by_rows = pack.from.col_stride <= pack.from.row_stride;
  const auto kernel = by_rows ? pack_kernel<T, true> : pack_kernel<T, false>;
  const int64_t blocks = pack.batch.count * ceil_div(pack.rows, kSide) * ceil_div(pack.cols, kSide);
  for_grids(blocks, [&](int64_t first, unsigned count) {
    kernel<<<count, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(pack, first);
  });
}

}  // namespace

void launch_pack(const Pack& pack, const Context& context) {
  pack.dtype == DType::kFloat64 ? launch<double>(pack, context) : launch<float>(pack, context);
}

}  // namespace tiled::cuda
