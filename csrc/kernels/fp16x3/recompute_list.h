#pragma once
// The memory of a recompute list (recompute_list.cuh), for plans, which know no CUDA.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/problem.h"
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
};

}  // namespace tiled::cuda
