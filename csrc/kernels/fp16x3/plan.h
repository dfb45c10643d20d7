#pragma once
// Plans of the fp16x3 kernels: tiles, K splits, and cycles by the cost model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "core/complex.h"
#include "core/mixed.h"
#include "core/order_chunked.h"
#include "core/presplit.h"
#include "core/stored_batch.h"
#include "kernels/common/cost_model.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/costs_h200.h"
#include "kernels/fp16x3/recompute_list.h"
#include "kernels/fp16x3/thin_plan.h"

namespace tiled {

// If there are too few tiles for all SMs, K is split: chunk sums go to a workspace, and a second
// kernel adds them in order.
inline Plan fp16x3_wgmma_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const int64_t tiles = count_tiles(p, Cost::kWgmmaTile, Cost::kWgmmaTile);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const bool stores_x2 = is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride, 2);
  const double wave = Cost::kWgmmaWave + (stores_x2 ? 0 : Cost::kWgmmaStoreX1);
  Plan best{.m = Cost::kWgmmaTile, .n = Cost::kWgmmaTile};
  for (int64_t splits = 1; splits != 0 && splits <= sms; splits = next_k_splits(chunks, splits)) {
    const int64_t longest = std::min(ceil_div(chunks, splits) * kChunk, p.k);
    const double each = wave + Cost::kWgmmaTile * Cost::kWgmmaTile * static_cast<double>(longest) /
                                   Cost::kWgmmaRate;
    const double reduce =
        splits == 1
            ? 0
            : Cost::kReduceLaunch + Cost::kReduceChunk * static_cast<double>(tiles * chunks);
    const double cycles = static_cast<double>(ceil_div(tiles * splits, sms)) * each + reduce;
    if (splits == 1 || cycles < best.cycles) best.k_splits = splits, best.cycles = cycles;
  }
  const int64_t cols = p.b_presplit.hi_lo != nullptr ? 0 : p.n;
  best.blocks = tiles * best.k_splits;
  best.cycles = h200::kLaunchFp16x3Wgmma + rewrite_cycles(p, sms, p.m, cols, h200::kSplitFp16x3) +
                best.cycles;
  return best;
}

// A plan with a block for each chunk of each (m, n) tile; m is along C's shorter side.
inline Plan chunk_per_block_plan(const Problem& p, int m, int n) {
  const int64_t tiles =
      ceil_div(std::min(p.m, p.n), m) * ceil_div(std::max(p.m, p.n), n) * p.batch.count;
  const int64_t chunks = std::max<int64_t>(1, ceil_div(p.k, kChunk));
  return {.m = m, .n = n, .k_splits = chunks, .blocks = tiles * chunks};
}
// Returns true if the longer operand can be loaded with 128-bit vectors.
inline bool copies_longer_by_vectors(const Problem& p) {
  const Matrix& longer = longer_operand(p);
  const auto [inner, outer] = std::minmax(longer.row_stride, longer.col_stride);
  return inner == 1 && outer % 4 == 0;
}

// How fp16x3_cluster copies the rows of an operand: A's rows, or B's columns.
enum class RowCopy {
  kBulk,     // one bulk copy for a row of adjacent elements
  kKMajor,   // elements; adjacent threads copy adjacent k
  kMnMajor,  // elements; eight adjacent threads copy adjacent rows
};
// The rows of A, or else of B. `narrow` is null if no operand is a 16-bit one; its rows come in
// bulk.
inline RowCopy fp16x3_cluster_copy(const Problem& p, const Narrow* narrow, bool is_a,
                                   int64_t rows) {
  const Matrix matrix = is_a ? p.a : transposed(p.b);
  if (narrow != nullptr && narrow->is_a == is_a) return RowCopy::kBulk;
  const bool bulk = matrix.col_stride == 1;
  const bool k_major = rows == 1 || matrix.col_stride <= matrix.row_stride;
  return bulk ? RowCopy::kBulk : k_major ? RowCopy::kKMajor : RowCopy::kMnMajor;
}
// Cycles in which a block that is alone on an SM copies, splits and multiplies one k of the rows.
inline double fp16x3_cluster_row_cycles(const Problem& p, const Narrow* narrow, bool is_a,
                                        int64_t rows) {
  using Cost = h200::Fp16x3;
  const RowCopy copy = fp16x3_cluster_copy(p, narrow, is_a, rows);
  const bool is_narrow = narrow != nullptr && narrow->is_a == is_a;
  const double each = is_narrow                ? Cost::kClusterNarrow
                      : copy == RowCopy::kBulk ? Cost::kClusterBulk
                                               : Cost::kClusterElements;
  return each * static_cast<double>(copy == RowCopy::kMnMajor ? ceil_div(rows, 8) * 8 : rows);
}

