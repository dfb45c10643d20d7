// pack: writes a complex operand as the real one of core/complex.h.
//
// Idea:  A block copies a square. Adjacent threads read numbers that are adjacent in memory, and
//        write numbers that are adjacent in a row; if those differ, by way of shared memory.
// Limit: DRAM bandwidth, and the time of one launch more.

#include <algorithm>

#include "core/complex_element.h"
#include "kernels/common/launch.h"
#include "kernels/complex/passes.h"

namespace tiled::cuda {
namespace {

constexpr int kSide = 32, kThreads = 256;
constexpr int kAtOnce = kThreads / kSide;  // rows that a block reads or writes at once

struct Square {
  int64_t matrix, row, col;  // the first row and column

  __device__ Square(const Pack& pack, int64_t index) {
    const int64_t across = ceil_div(pack.cols, kSide), down = ceil_div(pack.rows, kSide);
    matrix = index / across / down;
    row = index / across % down * kSide;
    col = index % across * kSide;
  }
};

// kByRows: a row of the source is read by adjacent threads, which then write it.
template <typename T, bool kByRows>
__device__ void copy_square(const Pack& pack, const Square& at,
                            Complex<T> (&square)[kByRows ? 1 : kSide][kSide + 1]) {
  constexpr int kEach = kSide / kAtOnce;  // numbers of a thread
  const int near = threadIdx.x % kSide, far = threadIdx.x / kSide;
  const auto* from = static_cast<const Complex<T>*>(pack.from.data) +
                     batch_offset(pack.batch, pack.from, at.matrix);
  auto* to = static_cast<Complex<T>*>(pack.to) + at.matrix * pack.matrix_size();
  const auto read = [&](int64_t row, int64_t col) {
    const bool inside = row < pack.rows && col < pack.cols;
    return inside ? from[row * pack.from.row_stride + col * pack.from.col_stride] : Complex<T>{};
  };
  Complex<T> z[kEach];
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int step = far + i * kAtOnce;
    z[i] = kByRows ? read(at.row + step, at.col + near) : read(at.row + near, at.col + step);
  }
  if constexpr (!kByRows) {
    UNROLL
    for (int i = 0; i < kEach; ++i) square[far + i * kAtOnce][near] = z[i];
    __syncthreads();
    UNROLL
    for (int i = 0; i < kEach; ++i) z[i] = square[near][far + i * kAtOnce];
    __syncthreads();  // the next square takes its place
  }
  const int64_t col = at.col + near;
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int64_t row = at.row + far + i * kAtOnce;
    if (row >= pack.rows || col >= pack.cols) continue;
    UNROLL
    for (int copy = 0; copy < 2; ++copy) {
      if (copy == pack.copies) break;
      to[(row * pack.copies + copy) * pack.to_row_stride + col] =
          packed(z[i], copy, pack.negated[copy]);
    }
  }
}

template <typename T, bool kByRows>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ Pack pack, int64_t squares, const int* only_if) {
  __shared__ Complex<T> square[kByRows ? 1 : kSide][kSide + 1];
  if (only_if != nullptr && *only_if == 0) return;
  for (int64_t index = blockIdx.x; index < squares; index += gridDim.x) {
    copy_square<T, kByRows>(pack, Square(pack, index), square);
  }
}

template <typename T>
void launch(const Pack& pack, const Context& context, const int* only_if) {
  const int64_t squares =
      pack.batch.count * ceil_div(pack.rows, kSide) * ceil_div(pack.cols, kSide);
  if (squares == 0) return;
  const bool by_rows = pack.from.col_stride <= pack.from.row_stride;
  const auto kernel = by_rows ? pack_kernel<T, true> : pack_kernel<T, false>;
  // Blocks that find nothing to do cost as much as others to launch, so there are few.
  const int64_t most = only_if != nullptr ? 8 * context.sms : int64_t{1} << 30;
  const auto blocks = static_cast<unsigned>(std::min(squares, most));
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(pack, squares,
                                                                             only_if);
  check(cudaGetLastError());
}

}  // namespace

void launch_pack(const Pack& pack, const Context& context, const int* only_if) {
  pack.dtype == DType::kFloat64 ? launch<double>(pack, context, only_if)
                                : launch<float>(pack, context, only_if);
}

}  // namespace tiled::cuda
