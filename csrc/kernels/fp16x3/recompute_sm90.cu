// Recomputes the elements on the recompute list in the chunked order (core/order_chunked.h).
//
// A block takes a warp tile of the list, 16 rows by 128 columns of C. Each of its four warpgroups
// sums a chunk of K (recompute_tile.cuh); then the chunks' sums are added in order, and the
// warpgroups take the next four chunks. Steps of A and B come to shared memory by cp.async, through
// any strides; rows without a flagged element are left out. Where a warp tile has few flagged
// elements, warps sum chunks of single elements instead (recompute_element.cuh). Only the GPU knows
// how long the list is, so the grid is fixed and strides through it.

#include <algorithm>
#include <bit>
#include <vector>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/fp16x3/recompute_tile.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace recompute {

// The flagged elements of a warp tile that has few, and the sums of chunks of one from each warp.
struct FewFlagged {
  static constexpr int kMost = 96;  // of 2048, found by measurement
  int count;
  AccumulatorCoord coords[kMost];
  float sums[Tile::kWarps][kChunksPerWarp];
};

// The rows in which a column has a flagged element, as bits.
__device__ inline unsigned flagged_rows(const RecomputeList::WarpTile& tile, int col) {
  unsigned rows = 0;
  UNROLL
  for (int row = 0; row < Tile::kM; ++row) {
    const uint64_t flags = tile.flags[row % 8 * 4 + col % 8 / 2];
    rows |= static_cast<unsigned>(flags >> (col / 8 * 4 + row / 8 * 2 + col % 2) & 1) << row;
  }
  return rows;
}

// The number of flagged elements. All threads of a warp call it.
__device__ inline int count_flagged(const RecomputeList::WarpTile& tile) {
  return __reduce_add_sync(~0u, __popcll(tile.flags[threadIdx.x % 32]));
}

// Recomputes a warp tile that has few flagged elements: a task of a warp is kChunksPerWarp chunks
// of one of them, and one thread adds the sums of the tasks in order.
__device__ inline void recompute_few(const Problem& p, const RecomputeList::WarpTile& tile,
                                     FewFlagged& few) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) few.count = 0;
  __syncthreads();
  if (warp == 0) {
    for (uint64_t left = tile.flags[lane]; left != 0; left &= left - 1) {
      const auto coord = accumulator_coord(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      few.coords[atomicAdd(&few.count, 1)] = coord;
    }
  }
  __syncthreads();
  const int chunks = static_cast<int>(ceil_div(p.k, kChunk)),
            tasks_each = ceil_div(chunks, kChunksPerWarp);
  const int tasks = few.count * tasks_each;
  float total;
  NO_UNROLL
  for (int first = 0; first < tasks; first += Tile::kWarps) {
    if (first + warp < tasks) {
      const auto [row, col] = few.coords[(first + warp) / tasks_each];
      const int64_t k = int64_t{(first + warp) % tasks_each} * kChunksPerWarp * kChunk;
      const float sum = sum_chunks(p, tile.batch, tile.row + row, tile.col + col, k);
      if (lane % kLanesPerChunk == 0) few.sums[warp][lane / kLanesPerChunk] = sum;
    }
    __syncthreads();
    NO_UNROLL
    for (int i = 0; threadIdx.x == 0 && i < Tile::kWarps && first + i < tasks; ++i) {
      const int index = (first + i) / tasks_each, task = (first + i) % tasks_each;
      if (task == 0) total = kAddIdentity<float>;
      for (int j = 0; j < kChunksPerWarp && task * kChunksPerWarp + j < chunks; ++j)
        total += few.sums[i][j];
      if (task < tasks_each - 1) continue;
      const auto [row, col] = few.coords[index];
      const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
      store_noinline(p, c_offset, tile.row + row, tile.col + col, total);
    }
    __syncthreads();
  }
}

