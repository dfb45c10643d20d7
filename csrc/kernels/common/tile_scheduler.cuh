#pragma once
// The order in which persistent blocks take the tiles of C.

#include <cstdint>

#include "core/problem.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"

namespace tiled::cuda {

struct TileCoord {
  int64_t batch;
  int row, col;  // of the tile's first element
};

// Rasterization for L2: tiles are numbered in groups of Tile::kRasterRows rows of tiles, and within
// a group down its columns. Blocks that run together then share rows of A and columns of B in L2.
// A matrix has less than 2^31 tiles, since C is in memory.
struct TileScheduler {
  FastDivmod matrix, group;   // divide by the number of tiles of a matrix, and of a group
  FastDivmod last_group_col;  // divides by the tiles in a column of the last group

  template <class Tile>
  static TileScheduler of(const Problem& p) {
    const auto tiles_m = static_cast<uint32_t>(ceil_div(p.m, Tile::kM));
    const auto tiles_n = static_cast<uint32_t>(ceil_div(p.n, Tile::kN));
    const uint32_t left = tiles_m % Tile::kRasterRows;
    return {FastDivmod::of(tiles_m * tiles_n), FastDivmod::of(Tile::kRasterRows * tiles_n),
            FastDivmod::of(left == 0 ? Tile::kRasterRows : left)};
  }
};

// The tile of that index in the scheduler's order, over the whole batch.
template <class Tile>
__device__ TileCoord locate(const TileScheduler& scheduler, int64_t index) {
  const int64_t batch = scheduler.matrix.divide(index);
  const auto in_matrix = static_cast<uint32_t>(index - batch * scheduler.matrix.by);
  const uint32_t group = scheduler.group.divide(in_matrix);
  const uint32_t in_group = in_matrix - group * scheduler.group.by;
  const bool is_last = (group + 1) * scheduler.group.by > scheduler.matrix.by;
  const uint32_t height = is_last ? scheduler.last_group_col.by : Tile::kRasterRows;
  const uint32_t col =
      is_last ? scheduler.last_group_col.divide(in_group) : in_group / Tile::kRasterRows;
  const uint32_t row = group * Tile::kRasterRows + in_group - col * height;
  return {batch, static_cast<int>(row * Tile::kM), static_cast<int>(col * Tile::kN)};
}

}  // namespace tiled::cuda
