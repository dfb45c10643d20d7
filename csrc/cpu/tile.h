#pragma once
// Where a tile of C is that a thread computes.

#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace tiled::cpu {

// Tiles of kTile rows and columns are numbered row by row, matrix by matrix.
template <int kTile>
struct TilePlace {
  int64_t batch, row, col;  // which matrix, and the first row and column
  int rows, cols;           // that are in C

  TilePlace(const Problem& p, int64_t index) {
    const int64_t tiles_n = ceil_div(p.n, kTile);
    const int64_t tiles_m = ceil_div(p.m, kTile);
    batch = index / tiles_n / tiles_m;
    row = index / tiles_n % tiles_m * kTile;
    col = index % tiles_n * kTile;
    rows = static_cast<int>(std::min<int64_t>(p.m - row, kTile));
    cols = static_cast<int>(std::min<int64_t>(p.n - col, kTile));
  }
};

}  // namespace tiled::cpu
