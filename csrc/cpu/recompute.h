#pragma once
// Flagged elements, with NaN sums: they are recomputed in the chunked order
// (core/order_chunked.h).

#include <atomic>
#include <cmath>
#include <cstdint>

#include "core/context.h"
#include "core/problem.h"
#include "cpu/tile.h"

namespace tiled::cpu {

// A row of A times a column of B, in the chunked order.
float sum_in_chunks(int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride);

// Recomputes a tile's flagged elements, unless the problem keeps them, applies the epilogue, and
// stores the tile. Returns the number of recomputed elements.
template <int kTile>
int64_t store_tile_recomputed(const Problem& p, const TileCoord<kTile>& at,
                              float (&sums)[kTile][kTile]) {
  const auto [a, b] = operands_of<float>(p, at);
  int64_t recomputed = 0;
  for (int i = 0; i < at.rows && !p.keeps_flagged; ++i) {
    for (int j = 0; j < at.cols; ++j) {
      if (!std::isnan(sums[i][j])) continue;
      ++recomputed;
      sums[i][j] = sum_in_chunks(p.k, a + i * p.a.row_stride, p.a.col_stride,
                                 b + j * p.b.col_stride, p.b.row_stride);
    }
  }
  store_tile<float>(p, at, sums);
  return recomputed;
}

// Computes all tiles, each by compute_tile(p, index), which returns the number of
// recomputed elements, and counts these if the context asks.
template <int kTile, typename ComputeTile>
void compute_tiles(const Problem& p, const Context& context, const ComputeTile& compute_tile) {
  std::atomic<int64_t> recomputed = 0;
  for_tiles<kTile>(p, context,
                   [&](const Problem& p, int64_t tile) { recomputed += compute_tile(p, tile); });
  if (context.recomputed != nullptr) *context.recomputed += recomputed;
}

}  // namespace tiled::cpu
