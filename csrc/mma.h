#pragma once
// Of which size the mma rungs take their tiles: they ask for the plan, and the ladder's cost model
// how long it takes.

#include <algorithm>
#include <cstdint>
#include <span>

#include "plan.h"
#include "problem.h"

namespace tiled {

// A tile of C that one block computes, and how many blocks, one above the other, share what they
// read; on an H200 in clocks of a multiprocessor.
struct MmaTile {
  int m, n, cluster;
  double each;          // to begin and end one
  double rate, across;  // multiply-adds a clock; where B's neighbours lie across K
};

// The rungs' switches go by the same order. Rates are what was measured, of 2048 that tensor cores
// have.
inline constexpr MmaTile kMmaBulkTiles[] = {
    {128, 256, 2, 4300, 1660, 1680}, {128, 192, 1, 4700, 1690, 1760},
    {128, 160, 1, 3900, 1630, 1590}, {128, 128, 1, 2700, 1620, 1650},
    {64, 192, 1, 2700, 1680, 1700},  {64, 128, 1, 2200, 1550, 1620},
    {64, 96, 1, 1900, 1260, 840},    {64, 64, 1, 1100, 910, 1080},
};
inline constexpr MmaTile kMmaRingTiles[] = {
    {128, 128, 1, 6000, 420, 420},
    {64, 64, 1, 4000, 200, 200},
};

// Of `w` columns of the long operand and `x` rows of the short one, of which so many blocks share a
// multiprocessor at most.
struct MmaSkinnyTile {
  int w, x, blocks;
};
inline constexpr MmaSkinnyTile kMmaSkinnyTiles[] = {
    {32, 8, 6},
    {32, 16, 6},
    {64, 8, 3},
    {64, 16, 3},
};

// Until so many multiprocessors have both operands from memory, if they come once.
inline double mma_memory_clocks(const Problem& p, double processors, double bytes_a_clock) {
  const auto elements = static_cast<double>((p.m + p.n) * p.batch.count) * static_cast<double>(p.k);
  return 2 * elements / processors / bytes_a_clock;
}

// `slower` by so much are all tiles. They multiply no sooner than operands come: from memory, which
// few blocks cannot ask for all that it gives; and from L2.
inline Plan plan_mma(std::span<const MmaTile> tiles, const Problem& p, int64_t processors,
                     double slower) {
  constexpr double kMemory = 14.5, kFromL2 = 60,
                   kTaken = 51.5;  // bytes a clock, a multiprocessor's
  const auto all = static_cast<double>(processors), k = static_cast<double>(p.k);
  Plan best{};
  for (size_t i = 0; i < tiles.size(); ++i) {
    const MmaTile& tile = tiles[i];
    const int64_t count = count_tiles(p, tile.m * tile.cluster, tile.n) * tile.cluster;
    const auto rounds = static_cast<double>(ceil_div(count, processors));
    const double elements = static_cast<double>(tile.m) * tile.n;
    const double rate = p.b.col_stride < p.b.row_stride ? tile.across : tile.rate;
    const double lines = static_cast<double>(std::min<int64_t>(tile.m, p.m)) +
                         static_cast<double>(std::min<int64_t>(tile.n, p.n)) / tile.cluster;
    const double taking = std::min(all, static_cast<double>(count) * kTaken / kMemory);
    const double clocks =
        rounds * tile.each +
        std::max({rounds * slower * elements * k / rate, mma_memory_clocks(p, taking, kMemory),
                  static_cast<double>(count) * lines * 2 * k / all / kFromL2});
    if (i == 0 || clocks < best.clocks) best = {static_cast<int>(i), tile.m, tile.n, 1, 1, clocks};
  }
  return best;
}
inline Plan mma_bulk_plan(const Problem& p, int64_t processors) {
  return plan_mma(kMmaBulkTiles, p, processors, 1);
}
inline Plan mma_ring_plan(const Problem& p, int64_t processors) {
  constexpr double kGathers = 3;
  const bool gathers =
      !in_sixteens(p.batch, p.a, sizeof(uint16_t)) || !in_sixteens(p.batch, p.b, sizeof(uint16_t));
  return plan_mma(kMmaRingTiles, p, processors, gathers ? kGathers : 1);
}

// The narrowest tile that has all rows of x, or else 16. Measured for 1 to 16 rows, n and k 4096 to
// 14336: tiles of 64 columns are the faster ones (by 2 to 10 %) where all run at once, or where
// those of 32 would be half lines, which w is across K; or else those of 32 (5 to 10 %).
inline Plan mma_skinny_plan(const Problem& p, int64_t processors) {
  constexpr double kFromL2 = 23;   // bytes a clock and multiprocessor
  constexpr double kRound = 3000;  // to begin and end blocks
  const bool w_is_a = p.m > p.n;
  const Matrix w = w_is_a ? p.a : transposed(p.b);
  const int64_t w_count = std::max(p.m, p.n), x_count = std::min(p.m, p.n);
  const bool at_once = ceil_div(w_count, 64) * p.batch.count <= processors;
  const bool wide = at_once || w.row_stride < w.col_stride, few = x_count <= 8;
  const int index = (wide ? 2 : 0) + (few ? 0 : 1);
  const MmaSkinnyTile& tile = kMmaSkinnyTiles[index];
  const int64_t units = ceil_div(w_count, tile.w) * ceil_div(x_count, tile.x) * p.batch.count;
  const int64_t each = std::max<int64_t>(1, ceil_div(units, processors));
  const auto blocks = static_cast<int>(std::min<int64_t>(each, tile.blocks));
  const auto rounds = static_cast<double>(ceil_div(each, blocks)), k = static_cast<double>(p.k);
  const double memory = few ? 16.4 : 15.5, step = few ? 72 : 82;  // clocks for 16 of K, of a block
  const auto lines = static_cast<double>(tile.w + std::min<int64_t>(tile.x, x_count));
  const double from_l2 =
      static_cast<double>(units) * lines * 2 * k / static_cast<double>(processors) / kFromL2;
  const double clocks =
      rounds * kRound + std::max({mma_memory_clocks(p, static_cast<double>(processors), memory),
                                  from_l2, rounds * step * k / 16});
  return {index, w_is_a ? tile.w : tile.x, w_is_a ? tile.x : tile.w, 1, blocks, clocks};
}

}  // namespace tiled
