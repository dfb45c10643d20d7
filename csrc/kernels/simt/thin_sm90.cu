// simt_thin: a warp for a chunk of 32 columns, in any layout and at any alignment.
//
// Idea:  A product with a short side is either small, and waits for latency, or reads its long
//        operand once. So a lane has one column and all rows of a tile, a warp has one chunk of K
//        and needs no other warp, and loads by cp.async, elements where rows are not aligned,
//        several stages ahead. The warps of a block share a column group's chunks; the first of
//        them adds their sums in order. Columns of several matrices share a block.
// Limit: the chain of 1024 dependent FMAs; cp.async of elements, for a long operand that is large.
// Next:  simt_cluster, where all of a chunk is in flight.
//
//   a warp      cp.async stage i + 3, commit
//               wait for stage i, multiply it                (no barrier but __syncwarp)
//   the block   __syncthreads: chunk sums are in shared memory; the first warp of a group adds them

#include <cstdint>
#include <iterator>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/simt/plan.h"
#include "kernels/simt/thin_mainloop.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_thin {

template <int kRows>
struct Smem {
  Stage<kRows> stages[kWarps][kStages];
  float chunk_sums[kWarps][kRows][kCols];
};

// The kernel sees C with the long operand's side as its columns.
struct Params : LongAndShort {
  Problem p;
  Copy copy;
  FastDivmod row_tiles, col_groups;
  int64_t groups;   // of columns, over all row tiles and matrices
  int chunk_warps;  // that share a group: 1, 2, 4 or 8
  int64_t first_block;
};

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    simt_thin_kernel(const __grid_constant__ Params params) {
  static_assert(sizeof(Smem<kRows>) <= kMaxSharedMemory);
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = reinterpret_cast<Smem<kRows>&>(smem_bytes);
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunk_warp = warp % params.chunk_warps;
  const int64_t group =
      (params.first_block + blockIdx.x) * (kWarps / params.chunk_warps) + warp / params.chunk_warps;
  const bool exists = group < params.groups;
  const int64_t col_group = params.row_tiles.divide(group);  // over all matrices
  const int64_t matrix = params.col_groups.divide(col_group);
  const int64_t row = (group - col_group * params.row_tiles.by) * kRows;
  const int64_t col = (col_group - matrix * params.col_groups.by) * kCols;
  const auto part = [&](const Matrix& operand, int64_t first, int64_t count, int most) {
    const int64_t offset = exists ? batch_offset(p.batch, operand, matrix) : 0;
    return Part{.at = static_cast<const float*>(operand.data) + offset + first * operand.row_stride,
                .row_stride = operand.row_stride,
                .k_stride = operand.col_stride,
                .count = static_cast<int>(min(count - first, int64_t{most}))};
  };
  const Part columns = part(params.long_operand, col, params.long_count, kCols);
  const Part rows = part(params.short_operand, row, params.short_count, kRows);
  const int64_t chunks = ceil_div(p.k, kChunk);
  float total[kRows];
  UNROLL
  for (float& each : total) each = kAddIdentity<float>;

  ptx::pdl_wait();
  NO_UNROLL
  for (int64_t first = 0; first < chunks; first += params.chunk_warps) {
    float acc[kRows] = {};
    const int64_t k = (first + chunk_warp) * kChunk;
    if (exists && k < p.k) {
      Part own_columns = columns, own_rows = rows;
      own_columns.at += k * columns.k_stride, own_rows.at += k * rows.k_stride;
      multiply_chunk(smem.stages[warp], params.copy, own_columns, own_rows,
                     static_cast<int>(min(p.k - k, int64_t{kChunk})), acc);
    }
    if (params.chunk_warps == 1) {
      UNROLL
      for (int i = 0; i < kRows; ++i) total[i] += acc[i];
      break;
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) smem.chunk_sums[warp][i][lane] = acc[i];
    __syncthreads();
    if (chunk_warp == 0) {
      const int count = static_cast<int>(min(chunks - first, int64_t{params.chunk_warps}));
      NO_UNROLL
      for (int j = 0; j < count; ++j) {
        UNROLL
        for (int i = 0; i < kRows; ++i) total[i] += smem.chunk_sums[warp + j][i][lane];
      }
    }
    __syncthreads();
  }
  if (!exists || chunk_warp != 0 || lane >= columns.count) return;
  UNROLL
  for (int i = 0; i < kRows; ++i) smem.chunk_sums[warp][i][lane] = total[i];
  const int64_t c_offset = batch_offset(p.batch, p.c, matrix);
  NO_UNROLL
  for (int i = 0; i < rows.count; ++i) {  // the epilogue is compiled once for all rows
    store<float>(p, c_offset, params.long_is_a ? col + lane : row + i,
                 params.long_is_a ? row + i : col + lane, smem.chunk_sums[warp][i][lane]);
  }
}

namespace {

template <int kRows>
void run(Params& params, const Context& context) {
  const auto kernel = simt_thin_kernel<kRows>;
  allow_shared_memory(kernel, sizeof(Smem<kRows>));
  for_grids(ceil_div(params.groups * params.chunk_warps, kWarps),
            [&](int64_t first, unsigned blocks) {
              params.first_block = first;
              launch_pdl(kernel, blocks, kThreads, sizeof(Smem<kRows>), context, params);
            });
}

}  // namespace
}  // namespace simt_thin

bool launch_simt_thin(const Problem& p, const Plan& plan, const Context& context) {
  using namespace simt_thin;
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  params.p = p;
  static_cast<LongAndShort&>(params) = long_and_short(p);
  const Matrix& columns = params.long_operand;
  params.copy = is_vector_aligned(p.batch, columns, columns.col_stride, columns.row_stride, 4)
                    ? Copy::kVectors
                : columns.col_stride <= columns.row_stride ? Copy::kKMajor
                                                           : Copy::kMnMajor;
  params.chunk_warps = simt_thin_chunk_warps(p.k);
  return with_tile<std::size(h200::kSimtThinTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr int kRows = h200::kSimtThinTiles[kIndex].rows;
    params.row_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.short_count, kRows)));
    params.col_groups = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.long_count, kCols)));
    params.groups = int64_t{params.row_tiles.by} * params.col_groups.by * p.batch.count;
    run<kRows>(params, context);
    return true;
  });
}

}  // namespace tiled::cuda
