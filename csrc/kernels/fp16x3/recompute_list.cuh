#pragma once
// The recompute list: the elements of C that are flagged, to be recomputed in the chunked order
// (core/order_chunked.h) once the kernel that flags them has ended.

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda {

// A region is the part of C that four warps accumulate by wgmma, 64 rows by at most 128 columns.
// The list names the regions with flagged elements, in the order in which warps come upon them.
struct RecomputeList {
  static constexpr int kWarpRows = 16, kWarps = 4, kRows = kWarpRows * kWarps, kCols = 128;
  // Bit i of [warp][lane] flags accumulator i of that lane (ptx/wgmma.cuh).
  using Flags = uint64_t[kWarps][32];

  int tile_cols = kCols;                 // of the kernel that flags; regions begin with its tiles
  int64_t regions_m = 0, regions_n = 0;  // of a matrix
  Flags* flags = nullptr;                // of all regions, listed or not
  int* count = nullptr;                  // of listed regions
  unsigned* flagged_warps = nullptr;     // for each region, as bits: the warps that wrote flags
  int* listed = nullptr;                 // indices of regions

  static RecomputeList take(Workspace& workspace, const Problem& p, int tile_cols) {
    RecomputeList list{.tile_cols = tile_cols,
                       .regions_m = ceil_div(p.m, kRows),
                       .regions_n = ceil_div(p.n, tile_cols) * ceil_div(tile_cols, kCols)};
    const int64_t regions = list.regions(p);
    list.flags = workspace.take<Flags>(regions).data();
    list.count = workspace.take<int>(1 + regions).data();
    list.flagged_warps = reinterpret_cast<unsigned*>(list.count + 1);
    list.listed = workspace.take<int>(regions).data();
    return list;
  }
  int64_t regions(const Problem& p) const { return p.batch.count * regions_m * regions_n; }
  // To be set to 0 before a kernel that calls append_flagged(): count and flagged_warps.
  std::span<int> zeroed(const Problem& p) const {
    return {count, static_cast<size_t>(1 + regions(p))};
  }
  // To be set to 0 before a kernel that calls append_element(): flags, too, which precede them.
  std::span<int> zeroed_with_flags(const Problem& p) const {
    int* first = reinterpret_cast<int*>(flags);
    return {first, static_cast<size_t>(count - first) + zeroed(p).size()};
  }

  __device__ int64_t region(int64_t batch, int64_t row, int64_t col) const {
    const int64_t tile = col / tile_cols;
    const int in_tile = static_cast<int>(col - tile * tile_cols) / kCols;
    return (batch * regions_m + row / kRows) * regions_n + tile * ceil_div(tile_cols, kCols) +
           in_tile;
  }
  __device__ TileIndex coord(int64_t region) const {
    const int64_t in_row = region % regions_n, in_tile = in_row % ceil_div(tile_cols, kCols);
    return {.batch = region / regions_n / regions_m,
            .row = region / regions_n % regions_m * kRows,
            .col = in_row / ceil_div(tile_cols, kCols) * tile_cols + in_tile * kCols};
  }
};

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
  const int64_t region = __shfl_sync(~0u, list.region(batch, row, col), 0);
  list.flags[region][warp][lane] = flags;
  if (lane == 0) add_flagged_warp(list, region, warp);
}

// Lists a single element. Any thread may call it.
inline __device__ __noinline__ void append_element(const RecomputeList& list, int64_t batch,
                                                   int64_t row, int64_t col) {
  const int64_t region = list.region(batch, row, col);
  const TileIndex first = list.coord(region);
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