inline constexpr int64_t kFp16x3MostClusterBlocks = 8;  // which every Hopper GPU can run
// Returns how many SMs run clusters of as many blocks at once, one block each. All blocks of a
// cluster are in one GPC, so some SMs are left over.
inline int64_t fp16x3_cluster_sms(int64_t sms, int64_t cluster) {
  return std::max<int64_t>(sms * h200::kFp16x3ClusterSms[cluster - 1] / 132, 1);
}
inline constexpr int kFp16x3ClusterMostThreads = 512;
// Returns a block's threads. More of them load and split sooner if a block has an SM to itself.
inline int fp16x3_cluster_threads(int64_t blocks, int64_t sms) {
  return blocks <= sms ? kFp16x3ClusterMostThreads : kFp16x3ClusterMostThreads / 2;
}
inline constexpr int kFp16x3ClusterBlocksPerSm = 2;  // of half as many threads, by registers
inline constexpr int kFp16x3ClusterRows = 80;        // its operand rows, at most

// The pitch in shared memory, in bytes, of operand rows as hi and lo parts, or as hi parts alone of
// a 16-bit operand. Reads by vectors, of two or of four rows at a time, have no bank conflicts.
inline int64_t fp16x3_cluster_pitch(int64_t k, bool is_narrow) {
  return (ceil_div(std::min<int64_t>(k, kChunk), 128) * 128 + 16) * (is_narrow ? 2 : 4);
}
// The shared memory for a block's operand rows and the sums of a cluster, in bytes.
inline int64_t fp16x3_cluster_smem(const Problem& p, const Narrow* narrow, int64_t m, int64_t n,
                                   int64_t cluster) {
  m = std::min(m, p.m), n = std::min(n, p.n);
  const int64_t sums = cluster * ceil_div(m, 16) * ceil_div(n, 8) * 128;
  return m * fp16x3_cluster_pitch(p.k, narrow != nullptr && narrow->is_a) +
         n * fp16x3_cluster_pitch(p.k, narrow != nullptr && !narrow->is_a) +
         int64_t{sizeof(float)} * sums;
}

// A block that is alone on an SM waits for its copies, for the split, and for its chain of
// products; blocks that share an SM take its issue slots. Beside a 16-bit operand, a block that has
// an SM to itself only waits. `narrow` is null if no operand is a 16-bit one.
inline Plan fp16x3_cluster_plan_of(const Problem& p, const Narrow* narrow, int64_t sms) {
  using Cost = h200::Fp16x3;
  const int64_t chunks = std::max<int64_t>(1, ceil_div(p.k, kChunk));
  const double chain = narrow == nullptr ? Cost::kClusterK : Cost::kClusterNarrowK;
  Plan best;
  for (size_t i = 0; i < std::size(h200::kFp16x3ClusterTiles); ++i) {
    const auto& [m, n] = h200::kFp16x3ClusterTiles[i];
    const int64_t rows = std::min<int64_t>(p.m, m), cols = std::min<int64_t>(p.n, n);
    const double copies = fp16x3_cluster_row_cycles(p, narrow, /*is_a=*/true, rows) +
                          fp16x3_cluster_row_cycles(p, narrow, /*is_a=*/false, cols);
    const auto warp_tiles = static_cast<double>(ceil_div(rows, 16) * ceil_div(cols, 8));
    for (const int64_t cluster : {std::min(chunks, kFp16x3MostClusterBlocks), int64_t{1}}) {
      const int64_t smem = fp16x3_cluster_smem(p, narrow, m, n, cluster);
      if (smem > kMaxSharedMemory - 1024) continue;
      const int64_t usable_sms = fp16x3_cluster_sms(sms, cluster);
      const int64_t blocks = count_tiles(p, m, n) * cluster;
      const int64_t resident =
          std::clamp<int64_t>(kSharedMemoryOfSm / (smem + 2048), 1, kFp16x3ClusterBlocksPerSm);
      const auto rounds = static_cast<double>(ceil_div(chunks, cluster));
      const double k = cluster == 1 ? static_cast<double>(p.k) : rounds * kChunk;
      const bool more_threads = fp16x3_cluster_threads(blocks, sms) == kFp16x3ClusterMostThreads;
      const double alone = rounds * Cost::kClusterAlone +
                           k * (chain + copies * (more_threads ? Cost::kClusterMoreThreads : 1));
      const double shared = rounds * Cost::kClusterShared +
                            k * (copies * Cost::kClusterCopy + warp_tiles * Cost::kClusterTile);
      const auto waves = static_cast<double>(ceil_div(blocks, usable_sms * resident));
      double share = static_cast<double>(blocks) / static_cast<double>(usable_sms);
      if (narrow != nullptr && rounds == 1 && blocks <= usable_sms) share = 0;
      const double cycles = Cost::kClusterLaunch + std::max(waves * alone, share * shared);
      keep_faster(best, {.tile = static_cast<int>(i),
                         .m = m,
                         .n = n,
                         .k_splits = cluster,
                         .blocks = blocks,
                         .cycles = cycles});
    }
  }
  return best;
}

