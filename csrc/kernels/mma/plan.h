#pragma once
// Of which size the mma rungs take their tiles: they ask for the plan, and the ladder's cost model
// how long it takes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "core/order_mma.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled {

// A tile of C that one block computes, and how many blocks, one above the other, share what they
// read; on an H200 in clocks of a multiprocessor.
struct MmaTile {
  int m, n, cluster;
  double each;  // to begin and end one
  // Multiply-adds a clock; where neighbours of the operand that it takes longer to bring lie across
  // K: B's, or the one's that mma_unaligned reads as it lies.
  double rate, across;
};

// The rungs' switches go by the same order. Rates are what was measured, of 2048 that tensor cores
// have. The first are for all lines, tf32's, too; then come narrow ones, by which a small C is more
// blocks, which ask for less each; then pairs of smaller tiles for lines that begin within L2's, of
// which two blocks ask for less; requests for whole lines L2 merges by itself. Where a rate is 0
// there is no such tile: across K there are no boxes of less than 32 neighbours.
inline constexpr int kMmaTilesOfTf32 = 8, kMmaTilesForAllLines = 10;
inline constexpr MmaTile kMmaTmaTiles[] = {
    {128, 256, 2, 3950, 1740, 1785}, {128, 192, 1, 3160, 1680, 1760},
    {128, 160, 1, 2580, 1650, 1595}, {128, 128, 1, 2170, 1640, 1695},
    {64, 192, 1, 1970, 1500, 1480},  {64, 128, 1, 2160, 1650, 1710},
    {64, 96, 1, 1470, 1265, 1240},   {64, 64, 1, 850, 1185, 1350},
    {64, 32, 1, 700, 1240, 960},     {64, 16, 1, 680, 720, 0},
    {128, 192, 2, 3700, 1730, 1920}, {128, 128, 2, 2400, 1380, 1660},
    {64, 128, 2, 1730, 1340, 1680},  {64, 96, 2, 1320, 990, 1330},
    {64, 64, 2, 890, 910, 1230},
};
// Columns of a tile that mma_tma brings by a narrower box where B's neighbours lie across K, and
// boxes are of 64. Of 160 half a box comes in vain, which costs less.
constexpr int mma_narrow_box(int n) { return n == 96 || n == 32 ? 32 : 0; }

inline constexpr MmaTile kMmaSyncTiles[] = {
    {128, 128, 1, 4300, 484, 484},
    {64, 64, 1, 2600, 300, 300},
};

// Of A, or of B transposed, whose row_stride is between rows of A or columns of B: whether their
// neighbours lie across K.
inline bool is_mn_major(const Matrix& matrix) { return matrix.row_stride < matrix.col_stride; }
// Of `count` such neighbours: whether the engine that brings them by boxes of 64 reads on into what
// follows each line in memory, all steps of 64 of K but the last, behind which may be nothing. Of a
// box that lies in the matrix in part it fills each line with zeros, which takes it longer than to
// bring it; unless lines are so short that all blocks ask for the same few of L2's.
inline bool mma_reads_past_end(const Matrix& matrix, int64_t count, int64_t k) {
  const int64_t last = (k - 1) % 64 + 1;
  return matrix.col_stride >= 16 && ceil_div(count, 64) * 64 - count <= last * matrix.col_stride;
}
// Whether a rung copies so few of them to lines along K: where they have to be copied, would be
// filled with zeros, or be asked for too often.
inline bool mma_transposes_to_k_major(const Problem& p, const Matrix& matrix, int64_t count) {
  constexpr int64_t kOften = 32;
  const bool as_they_lie = is_tma_aligned(p.batch, matrix, sizeof(uint16_t)) &&
                           mma_reads_past_end(matrix, count, p.k) && p.k <= kOften * matrix.col_stride;
  return is_mn_major(matrix) && count < 64 && p.k >= 256 && !as_they_lie;
}
// Whether their lines lie across K where the copy engine reads them; tf32's are copies along K.
inline bool mma_is_loaded_mn_major(const Problem& p, const Matrix& matrix, int64_t count) {
  return p.dtype != DType::kFloat32 && is_mn_major(matrix) && !mma_transposes_to_k_major(p, matrix, count);
}

// What it takes to copy operands to lines that the copy engine reads: clocks of one multiprocessor
// for each element, of which a line has at least as many as threads copy together. The launch is in
// what a rung takes to start, since nearly all odd products have one, and in mma_unaligned_plan().
struct MmaCopies {
  static constexpr double kElement = 0.2, kLine = 64 * kElement;
};
// How many lines of 128 bytes L2 is asked for when one of an operand's halves comes to shared
// memory: one that begins in the middle of L2's takes about as much of its time as two. Where lines
// do not begin at multiples of 16 bytes copies are read, whose lines begin where L2's do.
inline double mma_lines_per_request(const Matrix& matrix) {
  constexpr double kMore = 1.1;
  const int64_t pitch = std::max(matrix.row_stride, matrix.col_stride) * int64_t{sizeof(uint16_t)};
  if (pitch % 16 != 0) return 1;
  return 1 + kMore * (1 - static_cast<double>(std::gcd(pitch, kCacheLineBytes)) / kCacheLineBytes);
}

