#pragma once
// The tiles of C that threads compute.

#include <algorithm>
#include <cstdint>

#include "core/epilogue.h"
#include "core/problem.h"

namespace tiled::cpu {

// Tiles of kTile rows and columns are numbered row by row, matrix by matrix.
template <int kTile>
struct TileCoord {
  int64_t batch, row, col;  // which matrix, and the first row and column
  int rows, cols;           // inside C

  TileCoord(const Problem& p, int64_t index) {
    const int64_t tiles_n = ceil_div(p.n, kTile);
    const int64_t tiles_m = ceil_div(p.m, kTile);
    batch = index / tiles_n / tiles_m;
    row = index / tiles_n % tiles_m * kTile;
    col = index % tiles_n * kTile;
    rows = static_cast<int>(std::min<int64_t>(p.m - row, kTile));
    cols = static_cast<int>(std::min<int64_t>(p.n - col, kTile));
  }
};

// Applies the epilogue to a tile's sums, and stores those inside C.
template <typename T, int kTile>
void store_tile(const Problem& p, const TileCoord<kTile>& at,
                const accumulator_t<T> (&sums)[kTile][kTile]) {
  const int64_t c_offset = batch_offset(p.batch, p.c, at.batch);
  for (int i = 0; i < at.rows; ++i) {
    for (int j = 0; j < at.cols; ++j) store<T>(p, c_offset, at.row + i, at.col + j, sums[i][j]);
  }
}

}  // namespace tiled::cpu