inline Plan fp16x3_cluster_plan(const Problem& p, int64_t sms) {
  return fp16x3_cluster_plan_of(p, nullptr, sms);
}

// A block splits a panel, a chunk of 16 or 32 rows of the shorter operand, and keeps it for the
// tiles along the longer side that it gets. Four of them wait at once, or the SM is busy with all.
inline Plan fp16x3_skinny_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  constexpr int kCols = 32, kAtOnce = 4;
  const auto k = static_cast<double>(std::min<int64_t>(p.k, kChunk));
  const int64_t shorter = std::min(p.m, p.n);
  const int64_t along = std::max<int64_t>(ceil_div(std::max(p.m, p.n), kCols), 1);
  const bool vectors = copies_longer_by_vectors(p);
  Plan best;
  for (const int rows : {16, 32}) {
    if (rows > 16 && shorter <= 16) break;
    Plan plan = chunk_per_block_plan(p, rows, kCols);
    const int64_t tiles = ceil_div(plan.blocks, sms), panels = ceil_div(tiles, along);
    const double panel =
        Cost::kSkinnyPanel +
        k * static_cast<double>(std::min<int64_t>(shorter, rows)) * Cost::kSkinnyPanelRow;
    const double alone = Cost::kSkinnyTile + k * Cost::kSkinnyK;
    const double busy = k * ((rows > 16 ? Cost::kSkinnyBusy32 : Cost::kSkinnyBusy16) +
                             (vectors ? 0 : Cost::kSkinnyElements));
    plan.cycles = h200::kLaunchFp16x3Skinny + static_cast<double>(panels) * panel +
                  std::max(static_cast<double>(ceil_div(tiles, kAtOnce)) * alone,
                           static_cast<double>(tiles) * busy);
    keep_faster(best, plan);
  }
  return best;
}

inline bool fp16x3_fused_accepts(const Problem& p) {
  return fits_tma_coords(p) && is_tma_aligned(p.batch, longer_operand(p));
}
// A block multiplies a chunk of 64 or 128 rows of the shorter operand. A kernel before it splits
// that operand, and one after it adds chunks.
inline Plan fp16x3_fused_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const int64_t shorter = std::min(p.m, p.n);
  const bool few_rows = shorter <= 64;
  Plan plan = chunk_per_block_plan(p, few_rows ? 64 : 128, 128);
  const auto k = static_cast<double>(std::min<int64_t>(p.k, kChunk));
  const double wave = few_rows ? Cost::kFusedWave64 + k * Cost::kFusedK64
                               : Cost::kFusedWave128 + k * Cost::kFusedK128;
  const auto sums = static_cast<double>(p.batch.count * p.m * p.n * plan.k_splits);
  plan.cycles = h200::kLaunchFp16x3Fused + static_cast<double>(ceil_div(plan.blocks, sms)) * wave +
                rewrite_cycles(p, sms, shorter, 0, h200::kSplitFp16x3) +
                sums * Cost::kFusedSum / static_cast<double>(sms);
  return plan;
}

