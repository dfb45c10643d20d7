#pragma once
// Which tile of C a block computes that goes from one to the next.

#include <cstdint>

#include "launch.h"
#include "problem.h"

namespace tiled::cuda {

struct Position {
  int64_t batch;
  int row, col;  // of the tile's first element
};

// Tiles in bands of kBand rows, down a column of the band first: blocks that run together share
// what they read of A and of B in the cache.
template <class Tile>
__device__ Position locate(const Problem& p, int64_t index) {
  const int tiles_m = static_cast<int>(ceil_div(p.m, Tile::kM));
  const int tiles_n = static_cast<int>(ceil_div(p.n, Tile::kN));
  const auto in_matrix = static_cast<int>(index % (int64_t{tiles_m} * tiles_n));
  const int first = in_matrix / (Tile::kBand * tiles_n) * Tile::kBand;
  const int height = min(tiles_m - first, Tile::kBand);
  const int in_band = in_matrix % (Tile::kBand * tiles_n);
  return {index / (int64_t{tiles_m} * tiles_n), (first + in_band % height) * Tile::kM,
          in_band / height * Tile::kN};
}

}  // namespace tiled::cuda
