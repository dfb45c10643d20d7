#pragma once
// The recompute list: the elements of C that are flagged, to be recomputed in the chunked order
// (core/order_chunked.h) once the kernel that flags them has ended.

#include <cstdint>

#include "core/context.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/recompute_list.h"

namespace tiled::cuda {

// The region of an element.
__device__ inline int64_t region_of(const RecomputeList& list, int64_t batch, int64_t row,
                                    int64_t col) {
  const int64_t tile = col / list.tile_cols;
  const int in_tile = static_cast<int>(col - tile * list.tile_cols) / RecomputeList::kCols;
  return (batch * list.regions_m + row / RecomputeList::kRows) * list.regions_n +
         tile * ceil_div(list.tile_cols, RecomputeList::kCols) + in_tile;
}
// The first element of a region.
__device__ inline TileIndex first_of_region(const RecomputeList& list, int64_t region) {
  const int64_t in_row = region % list.regions_n,
                in_tile = in_row % ceil_div(list.tile_cols, RecomputeList::kCols);
  return {.batch = region / list.regions_n / list.regions_m,
          .row = region / list.regions_n % list.regions_m * RecomputeList::kRows,
          .col = in_row / ceil_div(list.tile_cols, RecomputeList::kCols) * list.tile_cols +
                 in_tile * RecomputeList::kCols};
}

// The place of an accumulator in its warp's rows of a region.
struct AccumulatorCoord {
  int row, col;
};
HOST_DEVICE inline AccumulatorCoord accumulator_coord(int lane, int accumulator) {
  return {lane / 4 + accumulator / 2 % 2 * 8, accumulator / 4 * 8 + lane % 4 * 2 + accumulator % 2};
}

struct AccumulatorIndex {
  int lane, accumulator;
};
HOST_DEVICE inline AccumulatorIndex accumulator_index(int row, int col) {
  return {row % 8 * 4 + col % 8 / 2, col / 8 * 4 + row / 8 % 2 * 2 + col % 2};
}

// Says that a warp of a region has flags, and lists the region if it is the first one.
inline __device__ void add_flagged_warp(const RecomputeList& list, int64_t region, int warp) {
  if (atomicOr(&list.flagged_warps[region], 1u << warp) == 0) {
    list.listed[atomicAdd(list.count, 1)] = static_cast<int>(region);
  }
}

// Lists what a warp flags of its 16 rows of a region, unless no lane flags anything. All threads of
// the warp call it; row and col are of lane 0's first accumulator.
inline __device__ void append_flagged(const RecomputeList& list, int64_t batch, int64_t row,
                                      int64_t col, uint64_t flags) {
  if (!__any_sync(~0u, flags != 0)) return;
  const int lane = threadIdx.x % 32;
  const int warp =
      static_cast<int>(__shfl_sync(~0u, row, 0) % RecomputeList::kRows) / RecomputeList::kWarpRows;
  const int64_t region = __shfl_sync(~0u, region_of(list, batch, row, col), 0);
  list.flags[region][warp][lane] = flags;
  if (lane == 0) add_flagged_warp(list, region, warp);
}

// Lists a single element. Any thread may call it.
inline __device__ __noinline__ void append_element(const RecomputeList& list, int64_t batch,
                                                   int64_t row, int64_t col) {
  const int64_t region = region_of(list, batch, row, col);
  const TileIndex first = first_of_region(list, region);
  const auto in_region = static_cast<int>(row - first.row);
  const int warp = in_region / RecomputeList::kWarpRows;
  const auto [lane, accumulator] =
      accumulator_index(in_region % RecomputeList::kWarpRows, static_cast<int>(col - first.col));
  auto* flags = reinterpret_cast<unsigned long long*>(&list.flags[region][warp][lane]);
  atomicOr(flags, 1ull << accumulator);
  const unsigned known = __ldcg(&list.flagged_warps[region]);
  if ((known >> warp & 1) == 0) add_flagged_warp(list, region, warp);
}

// Recomputes and stores the listed elements, and counts them if the context asks.
void launch_recompute(const Problem& p, const RecomputeList& list, const Context& context);

}  // namespace tiled::cuda