// The most shared memory that fp16x3_small takes for a tile: fragments of 1 KB for 16 operand rows
// and 16 of K, the sums, and ranges and scales of rows.
inline int64_t fp16x3_small_smem(const h200::Fp16x3SmallTile& tile, int64_t k) {
  return ceil_div(k, 16) * ((tile.m + tile.n) / 16) * 1024 + tile.m * tile.n * 8 + 4096;
}
// The tile by which the busiest SM reads the fewest operand rows.
inline Plan fp16x3_small_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const auto row_cycles = [&](const Matrix& matrix) {
    return is_16_byte_aligned(p.batch, matrix, sizeof(float)) ? Cost::kSmallVectors
                                                              : Cost::kSmallElements;
  };
  const double a = row_cycles(p.a), b = row_cycles(transposed(p.b));
  const auto k = static_cast<double>(p.k);
  Plan best;
  int64_t fewest = -1;
  for (size_t i = 0; i < std::size(h200::kFp16x3SmallTiles); ++i) {
    const h200::Fp16x3SmallTile& tile = h200::kFp16x3SmallTiles[i];
    if (fp16x3_small_smem(tile, p.k) > kMaxSharedMemory) continue;
    const int64_t blocks = count_tiles(p, tile.m, tile.n);
    const int64_t rows = ceil_div(blocks, sms) * (tile.m + tile.n);
    if (fewest >= 0 && rows >= fewest) continue;
    fewest = rows;
    const double each =
        Cost::kSmallTile + k * (static_cast<double>(std::min<int64_t>(p.m, tile.m)) * a +
                                static_cast<double>(std::min<int64_t>(p.n, tile.n)) * b +
                                tile.m * tile.n * Cost::kSmallProduct);
    best = {.tile = static_cast<int>(i),
            .m = tile.m,
            .n = tile.n,
            .blocks = blocks,
            .cycles = h200::kLaunchFp16x3Small + Cost::kSmallK * k +
                      static_cast<double>(ceil_div(blocks, sms)) * each};
  }
  return best;
}

