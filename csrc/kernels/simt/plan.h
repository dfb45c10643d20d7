#pragma once
// Of which size the simt rungs take their tiles, and into how many ranges of chunks they cut K. The
// rungs ask for the plan, and the ladder's cost model how long it takes.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "core/plan.h"
#include "core/problem.h"
#include "core/order_chunked.h"

namespace tiled {

// A tile of C that one block computes, or one team of simt_small's; on an H200, in clocks of a
// multiprocessor.
struct SimtTile {
  int m, n;
  int blocks;    // or teams, that share a multiprocessor
  double alone;  // for a step of K of a block that has one to itself
  double rate;   // multiply-adds a clock of all blocks that share one
};

// The rungs' switches go by the same order.
inline constexpr SimtTile kSimtCpAsyncTiles[] = {
    {128, 64, 2, 104, 97}, {64, 64, 2, 61, 86},  {64, 32, 3, 36, 77},
    {32, 32, 4, 29, 45},   {16, 128, 2, 39, 69}, {32, 128, 2, 61, 84},
};
inline constexpr SimtTile kSimtTmaTiles[] = {
    {256, 128, 1, 304, 108},
    {128, 64, 2, 92, 103},
    {64, 64, 3, 47, 96},
    {64, 32, 3, 25, 86},
};
inline constexpr SimtTile kSimtSmallTiles[] = {
    {16, 16, 56, 80, 45},
    {32, 32, 20, 80, 55},
    {64, 64, 8, 120, 70},
};
// Of rows of the short operand, and columns of the long one.
inline constexpr int kSimtSkinnyCols = 128;
inline constexpr SimtTile kSimtSkinnyTiles[] = {
    {2, kSimtSkinnyCols, 2, 18, 32},
    {4, kSimtSkinnyCols, 2, 18, 64},
    {8, kSimtSkinnyCols, 2, 24, 73},
    {16, kSimtSkinnyCols, 2, 58, 54},
};

// Whether fours that are neighbours along C's sides can be copied at once.
inline bool a_by_fours(const Problem& p) {
  return is_vector_aligned(p.batch, p.a, p.a.row_stride, p.a.col_stride, 4);
}
inline bool b_by_fours(const Problem& p) {
  return is_vector_aligned(p.batch, p.b, p.b.col_stride, p.b.row_stride, 4);
}

// Clocks in which memory gives the operands and takes C. Where operands are copied by single
// elements, that comes before memory's limit.
inline double memory_clocks(const Problem& p, bool copies, int64_t sms) {
  constexpr double kFast = 16.5, kByOnes = 9.5;  // bytes a clock and multiprocessor
  const auto clocks = [&](const Matrix& matrix, int64_t outer, int64_t inner, double rate) {
    int64_t elements = outer * inner;
    for (int d = 0; d < p.batch.rank; ++d) {
      if (matrix.batch_stride[d] != 0) elements *= p.batch.size[d];
    }
    return static_cast<double>(elements) * sizeof(float) / rate / static_cast<double>(sms);
  };
  return clocks(p.a, p.m, p.k, copies && !a_by_fours(p) ? kByOnes : kFast) +
         clocks(p.b, p.n, p.k, copies && !b_by_fours(p) ? kByOnes : kFast) +
         clocks(p.c, p.m, p.n, kFast);
}

// How a rung with a table of tiles goes about them.
struct SimtWay {
  bool copies;   // by threads, which takes clocks of those that multiply
  bool goes_on;  // blocks, to other tiles; or else others come when they end
  double turn;   // clocks from one round of tiles to the next
};

// How many blocks the busiest multiprocessor has in the last round, of `left` tiles. The first
// round's are spread evenly; in the next few, others come in pairs, and those that go on are such
// pairs, too, when they are more than half as many as multiprocessors.
inline int64_t last_round(const SimtWay& way, int64_t rounds, int64_t left, int blocks,
                          int64_t sms) {
  constexpr int64_t kFew = 4;
  const int64_t even = ceil_div(left, sms);
  if (rounds == 0 || left == 0) return even;
  if (!way.goes_on) return rounds < kFew ? blocks : even;
  return left <= sms / 2 ? 1 : std::max(even, std::min<int64_t>(blocks, 2));
}

// The fastest tile, ranges of K, and blocks that share a multiprocessor. These end together, so
// fewer may be better, where they leave less of the last round empty.
inline Plan plan_simt(std::span<const SimtTile> tiles, const SimtWay& way, const Problem& p,
                      int64_t sms) {
  constexpr double kAdd = 3000, kSums = 0.2;  // one kernel more; an element's sum of a chunk
  constexpr double kTurnInRanges = 3000;      // sums are stored sooner than C
  constexpr double kByOnes = 1.0 / 32, kAtEdges = 1.0 / 12;  // a copy; where it asks for the edges
  constexpr int64_t kMaxRanges = 65535;                      // in a grid
  constexpr int64_t kMaxProduct = (int64_t{1} << 32) - 1;    // of ranges and chunks, in 32 bits
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const bool a_by_ones = !a_by_fours(p), b_by_ones = !b_by_fours(p);
  Plan best{};
  for (size_t i = 0; i < tiles.size(); ++i) {
    const SimtTile& tile = tiles[i];
    const int64_t count = std::max<int64_t>(count_tiles(p, tile.m, tile.n), 1);
    const double elements = static_cast<double>(tile.m) * tile.n;
    const double each_copy = p.m % tile.m == 0 && p.n % tile.n == 0 ? kByOnes : kAtEdges;
    const double by_ones =
        way.copies ? ((a_by_ones ? tile.m : 0) + (b_by_ones ? tile.n : 0)) * each_copy : 0;
    const auto step = [&](int64_t blocks) {  // of K, of so many that share a multiprocessor
      if (blocks == 0) return 0.0;
      const auto count = static_cast<double>(blocks);
      return std::max(tile.alone, count * elements / tile.rate) + count * by_ones;
    };
    int64_t next = 0;
    for (int64_t ranges = 1; ranges != 0; ranges = next) {
      const int64_t longest = ceil_div(chunks, ranges);
      next = next_k_splits(chunks, ranges);
      if (next > kMaxRanges || next * chunks > kMaxProduct) next = 0;
      const auto k = static_cast<double>(std::min(longest * kChunk, p.k));
      const double sums = ranges == 1
                              ? 0
                              : kAdd + kSums * elements * static_cast<double>(count * chunks) /
                                           static_cast<double>(sms);
      for (int blocks = 1; blocks <= tile.blocks; ++blocks) {
        const int64_t round = sms * blocks, all = count * ranges;
        const int64_t full = all / round, left = all % round;
        const double steps = static_cast<double>(full) * step(blocks) +
                             step(last_round(way, full, left, blocks, sms));
        const auto turns = static_cast<double>(full + (left > 0) - 1);
        const double clocks = turns * (ranges == 1 ? way.turn : kTurnInRanges) + steps * k + sums;
        if (best.ranges == 0 || clocks < best.clocks) {
          best = {static_cast<int>(i), tile.m, tile.n, ranges, blocks, clocks};
        }
      }
    }
  }
  return best;
}

inline Plan simt_cp_async_plan(const Problem& p, int64_t sms) {
  constexpr SimtWay kWay{.copies = true, .goes_on = false, .turn = 12000};
  Plan plan = plan_simt(kSimtCpAsyncTiles, kWay, p, sms);
  plan.clocks = std::max(plan.clocks, memory_clocks(p, true, sms));
  return plan;
}
inline Plan simt_tma_plan(const Problem& p, int64_t sms) {
  constexpr SimtWay kWay{.copies = false, .goes_on = true, .turn = 4000};
  return plan_simt(kSimtTmaTiles, kWay, p, sms);
}

// The fastest tile for teams, which need not begin and end together. A multiprocessor is busy for
// as long as all its tiles take at its best rate, or, where it has few, as one takes after another.
inline Plan simt_small_plan(const Problem& p, int64_t sms) {
  constexpr double kEach = 100;   // to begin and end a tile, while others multiply
  constexpr double kWait = 2000;  // likewise, while nobody does
  Plan best{};
  for (size_t i = 0; i < std::size(kSimtSmallTiles); ++i) {
    const SimtTile& tile = kSimtSmallTiles[i];
    const int64_t tiles = ceil_div(count_tiles(p, tile.m, tile.n), sms);
    const auto rounds = static_cast<double>(ceil_div(tiles, tile.blocks));
    const auto k = static_cast<double>(p.k);
    const double each = kEach + tile.m * tile.n * k / tile.rate;
    const double one = kWait + tile.alone * k;
    const double clocks = std::max(static_cast<double>(tiles) * each, rounds * one);
    if (i == 0 || clocks < best.clocks) {
      best = {static_cast<int>(i), tile.m, tile.n, 1, tile.blocks, clocks};
    }
  }
  best.clocks = std::max(best.clocks, memory_clocks(p, true, sms));
  return best;
}

// The least tile that holds all rows, or the largest; each chunk by itself.
inline Plan simt_skinny_plan(const Problem& p, int64_t sms) {
  constexpr double kAdd = 4000;   // chunks' sums
  constexpr double kTurn = 2300;  // from one unit to the next
  const int64_t rows = std::min(p.m, p.n), cols = std::max(p.m, p.n);
  size_t i = 0;
  while (i + 1 < std::size(kSimtSkinnyTiles) && kSimtSkinnyTiles[i].m < rows) ++i;
  const SimtTile& tile = kSimtSkinnyTiles[i];
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const int64_t units = ceil_div(rows, tile.m) * ceil_div(cols, tile.n) * chunks * p.batch.count;
  const auto each = static_cast<double>(ceil_div(units, sms));
  const double step = each <= 1 ? tile.alone : each * tile.m * tile.n / tile.rate;
  const auto k = static_cast<double>(std::min<int64_t>(p.k, kChunk));
  const double turns = std::max(each - 1, 0.0) * kTurn / tile.blocks;
  const double clocks = std::max(step * k + turns, memory_clocks(p, false, sms));
  const bool w_is_a = p.m > p.n;
  return {.tile = static_cast<int>(i),
          .m = w_is_a ? tile.n : tile.m,
          .n = w_is_a ? tile.m : tile.n,
          .ranges = chunks,
          .blocks = tile.blocks,
          .clocks = clocks + (chunks > 1 ? kAdd : 0)};
}

}  // namespace tiled
