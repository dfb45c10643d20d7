#pragma once
// Which tile of C a block computes that goes from one to the next.

#include <cstdint>

#include "core/problem.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"

namespace tiled::cuda {

struct TileCoord {
  int64_t batch;
  int row, col;  // of the tile's first element
};

// Tiles in scheduler of so many rows, down a column of the band first: blocks that run together
// share what they read of A and of B in the cache. C is in memory: a matrix has less than 2^31
// tiles.
struct TileScheduler {
  FastDivmod matrix, band, last;  // by tiles of a matrix, of a band, of the last band's columns

  template <class Tile>
  static TileScheduler of(const Problem& p) {
    const auto tiles_m = static_cast<uint32_t>(ceil_div(p.m, Tile::kM));
    const auto tiles_n = static_cast<uint32_t>(ceil_div(p.n, Tile::kN));
    const uint32_t left = tiles_m % Tile::kRasterRows;
    return {FastDivmod::of(tiles_m * tiles_n), FastDivmod::of(Tile::kRasterRows * tiles_n),
            FastDivmod::of(left == 0 ? Tile::kRasterRows : left)};
  }
};

template <class Tile>
__device__ TileCoord locate(const TileScheduler& scheduler, int64_t index) {
  const int64_t batch = scheduler.matrix.divide(index);
  const auto in_matrix = static_cast<uint32_t>(index - batch * scheduler.matrix.by);
  const uint32_t band = scheduler.band.divide(in_matrix),
                 in_band = in_matrix - band * scheduler.band.by;
  const bool is_last = (band + 1) * scheduler.band.by > scheduler.matrix.by;
  const uint32_t height = is_last ? scheduler.last.by : Tile::kRasterRows;
  const uint32_t col = is_last ? scheduler.last.divide(in_band) : in_band / Tile::kRasterRows;
  const uint32_t row = band * Tile::kRasterRows + in_band - col * height;
  return {batch, static_cast<int>(row * Tile::kM), static_cast<int>(col * Tile::kN)};
}

}  // namespace tiled::cuda