// Returns whether a block of fp16x3_direct keeps its rows of A for tiles along N, or else its
// columns of B for tiles along M.
inline bool fp16x3_direct_keeps_a(const Problem& p) { return p.n >= p.m; }
// Bytes from an operand row, hi parts and then lo parts, to the next in its shared memory: an odd
// number of 16 bytes, so that ldmatrix and 128-bit stores of adjacent rows have no bank conflicts.
HOST_DEVICE constexpr int fp16x3_direct_pitch(int k) { return (k + 15) / 16 * 64 + 16; }
// The shared memory that it takes for a tile, in bytes: both parts of the operand rows, and C's
// tile takes the place of the rows that are not kept; the rows' scales and parts of their ranges.
inline int64_t fp16x3_direct_smem(const Problem& p, const h200::Fp16x3DirectTile& tile) {
  const int64_t row = fp16x3_direct_pitch(static_cast<int>(p.k));
  const int64_t kept = fp16x3_direct_keeps_a(p) ? tile.m : tile.n;
  const int64_t c = std::max(tile.m * (tile.n + 8), (tile.m + 4) * tile.n) * 4;
  return std::max((tile.m + tile.n) * row, kept * row + c) + tile.warps() * 32 * 16 +
         (tile.m + tile.n) * 4;
}
// Cycles in which a block that is alone on an SM, and what an SM that is busy, loads and splits one
// k of the rows of an operand.
struct Fp16x3DirectLoad {
  double alone, busy;
};
inline Fp16x3DirectLoad fp16x3_direct_load(const Matrix& matrix, int64_t rows, int tile) {
  using Cost = h200::Fp16x3;
  if (matrix.col_stride == 1) {
    const auto loaded = static_cast<double>(std::min<int64_t>(rows, tile));
    return {loaded * Cost::kDirectKMajorAlone, loaded * Cost::kDirectKMajor};
  }
  return {tile * Cost::kDirectStridedAlone, tile * Cost::kDirectStrided};
}
// An SM waits for blocks that wait for their loads and products, or is busy with the work of all.
inline Plan fp16x3_direct_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const bool keeps_a = fp16x3_direct_keeps_a(p);
  const auto k = static_cast<double>(p.k);
  const auto elements = static_cast<double>(((p.m + p.n) * p.k + p.m * p.n) * p.batch.count);
  const double dram = 4 * elements / static_cast<double>(sms) / Cost::kDirectDram;
  Plan best;
  for (size_t i = 0; i < std::size(h200::kFp16x3DirectTiles); ++i) {
    const h200::Fp16x3DirectTile& tile = h200::kFp16x3DirectTiles[i];
    const int64_t smem = fp16x3_direct_smem(p, tile);
    const int64_t room = kSharedMemoryOfSm / (smem + 1024);
    if (smem > kMaxSharedMemory || room < tile.least_room || room > tile.most_room) continue;
    const int64_t resident = std::min<int64_t>(tile.blocks, room) * sms;
    const Fp16x3DirectLoad a = fp16x3_direct_load(p.a, p.m, tile.m);
    const Fp16x3DirectLoad b = fp16x3_direct_load(transposed(p.b), p.n, tile.n);
    const auto [kept, moved] = keeps_a ? std::pair{a, b} : std::pair{b, a};
    const auto warp_tiles = static_cast<double>(ceil_div(std::min<int64_t>(p.m, tile.m), 16) *
                                                ceil_div(std::min<int64_t>(p.n, tile.n), 16));
    const double each =
        Cost::kDirectTile + k * Cost::kDirectK + tile.m * tile.n * Cost::kDirectElement;
    const int64_t moves = keeps_a ? ceil_div(p.n, tile.n) : ceil_div(p.m, tile.m);
    for (int count = 1; count <= h200::kFp16x3DirectMostTiles; count *= 2) {
      const int64_t blocks =
          keeps_a ? count_tiles(p, tile.m, tile.n * count) : count_tiles(p, tile.m * count, tile.n);
      const auto tiles = static_cast<double>(std::min<int64_t>(count, moves));
      const double alone =
          Cost::kDirectBlock + tiles * each + k * (kept.alone + tiles * moved.alone) / tile.warps();
      const double busy =
          k * (kept.busy + tiles * (moved.busy + warp_tiles * Cost::kDirectWarpTile));
      const double cycles =
          std::max({static_cast<double>(ceil_div(blocks, resident)) * alone,
                    static_cast<double>(blocks) / static_cast<double>(sms) * busy, dram});
      keep_faster(best, {.tile = static_cast<int>(i),
                         .m = tile.m,
                         .n = tile.n,
                         .blocks = blocks,
                         .cycles = cycles,
                         .tiles_per_block = count});
    }
  }
  return best;
}

