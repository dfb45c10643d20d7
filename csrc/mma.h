#pragma once
// Of which size the mma rungs take their tiles: they ask for the plan, and the ladder's cost model
// how long it takes.

#include <algorithm>
#include <cstdint>
#include <span>

#include "problem.h"

namespace tiled {

// A tile of C that one block computes, on an H200 in clocks of a multiprocessor.
struct MmaTile {
  int m, n;
  double each;  // to begin and end one
  double rate;  // multiply-adds a clock
};

// The rungs' switches go by the same order.
inline constexpr MmaTile kMmaBulkTiles[] = {
    {128, 256, 3000, 1700},
    {128, 128, 2000, 1500},
    {128, 64, 1500, 1000},
};
inline constexpr MmaTile kMmaRingTiles[] = {
    {128, 128, 6000, 420},
    {64, 64, 4000, 200},
};

struct MmaPlan {
  int tile;  // its index
  int m, n;
  double clocks;  // of the busiest multiprocessor
};

// Whether an operand of halves can be copied by eight neighbours at once, whichever way they lie.
inline bool by_eights(const Batch& batch, const Matrix& matrix) {
  const auto [near, far] = std::minmax(matrix.row_stride, matrix.col_stride);
  return in_vectors(batch, matrix, near, far, 8, sizeof(uint16_t));
}

// `slower` by so much are all tiles.
inline MmaPlan plan_mma(std::span<const MmaTile> tiles, const Problem& p, int64_t processors,
                        double slower) {
  MmaPlan best{};
  for (size_t i = 0; i < tiles.size(); ++i) {
    const MmaTile& tile = tiles[i];
    const auto rounds = static_cast<double>(ceil_div(count_tiles(p, tile.m, tile.n), processors));
    const double elements = static_cast<double>(tile.m) * tile.n;
    const double clocks =
        rounds * (tile.each + slower * elements * static_cast<double>(p.k) / tile.rate);
    if (i == 0 || clocks < best.clocks) best = {static_cast<int>(i), tile.m, tile.n, clocks};
  }
  return best;
}
inline MmaPlan mma_bulk_plan(const Problem& p, int64_t processors) {
  return plan_mma(kMmaBulkTiles, p, processors, 1);
}
inline MmaPlan mma_ring_plan(const Problem& p, int64_t processors) {
  constexpr double kGathers = 3;
  const bool gathers = !by_eights(p.batch, p.a) || !by_eights(p.batch, p.b);
  return plan_mma(kMmaRingTiles, p, processors, gathers ? kGathers : 1);
}

}  // namespace tiled