// Whether mma_tma computes C's transpose: few columns, of more rows than all multiprocessors have
// in one round of tiles of 64, are few rows then, of which wide tiles make one round. A bias is of
// columns.
inline bool mma_tma_swaps_ab(const Problem& p, int64_t sms) {
  return p.n <= 16 && p.m > 64 * sms && p.k >= 1024 && p.epilogue.bias == nullptr;
}
// The same problem, of C's transpose, whose bias is of rows then.
inline Problem swap_ab(Problem p) {
  std::swap(p.m, p.n);
  p.a = transposed(std::exchange(p.b, transposed(p.a)));
  p.c = transposed(p.c);
  return p;
}

// mma_unaligned's: rows of the operand that is read as it lies, columns of the other one.
inline constexpr MmaTile kMmaUnalignedTiles[] = {
    {64, 128, 2, 4920, 937, 900},   {128, 64, 1, 4630, 716, 700},
    {64, 64, 1, 3350, 553, 575},    {32, 64, 1, 2600, 296, 351},
    {32, 128, 1, 3950, 525, 615},   {128, 128, 1, 7610, 1060, 1195},
    {64, 192, 2, 6420, 1220, 1230}, {128, 256, 2, 11900, 1480, 1610},
    {64, 256, 2, 9500, 1525, 1515},
};
// Whether mma_unaligned computes C's transpose, so that A is the longer operand: it reads that as it
// lies.
inline bool mma_unaligned_swaps_ab(const Problem& p) { return p.n > p.m; }
inline const Matrix& mma_unaligned_operand(const Problem& p) { return mma_unaligned_swaps_ab(p) ? p.b : p.a; }

// Until so many multiprocessors have both operands from memory, if they come once.
inline double mma_memory_clocks(const Problem& p, double sms, double bytes_a_clock) {
  const auto elements = static_cast<double>((p.m + p.n) * p.batch.count) * static_cast<double>(p.k);
  return 2 * elements / sms / bytes_a_clock;
}