// fp16x3_rows sees C, or C transposed, with its rows along the long operand. A block has the
// columns of one or two tiles of the short operand's presplit in shared memory, and a range of row
// tiles.
inline constexpr int kFp16x3RowsMostCols = 2 * Presplit::kRows;
struct Fp16x3RowsGrid {
  int64_t rows;                     // of a matrix
  unsigned tiles_of_matrix, tiles;  // row tiles
  unsigned block_tiles,
      col_blocks;   // tiles of the presplit that a block has; the blocks that have them all
  unsigned ranges;  // that the row tiles are cut in
};
inline const h200::Fp16x3RowsTile& fp16x3_rows_tile(int64_t k) {
  return h200::kFp16x3RowsTiles[k > h200::kFp16x3RowsTiles[0].k ? 1 : 0];
}
// The bytes of shared memory that a block takes: its columns, and before them sums, inverse scales
// and a barrier.
constexpr int64_t fp16x3_rows_header(const h200::Fp16x3RowsTile& tile) {
  return tile.warpgroups * tile.cols * h200::kFp16x3RowsOfTile * 4 + kFp16x3RowsMostCols * 4 + 1024;
}
inline int64_t fp16x3_rows_smem(const Problem& p, unsigned block_tiles) {
  const int64_t cols = std::min<int64_t>(ceil_div(std::min(p.m, p.n), 64) * 64, Presplit::kRows);
  return fp16x3_rows_header(fp16x3_rows_tile(p.k)) +
         cols * block_tiles * Presplit{.k = p.k}.padded_k() * 4;
}
inline Fp16x3RowsGrid fp16x3_rows_grid(const Problem& p, int64_t sms) {
  const LongAndShort sides = long_and_short(p);
  const int64_t of_matrix = ceil_div(sides.long_count, h200::kFp16x3RowsOfTile);
  const int64_t tiles = of_matrix * p.batch.count;
  const int64_t col_tiles = ceil_div(sides.short_count, Presplit::kRows);
  const bool two = col_tiles % 2 == 0 && fp16x3_rows_smem(p, 2) <= kMaxSharedMemory;
  const int64_t col_blocks = col_tiles / (two ? 2 : 1);
  // Ranges that end with a matrix load no second short operand, if they are as short as others.
  const auto longest = [&](int64_t ranges) {
    return ceil_div(ceil_div(tiles, ranges), fp16x3_rows_tile(p.k).warpgroups);
  };
  int64_t ranges =
      std::clamp<int64_t>(sms / std::max<int64_t>(col_blocks, 1), 1, std::max<int64_t>(tiles, 1));
  const int64_t of_matrices = ranges / std::max<int64_t>(p.batch.count, 1) * p.batch.count;
  if (of_matrices > 0 && longest(of_matrices) <= longest(ranges)) ranges = of_matrices;
  return {.rows = sides.long_count,
          .tiles_of_matrix = static_cast<unsigned>(of_matrix),
          .tiles = static_cast<unsigned>(tiles),
          .block_tiles = two ? 2u : 1u,
          .col_blocks = static_cast<unsigned>(col_blocks),
          .ranges = static_cast<unsigned>(ranges)};
}
// Row tiles are counted by 32 bits.
inline bool fp16x3_rows_accepts(const Problem& p) {
  const int64_t of_matrix = ceil_div(std::max(p.m, p.n), h200::kFp16x3RowsOfTile);
  return of_matrix * p.batch.count < int64_t{1} << 31;
}
// Returns whether the short operand has to be split, or else is B, with a presplit.
inline bool fp16x3_rows_splits(const Problem& p) {
  return p.m <= p.n || p.b_presplit.hi_lo == nullptr;
}
// A warpgroup waits for its loads, its split and its products, an SM is busy with all of them, or
// memory is.
inline Plan fp16x3_rows_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const Fp16x3RowsGrid grid = fp16x3_rows_grid(p, sms);
  const h200::Fp16x3RowsTile& tile = fp16x3_rows_tile(p.k);
  const LongAndShort sides = long_and_short(p);
  const auto k = static_cast<double>(p.k);
  const int64_t cols = std::min<int64_t>(sides.short_count, grid.block_tiles * Presplit::kRows);
  const auto pieces = static_cast<double>(ceil_div(cols, 64));
  const int64_t of_range = ceil_div(int64_t{grid.tiles}, std::max<int64_t>(grid.ranges, 1));
  const auto waves = static_cast<double>(ceil_div(int64_t{grid.ranges} * grid.col_blocks, sms));
  const double each =
      Cost::kRowsTile + k * Cost::kRowsK + pieces * (Cost::kRowsPiece + k * Cost::kRowsPieceK);
  const double alone = static_cast<double>(ceil_div(of_range, tile.warpgroups)) * each;
  const double busy =
      static_cast<double>(of_range) * k * (Cost::kRowsBusyK + pieces * tile.busy_piece);
  const auto elements = static_cast<double>(((p.m + p.n) * p.k + p.m * p.n) * p.batch.count);
  const double dram = 4 * elements / static_cast<double>(sms) / Cost::kRowsDram;
  const int64_t split_rows =
      fp16x3_rows_splits(p) ? sides.short_count * stored_matrices(p.batch, sides.short_operand) : 0;
  const double split = static_cast<double>(split_rows) / static_cast<double>(sms) *
                       std::max(k * h200::kSplitFp16x3.element, h200::kSplitFp16x3.row);
  const double wave = Cost::kRowsBlock + k * Cost::kRowsBlockK + std::max(alone, busy);
  return {.tile = static_cast<int>(&tile - h200::kFp16x3RowsTiles),
          .m = static_cast<int>(grid.block_tiles) * Presplit::kRows,
          .n = h200::kFp16x3RowsOfTile,
          .blocks = int64_t{grid.tiles} * grid.col_blocks,
          .cycles = Cost::kRowsLaunch + split + std::max(waves * wave, dram)};
}

