#pragma once
// The tiles of C that threads compute.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/context.h"
#include "core/epilogue.h"
#include "core/problem.h"
#include "cpu/parallel.h"

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

// The first elements of the rows of A and of the columns of B that a tile is a product of.
template <typename T, int kTile>
std::pair<const T*, const T*> operands_of(const Problem& p, const TileCoord<kTile>& at) {
  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, at.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, at.batch);
  return {a + at.row * p.a.row_stride, b + at.col * p.b.col_stride};
}

// Calls compute_tile(p, index) for all tiles, on several threads.
template <int kTile, typename ComputeTile>
void for_tiles(const Problem& p, const Context& context, const ComputeTile& compute_tile) {
  const double operations = double{kTile * kTile} * static_cast<double>(p.k + 1);
  parallel_for(context, count_tiles(p, kTile, kTile), operations, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) compute_tile(p, tile);
  });
}

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
