#pragma once
// recompute: sums a region of the recompute list, for regions with many flagged elements.

#include <algorithm>
#include <cstdint>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/simt/cp_async_kernel.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda::recompute {

// A team has a region: consumer threads, and after them producer threads.
struct Tile : RegisterTile<RecomputeList::kRows, RecomputeList::kCols, 8, 8, 8> {
  static constexpr int kK = 16;  // of a step
  static constexpr int kStages = 4, kProducers = 64, kTeam = kConsumers + kProducers;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};
using Stages = simt_cp_async::Smem<Tile>;

// A listed region, and which of its elements are flagged. Every warp looks for itself.
struct Region {
  TileIndex first;  // element
  const RecomputeList::Flags& flags;
  unsigned warps;  // that wrote flags
  int flagged;     // elements

  // All threads of a warp call it.
  __device__ Region(const RecomputeList& list, int index)
      : first(list.coord(list.listed[index])),
        flags(list.flags[list.listed[index]]),
        warps(list.flagged_warps[list.listed[index]]),
        flagged(0) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int warp = 0; warp < RecomputeList::kWarps; ++warp) {
      flagged += __reduce_add_sync(~0u, __popcll(of(warp, lane)));
    }
  }

  __device__ uint64_t of(int warp, int lane) const {
    return (warps >> warp & 1) != 0 ? flags[warp][lane] : 0;
  }
  __device__ bool is_flagged(int row, int col) const {
    const auto [lane, accumulator] = accumulator_index(row % RecomputeList::kWarpRows, col);
    return (of(row / RecomputeList::kWarpRows, lane) >> accumulator & 1) != 0;
  }
};

// Sums all of the region by the consumers, and stores its flagged elements. `thread` is the team's.
__device__ inline void recompute_all(const Problem& p, bool c_vectorized, const Region& region,
                                     int thread, Stages& stages, ptx::PipelineState& pipe,
                                     TileSums<Tile>& totals) {
  bool is_first = true;
  simt_cp_async::sum_chunks(p.k, thread, stages, pipe,
                            [&](const float(&acc)[Tile::kThreadM][Tile::kThreadN]) {
                              add_to_totals<Tile>(is_first, acc, &totals[0][thread]);
                              is_first = false;
                            });
  const auto& [batch, row, col] = region.first;
  const int64_t c_offset = batch_offset(p.batch, p.c, batch);
  if (region.flagged == Tile::kM * Tile::kN) {
    return store_quads<Tile>(p, c_vectorized, c_offset, row, col, thread, totals);
  }
  NO_UNROLL
  for (int quad = 0; quad < Tile::kQuads; ++quad) {
    const QuadCoord<Tile> at(thread, quad);
    const float4 x4 = totals[quad][thread].swapped;
    const float sums[] = {x4.y, x4.x, x4.w, x4.z};
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (!region.is_flagged(at.row, at.col + j)) continue;
      store_noinline(p, c_offset, row + at.row, col + at.col + j, sums[j]);
    }
  }
}

// The coordinates of a region's flagged elements, in any order.
struct FlaggedElements {
  static constexpr int kMost = 512;
  int count;
  uint16_t at[kMost];  // row * kCols + column

  // All consumers call it.
  __device__ void find(const Region& region, int thread, int barrier) {
    ptx::named_barrier_sync(barrier, Tile::kConsumers);  // the last region's have been read
    if (thread == 0) count = 0;
    ptx::named_barrier_sync(barrier, Tile::kConsumers);
    const int warp = thread / 32, lane = thread % 32;
    for (uint64_t left = region.of(warp, lane); left != 0; left &= left - 1) {
      const auto [row, col] = accumulator_coord(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      at[atomicAdd(&count, 1)] =
          static_cast<uint16_t>((warp * RecomputeList::kWarpRows + row) * Tile::kN + col);
    }
    ptx::named_barrier_sync(barrier, Tile::kConsumers);
  }
};

// Sums the flagged elements by the consumers, at most kEach by each thread, and stores them.
template <int kEach>
__device__ void recompute_each(const Problem& p, const Region& region, int thread,
                               const FlaggedElements& elements, Stages& stages,
                               ptx::PipelineState& pipe) {
  int row[kEach], col[kEach];
  float total[kEach];
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int index = min(i * Tile::kConsumers + thread, elements.count - 1);
    row[i] = elements.at[index] / Tile::kN, col[i] = elements.at[index] % Tile::kN;
    total[i] = kAddIdentity<float>;
  }
  for (int64_t k_left = p.k; k_left > 0; k_left -= kChunk) {
    float acc[kEach] = {};
    for (int in_chunk = static_cast<int>(min(k_left, int64_t{kChunk})); in_chunk > 0;
         in_chunk -= Tile::kK, pipe.advance()) {
      ptx::mbarrier_wait(&stages.full[pipe.stage], pipe.parity);
      const auto& stage = stages.stage[pipe.stage];
      const int steps = min(in_chunk, Tile::kK);
      _Pragma("unroll 8") for (int kk = 0; kk < steps; ++kk) {
        UNROLL
        for (int i = 0; i < kEach; ++i) {
          acc[i] = fused_multiply_add(stage.a[kk][row[i]], stage.b[kk][col[i]], acc[i]);
        }
      }
      __syncwarp();  // all lanes have read the stage
      if (thread % 32 == 0) ptx::mbarrier_arrive(&stages.empty[pipe.stage]);
    }
    UNROLL
    for (int i = 0; i < kEach; ++i) total[i] += acc[i];
  }
  const int64_t c_offset = batch_offset(p.batch, p.c, region.first.batch);
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (i * Tile::kConsumers + thread >= elements.count) continue;
    store_noinline(p, c_offset, region.first.row + row[i], region.first.col + col[i], total[i]);
  }
}

}  // namespace tiled::cuda::recompute