// --- a 16-bit operand, read in place -------------------------------------------------------------

// fp16x3_cluster copies its rows in bulk, which end at 16 bytes.
inline bool fp16x3_cluster_reads_mixed(const Problem& p, const Narrow& narrow) {
  const Matrix matrix = narrow.is_a ? p.a : transposed(p.b);
  return p.k % 8 == 0 && is_vector_aligned(p.batch, matrix, matrix.col_stride, matrix.row_stride, 8,
                                           size_of(narrow.dtype));
}
inline Plan fp16x3_cluster_mixed_plan(const Problem& p, const Narrow& narrow, int64_t sms) {
  return fp16x3_cluster_plan_of(p, &narrow, sms);
}
// fp16x3_skinny copies a short operand like that, and a long one by vectors of 16 bytes, K-major or
// MN-major, if the last of them is whole.
inline bool fp16x3_skinny_reads_mixed(const Problem& p, const Narrow& narrow) {
  const Matrix matrix = narrow.is_a ? p.a : transposed(p.b);
  const bool is_long = narrow.is_a == (p.m > p.n);
  if (!is_long || !is_mn_major(matrix)) return fp16x3_cluster_reads_mixed(p, narrow);
  return std::max(p.m, p.n) % 8 == 0 &&
         is_vector_aligned(p.batch, matrix, matrix.row_stride, matrix.col_stride, 8,
                           size_of(narrow.dtype));
}
// fp16x3_fused splits its short operand beforehand, and copies the long one by TMA, as float32.
inline bool fp16x3_fused_reads_mixed(const Problem& p, const Narrow& narrow) {
  return narrow.is_a != (p.m > p.n);
}
inline bool fp16x3_wgmma_reads_mixed(const Problem&, const Narrow&) { return true; }

// --- a complex B, read in place ------------------------------------------------------------------

inline std::optional<Plan> fp16x3_small_complex_plan(const Plan& packed, const Problem&,
                                                     const SignsOfB&, int64_t) {
  return packed;
}
// It splits a number once for both of its columns.
inline std::optional<Plan> fp16x3_direct_complex_plan(const Plan& packed, const Problem&,
                                                      const SignsOfB&, int64_t) {
  Plan plan = packed;
  plan.cycles *= h200::Fp16x3::kDirectComplexB;
  return plan;
}
// B has to be the long operand. The plan of this kernel has no choice of tiles.
inline std::optional<Plan> fp16x3_skinny_complex_plan(const Plan& packed, const Problem& p,
                                                      const SignsOfB&, int64_t) {
  if (p.m > p.n) return std::nullopt;
  Plan plan = packed;
  plan.cycles *= h200::Fp16x3::kSkinnyComplexB;
  return plan;
}
// B is split in place. Flagged elements are recomputed by B', which a pass then writes.
inline std::optional<Plan> fp16x3_wgmma_complex_plan(const Plan& packed, const Problem&,
                                                     const SignsOfB&, int64_t) {
  return packed;
}

// --- workspaces ----------------------------------------------------------------------------------

// Takes the memory of the presplit of so many matrices.
inline void take_presplit(cuda::Workspace& workspace, Presplit& presplit, int64_t matrices) {
  presplit.hi_lo = workspace.take<uint8_t>(presplit.matrix_bytes() * matrices).data();
  presplit.inverse_scales = workspace.take<float>(presplit.matrix_groups() * matrices).data();
}
// The buffers of fp16x3_wgmma besides the operands and C. `b` has none if the problem brings its
// presplit. partial_sums: of all tiles and chunks, with split-K.
struct Fp16x3WgmmaBuffers {
  cuda::RecomputeList recompute;
  Presplit a, b;
  float* partial_sums;

  Fp16x3WgmmaBuffers(const Problem& p, int64_t k_splits, cuda::Workspace& workspace)
      : recompute(cuda::RecomputeList::take(workspace, p, kTile)),
        a{.rows = p.m, .k = p.k},
        b{.rows = p.n, .k = p.k} {
    take_presplit(workspace, a, stored_matrices(p.batch, p.a));
    if (p.b_presplit.hi_lo == nullptr) take_presplit(workspace, b, stored_matrices(p.batch, p.b));
    const int64_t chunks = count_tiles(p, kTile, kTile) * ceil_div(p.k, kChunk);
    partial_sums = workspace.take<float>(k_splits > 1 ? chunks * kTile * kTile : 0).data();
  }