template <bool kBKMajor>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    recompute_kernel(const __grid_constant__ Problem p, RecomputeList list, Vectorized vectorized) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  __shared__ unsigned block_rows;
  __shared__ FewFlagged few;
  ptx::pdl_wait();
  const int tiles = *list.count;
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, col = threadIdx.x % Tile::kWarpgroup;
  const int64_t chunks = ceil_div(p.k, kChunk);
  for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
    const RecomputeList::WarpTile& tile = list.tiles[index];
    if (count_flagged(tile) <= FewFlagged::kMost) {
      recompute_few(p, tile, few);
      continue;
    }
    const unsigned col_rows = flagged_rows(tile, col);
    if (threadIdx.x == 0) block_rows = 0;
    __syncthreads();
    atomicOr(&block_rows, col_rows);
    __syncthreads();

    float total[Tile::kRowsPerWarpgroup];  // of rows from warpgroup * kRowsPerWarpgroup on
    UNROLL
    for (float& each : total) each = kAddIdentity<float>;
    for (int64_t first = 0; first < chunks; first += Tile::kWarpgroups) {
      if (first + warpgroup < chunks) {
        sum_chunk<kBKMajor>(p, tile, first + warpgroup, block_rows, vectorized, smem);
      }
      __syncthreads();  // the sums are there
      for (int i = 0; i < Tile::kWarpgroups && first + i < chunks; ++i) {
        UNROLL
        for (int r = 0; r < Tile::kRowsPerWarpgroup; ++r) {
          total[r] += smem.sums[i][warpgroup * Tile::kRowsPerWarpgroup + r][col];
        }
      }
      __syncthreads();  // they have been read
    }

    // The totals go through shared memory so that the loop below, which holds the whole epilogue,
    // is not unrolled.
    UNROLL
    for (int r = 0; r < Tile::kRowsPerWarpgroup; ++r) smem.sums[warpgroup][r][col] = total[r];
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    NO_UNROLL
    for (int r = 0; r < Tile::kRowsPerWarpgroup; ++r) {
      const int row = warpgroup * Tile::kRowsPerWarpgroup + r;
      if ((col_rows >> row & 1) == 0) continue;
      store<float>(p, c_offset, tile.row + row, tile.col + col, smem.sums[warpgroup][r][col]);
    }
  }
}

namespace {

// Counts the flagged elements of a list, when the stream has come to here.
int64_t count_listed(const RecomputeList& list, cudaStream_t stream) {
  int tiles = 0;
  check(cudaMemcpyAsync(&tiles, list.count, sizeof tiles, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  std::vector<RecomputeList::WarpTile> read(tiles);
  check(cudaMemcpyAsync(read.data(), list.tiles, read.size() * sizeof read[0],
                        cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  int64_t count = 0;
  for (const RecomputeList::WarpTile& tile : read) {
    for (const uint64_t flags : tile.flags) count += std::popcount(flags);
  }
  return count;
}

}  // namespace
}  // namespace recompute

void launch_recompute(const Problem& p, const RecomputeList& list, const Context& context) {
  using namespace recompute;
  const bool b_k_major = p.b.row_stride < p.b.col_stride;
  const Vectorized vectorized{
      is_vector_aligned<float4>(p.batch, p.a, p.a.col_stride, p.a.row_stride),
      b_k_major ? is_vector_aligned<float4>(p.batch, p.b, p.b.row_stride, p.b.col_stride)
                : is_vector_aligned<float4>(p.batch, p.b, p.b.col_stride, p.b.row_stride)};
  const auto kernel = b_k_major ? recompute_kernel<true> : recompute_kernel<false>;
  allow_shared_memory(kernel, sizeof(Smem));
  const auto blocks = std::min<int64_t>(RecomputeList::capacity(p), context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem), context, p, list,
             vectorized);
  if (context.recomputed != nullptr) {
    *context.recomputed += count_listed(list, static_cast<cudaStream_t>(context.stream));
  }
}

}  // namespace tiled::cuda
