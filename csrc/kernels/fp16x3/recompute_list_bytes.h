#pragma once
// The memory of a recompute list (recompute_list.cuh), for plans, which know no CUDA.

#include <cstdint>

#include "core/problem.h"
#include "kernels/common/workspace.h"

namespace tiled {

// A region is 64 rows by at most 128 columns, and regions begin with the tiles of the kernel that
// flags. A region has a flag for each accumulator of four warps, a count and an index.
inline int64_t recompute_list_bytes(const Problem& p, int64_t tile_cols) {
  const int64_t regions =
      p.batch.count * ceil_div(p.m, 64) * ceil_div(p.n, tile_cols) * ceil_div(tile_cols, 128);
  return cuda::workspace_bytes([&](cuda::Workspace& workspace) {
    workspace.take<uint64_t>(regions * 4 * 32);
    workspace.take<int>(1 + regions);
    workspace.take<int>(regions);
  });
}

}  // namespace tiled
