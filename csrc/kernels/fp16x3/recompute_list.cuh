#pragma once
// The recompute list: the elements of C that are flagged, to be recomputed in the chunked order
// (core/order_chunked.h) once the kernel that flags them has ended.

#include <cstdint>

#include "core/context.h"
#include "core/problem.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda {

// An entry is a warp tile: the part of C that a warp accumulates by wgmma. Bit i of flags[lane]
// flags accumulator i of that lane (ptx/wgmma.cuh).
struct RecomputeList {
  struct WarpTile {
    int64_t batch, row, col;  // of the first element
    uint64_t flags[32];
  };
  static constexpr int kRows = 16, kCols = 128;  // of a warp tile

  int* count;       // of entries; set to 0 before the kernel that appends
  WarpTile* tiles;  // room for all of C

  // Takes the memory of a list with room for all of C in warp tiles of `cols` columns or more.
  static RecomputeList take(Workspace& workspace, const Problem& p, int cols = kCols) {
    const auto count = workspace.take<int>(1);
    return {count.data(), workspace.take<WarpTile>(capacity(p, cols)).data()};
  }
  static int64_t capacity(const Problem& p, int cols = kCols) {
    return count_tiles(p, kRows, cols);
  }
};

// Where an accumulator lies in its warp tile.
struct AccumulatorCoord {
  int row, col;
};
HOST_DEVICE inline AccumulatorCoord accumulator_coord(int lane, int accumulator) {
  return {lane / 4 + accumulator / 2 % 2 * 8, accumulator / 4 * 8 + lane % 4 * 2 + accumulator % 2};
}

// Appends a warp tile, unless no lane flags anything. All threads of the warp call it; row and col
// are those of lane 0's first accumulator.
inline __device__ void append_flagged(const RecomputeList& list, int64_t batch, int64_t row,
                                      int64_t col, uint64_t flags) {
  if (!__any_sync(~0u, flags != 0)) return;
  const int lane = threadIdx.x % 32;
  int index = lane == 0 ? atomicAdd(list.count, 1) : 0;
  index = __shfl_sync(~0u, index, 0);
  RecomputeList::WarpTile& tile = list.tiles[index];
  tile.flags[lane] = flags;
  if (lane == 0) tile.batch = batch, tile.row = row, tile.col = col;
}

// Recomputes and stores the listed elements, and counts them where the context asks.
void launch_recompute(const Problem& p, const RecomputeList& list, const Context& context);

}  // namespace tiled::cuda