 private:
  static constexpr int kTile = h200::Fp16x3::kWgmmaTile;
};
inline int64_t fp16x3_wgmma_bytes(const Problem& p, int64_t k_splits) {
  return cuda::workspace_bytes(
      [&](cuda::Workspace& workspace) { Fp16x3WgmmaBuffers(p, k_splits, workspace); });
}
inline WorkspaceBytes fp16x3_wgmma_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {fp16x3_wgmma_bytes(p, plan.k_splits)};
}

// The sums of work tiles that fp16x3_skinny, fp16x3_fused and fp16x3_thin store before chunks are
// added: as many columns of tiles at once as fit in kFp16x3MostSums, and at least one.
inline constexpr int64_t kFp16x3MostSums = int64_t{64} << 20;
inline int64_t fp16x3_partial_sums_bytes(const Problem& p, const LongAndShort& sides,
                                         int64_t tile_cols) {
  const int64_t col_tile =
      ceil_div(p.k, kChunk) * sides.short_count * tile_cols * int64_t{sizeof(float)};
  const int64_t all = p.batch.count * ceil_div(sides.long_count, tile_cols) * col_tile;
  return std::max(std::min(all, kFp16x3MostSums), col_tile);
}
inline WorkspaceBytes fp16x3_skinny_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {fp16x3_partial_sums_bytes(p, long_and_short(p), plan.n)};
}
inline WorkspaceBytes fp16x3_thin_workspace(const Problem& p, const Plan& plan, int64_t) {
  const Fp16x3ThinSides sides = fp16x3_thin_sides(p, plan.tile);
  return {p.k <= kChunk ? 0 : fp16x3_partial_sums_bytes(sides.p, sides.sides, kFp16x3ThinRows)};
}
// Returns whether flagged elements are listed for the recompute kernel, which needs a launch more,
// or else recomputed by the kernel that adds chunks, which takes much longer for a flagged row.
inline bool fp16x3_fused_lists_flagged(const Problem& p) {
  constexpr double kMinProducts = 1u << 31;
  const auto rows = static_cast<double>(p.batch.count * p.m);
  return rows * static_cast<double>(p.n) * static_cast<double>(p.k) >= kMinProducts;
}
// The buffers of fp16x3_fused besides the operands and C. `recompute` has none if flagged elements
// are not listed.
struct Fp16x3FusedBuffers {
  float* partial_sums;
  Presplit short_operand;
  cuda::RecomputeList recompute;

  Fp16x3FusedBuffers(const Problem& p, int64_t tile_cols, cuda::Workspace& workspace)
      : short_operand{.rows = std::min(p.m, p.n), .k = p.k} {
    const int64_t sums =
        fp16x3_partial_sums_bytes(p, long_and_short(p), tile_cols) / int64_t{sizeof(float)};
    partial_sums = workspace.take<float>(sums).data();
    take_presplit(workspace, short_operand, p.batch.count);
    if (fp16x3_fused_lists_flagged(p)) {
      recompute = cuda::RecomputeList::take(workspace, p, cuda::RecomputeList::kCols);
    }
  }
};
inline WorkspaceBytes fp16x3_fused_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {cuda::workspace_bytes(
      [&](cuda::Workspace& workspace) { Fp16x3FusedBuffers(p, plan.n, workspace); })};
}
// The presplit of the short operand of fp16x3_rows.
struct Fp16x3RowsBuffers {
  Presplit short_operand;

  Fp16x3RowsBuffers(const Problem& p, cuda::Workspace& workspace)
      : short_operand{.rows = std::min(p.m, p.n), .k = p.k} {
    if (!fp16x3_rows_splits(p)) return;
    take_presplit(workspace, short_operand,
                  stored_matrices(p.batch, long_and_short(p).short_operand));
  }
};
inline WorkspaceBytes fp16x3_rows_workspace(const Problem& p, const Plan&, int64_t) {
  return {
      cuda::workspace_bytes([&](cuda::Workspace& workspace) { Fp16x3RowsBuffers(p, workspace); })};
}

}  // namespace tiled
