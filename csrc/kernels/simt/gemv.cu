// simt_gemv: matrix x vector with short K, and up to eight vectors: a thread for each row.
//
// Idea:  With short K there is little to sum, and all is read and written once. So a thread has a
//        row of the long operand and its sums with all rows of the short one, which the block keeps
//        in shared memory. Adjacent threads load adjacent elements of an MN-major long operand,
//        straight to registers. K-major rows come through shared memory: adjacent threads copy
//        adjacent elements, whether a row ends between them or not.
// Limit: DRAM.
// Next:  simt_skinny and simt_cluster, for a longer K.
//
//   the block   copies the short operand, and K-major rows -> smem
//               __syncthreads
//   a thread    loads its row from global or shared memory; multiplies; stores its sums

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <iterator>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/simt/plan.h"
#include "ptx/cp_async.cuh"

namespace tiled::cuda {
namespace simt_gemv {

constexpr int kThreads = kSimtGemvRows;
constexpr int kAtOnce = 16;  // loads of a thread in flight

struct Params : LongAndShort {
  Problem p;
  bool stores_plain;  // C is the sums unchanged
  FastDivmod row_blocks, col_tiles, by_k;
  int64_t first_block;
};

struct Block {
  int64_t matrix, row, col;  // first row of the long operand, and of the short one

  template <int kCols>
  __device__ static Block at(const Params& params) {
    const int64_t index = params.first_block + blockIdx.x;
    const int64_t tile = params.row_blocks.divide(index), matrix = params.col_tiles.divide(tile);
    return {matrix, (index - tile * params.row_blocks.by) * kThreads,
            (tile - matrix * params.col_tiles.by) * kCols};
  }
};

// Copies `rows` rows of K elements to [row * pitch + k * k_pitch] by all threads of the block.
__device__ void copy_rows(const Params& params, const Matrix& matrix, const float* from, int rows,
                          int pitch, int k_pitch, float* to) {
  const auto k = static_cast<uint32_t>(params.p.k);
  NO_UNROLL
  for (uint32_t i = threadIdx.x; i < rows * k; i += kThreads) {
    const uint32_t row = params.by_k.divide(i), at_k = i - row * k;
    ptx::cp_async_4_zfill(&to[row * pitch + at_k * k_pitch],
                          from + row * matrix.row_stride + at_k * matrix.col_stride, 4);
  }
}

template <int kCols, bool kKMajor>
__global__ void __launch_bounds__(kThreads)
    simt_gemv_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) float smem[];
  const Problem& p = params.p;
  const Block block = Block::at<kCols>(params);
  const int k = static_cast<int>(p.k), thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(min(params.short_count - block.col, int64_t{kCols}));
  const int rows = static_cast<int>(min(params.long_count - block.row, int64_t{kThreads}));
  const BatchOffsets offsets(p, block.matrix);
  const Matrix &x_matrix = params.long_operand, &y_matrix = params.short_operand;
  const float* x_from = static_cast<const float*>(x_matrix.data) +
                        (params.long_is_a ? offsets.a : offsets.b) +
                        block.row * x_matrix.row_stride;
  const float* y_from = static_cast<const float*>(y_matrix.data) +
                        (params.long_is_a ? offsets.b : offsets.a) +
                        block.col * y_matrix.row_stride;
  float* y = smem;              // (k, kCols)
  float* x = smem + k * kCols;  // (kThreads, pitch)
  const int pitch = k | 1;      // fewer bank conflicts
  copy_rows(params, y_matrix, y_from, cols, 1, kCols, y);
  if (kKMajor) copy_rows(params, x_matrix, x_from, rows, pitch, 1, x);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  if (thread >= rows) return;
  float sums[kCols] = {};
  const float* own = kKMajor ? x + thread * pitch : x_from + thread * x_matrix.row_stride;
  const int64_t stride = kKMajor ? 1 : x_matrix.col_stride;
  const auto multiply = [&](float element, const float* of_y) {
    UNROLL
    for (int col = 0; col < kCols; ++col) {
      sums[col] = params.long_is_a ? fused_multiply_add(element, of_y[col], sums[col])
                                   : fused_multiply_add(of_y[col], element, sums[col]);
    }
  };
  for (int left = k; left > 0; left -= kAtOnce, y += kAtOnce * kCols) {
    float elements[kAtOnce] = {};
    UNROLL
    for (int i = 0; i < kAtOnce; ++i, own += stride) {
      if (i < left) elements[i] = kKMajor ? *own : __ldg(own);
    }
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < left) multiply(elements[i], y + i * kCols);
    }
  }
  const int64_t row = block.row + thread;
  const int64_t row_stride = params.long_is_a ? p.c.row_stride : p.c.col_stride;
  const int64_t col_stride = params.long_is_a ? p.c.col_stride : p.c.row_stride;
  float* c = static_cast<float*>(p.c.data) + offsets.c + row * row_stride + block.col * col_stride;
  UNROLL
  for (int col = 0; col < kCols; ++col) {
    if (col >= cols) break;
    const float sum = kAddIdentity<float> + sums[col];
    if (params.stores_plain) {
      c[col * col_stride] = sum;
    } else {
      store_noinline(p, offsets.c, params.long_is_a ? row : block.col + col,
                     params.long_is_a ? block.col + col : row, sum);
    }
  }
}

namespace {

template <int kCols>
void run(Params& params, const Context& context) {
  const bool k_major = simt_gemv_is_k_major(params);
  const auto kernel = k_major ? simt_gemv_kernel<kCols, true> : simt_gemv_kernel<kCols, false>;
  allow_shared_memory(kernel, static_cast<size_t>(simt_gemv_smem(kSimtGemvMostK, kCols, true)));
  const auto bytes = static_cast<size_t>(simt_gemv_smem(params.p.k, kCols, k_major));
  params.row_blocks = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.long_count, kThreads)));
  params.col_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.short_count, kCols)));
  const int64_t blocks = int64_t{params.row_blocks.by} * params.col_tiles.by * params.p.batch.count;
  for_grids(blocks, [&](int64_t first, unsigned grid) {
    params.first_block = first;
    kernel<<<grid, kThreads, bytes, static_cast<cudaStream_t>(context.stream)>>>(params);
  });
}

}  // namespace
}  // namespace simt_gemv

bool launch_simt_gemv(const Problem& p, const Plan& plan, const Context& context) {
  using namespace simt_gemv;
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  params.p = p;
  static_cast<LongAndShort&>(params) = long_and_short(p);
  params.stores_plain = p.epilogue.is_identity();
  params.by_k = FastDivmod::of(static_cast<uint32_t>(p.k));
  return with_tile<std::size(h200::kSimtGemvTiles)>(plan.tile, [&]<int kIndex>() {
    run<h200::kSimtGemvTiles[kIndex].cols>(params, context);
    return true;
  });
}

}  // namespace tiled::cuda