// `slower` by so much are all tiles. They multiply no sooner than operands come: from memory, which
// few blocks cannot ask for all that it gives; and from L2. K may be cut in ranges of chunks, whose
// sums are written to memory and added by another kernel, if the rung `cuts` it. `across`: which
// rate.
inline Plan plan_mma(std::span<const MmaTile> tiles, const Problem& p, int64_t sms,
                     double slower, bool cuts, bool across) {
  // Bytes a clock, a multiprocessor's.
  constexpr double kMemory = 15.6, kFromL2 = 60, kBlockFromL2 = 70, kTaken = 47.6;
  // Of tiles so narrow that many blocks ask for the same lines, of which L2 merges fewer.
  constexpr double kNarrowFromL2 = 34;
  // For the kernel that adds, and bytes a clock of a block that writes sums, and reads them.
  constexpr double kAdds = 5700, kWritten = 200, kRead = 37;
  const auto all = static_cast<double>(sms), k = static_cast<double>(p.k);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, mma_order::kChunk), 1);
  const Matrix b = transposed(p.b);
  const bool halves = p.dtype != DType::kFloat32;  // tf32's are copies, with lines along K
  const double asked_a = halves ? mma_lines_per_request(p.a) : 1;
  const double asked_b = halves ? mma_lines_per_request(b) : 1;
  const bool a_mn_major = mma_is_loaded_mn_major(p, p.a, p.m), b_mn_major = mma_is_loaded_mn_major(p, b, p.n);
  // Lines of a step, of so many rows that a tile has: one each, or 64 of each box of 64 across K.
  const auto lines_of = [](bool is_tma_aligned, int64_t rows) {
    return static_cast<double>(is_tma_aligned ? ceil_div(rows, 64) * 64 : rows);
  };
  Plan best{};
  for (size_t i = 0; i < tiles.size(); ++i) {
    const MmaTile& tile = tiles[i];
    const int64_t count = count_tiles(p, tile.m * tile.cluster, tile.n) * tile.cluster;
    const double elements = static_cast<double>(tile.m) * tile.n;
    const double rate = across ? tile.across : tile.rate;
    if (rate == 0) continue;
    const double in_vain = across && (tile.n - mma_narrow_box(tile.n)) % 64 != 0 ? 1.3 : 1;
    const double rows = lines_of(a_mn_major, std::min<int64_t>(tile.m, p.m));
    const double cols = lines_of(b_mn_major, std::min<int64_t>(tile.n, p.n));
    const double lines = rows * asked_a + cols / tile.cluster * asked_b;
    const double all_from_l2 =
        static_cast<double>(count) * lines * 2 * k / all / (tile.n < 64 ? kNarrowFromL2 : kFromL2);
    // No more than four a processor.
    const int64_t most = cuts ? ceil_div(4 * sms, std::max<int64_t>(count, 1)) : 1;
    for (int64_t ranges = 1; ranges != 0 && ranges <= most; ranges = next_k_splits(chunks, ranges)) {
      const int64_t in_range = ceil_div(chunks, ranges);
      const double longest = static_cast<double>(std::min(in_range * mma_order::kChunk, p.k));
      const auto units = static_cast<double>(count * ranges);
      const double share = units / all;
      // Memory gives less to blocks two of which share a pair of multiprocessors while other pairs
      // have none, and to those of a second round that are few.
      const double uneven = (share > 0.5 && share < 0.7) || (share > 1 && share < 1.75) ? 1.15 : 1;
      const double taking = std::min(all, units * kTaken / kMemory);
      const double rounds = std::ceil(share);
      const double from_l2 = std::max(all_from_l2, rounds * lines * 2 * longest / kBlockFromL2);
      const double chunks_read = static_cast<double>(ceil_div(count, sms) * chunks);
      const double sums = sizeof(float) * elements *
                          (rounds * static_cast<double>(in_range) / kWritten + chunks_read / kRead);
      const double clocks =
          rounds * tile.each + (ranges == 1 ? 0 : kAdds + sums) +
          std::max({rounds * slower * elements * longest / rate,
                    in_vain * uneven * mma_memory_clocks(p, taking, kMemory), from_l2});
      if (best.ranges == 0 || clocks < best.clocks) {
        best = {static_cast<int>(i), tile.m, tile.n, ranges, 1, clocks};
      }
    }
  }
  return best;
}
// Of mma_tma, and of tf32_tma, whose operands are copies in whole lines.
inline std::span<const MmaTile> mma_tma_tiles(const Problem& p) {
  const std::span tiles(kMmaTmaTiles);
  if (p.dtype == DType::kFloat32) return tiles.first(kMmaTilesOfTf32);
  const bool whole = mma_lines_per_request(p.a) == 1 && mma_lines_per_request(transposed(p.b)) == 1;
  return whole ? tiles.first(kMmaTilesForAllLines) : tiles;
}
inline Plan mma_tma_tiles_plan(const Problem& p, int64_t sms) {
  const bool across = mma_is_loaded_mn_major(p, transposed(p.b), p.n);
  return plan_mma(mma_tma_tiles(p), p, sms, 1, true, across);
}
// Whether a rung has to copy an operand: `count` rows of A, or columns of B, transposed.
inline bool mma_must_align(const Problem& p, const Matrix& matrix, int64_t count) {
  return !is_tma_aligned(p.batch, matrix, sizeof(uint16_t)) || mma_transposes_to_k_major(p, matrix, count);
}
// Of a rung that computes the transpose, with the tile that C sees.
inline Plan swap_tile_back(Plan plan) {
  std::swap(plan.m, plan.n);
  return plan;
}
inline Plan mma_tma_plan(const Problem& p, int64_t sms) {
  return mma_tma_swaps_ab(p, sms) ? swap_tile_back(mma_tma_tiles_plan(swap_ab(p), sms))
                                       : mma_tma_tiles_plan(p, sms);
}
inline Plan mma_unaligned_plan(const Problem& p, int64_t sms) {
  // Of a single row, or column, little is brought beside the other operand; more are copied first,
  // for which the rung waits. Costs fitted to it alone are too low beside mma_tma's across K.
  constexpr double kSingle = 0.7, kWaits = 200, kAcross = 1.04;
  const bool turns = mma_unaligned_swaps_ab(p);
  const Problem own = turns ? swap_ab(p) : p;
  const bool across = is_mn_major(own.a);
  Plan plan = plan_mma(kMmaUnalignedTiles, own, sms, 1, true, across);
  if (across) plan.clocks *= kAcross;
  if (own.n == 1) {
    plan.clocks *= kSingle;
  } else if (mma_must_align(own, transposed(own.b), own.n)) {
    plan.clocks += kWaits;
  }
  return turns ? swap_tile_back(plan) : plan;
}
inline Plan mma_sync_plan(const Problem& p, int64_t sms) {
  constexpr double kWaits = 2;  // for what its threads read themselves
  const bool waits =
      !is_16_byte_aligned(p.batch, p.a, sizeof(uint16_t)) || !is_16_byte_aligned(p.batch, p.b, sizeof(uint16_t));
  return plan_mma(kMmaSyncTiles, p, sms, waits ? kWaits : 1, false, false);
}

}  // namespace tiled
