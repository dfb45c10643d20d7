#pragma once
// Plans of the simt kernels: the tile, the K splits, and the blocks that share an SM.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "core/stored_batch.h"
#include "kernels/common/cost_model.h"
#include "kernels/simt/costs_h200.h"

namespace tiled {

// Returns whether A, or B, is loaded by 128-bit vectors along M, or N.
inline bool is_a_vectorized(const Problem& p) {
  return is_vector_aligned(p.batch, p.a, p.a.row_stride, p.a.col_stride, 4);
}
inline bool is_b_vectorized(const Problem& p) {
  return is_vector_aligned(p.batch, p.b, p.b.col_stride, p.b.row_stride, 4);
}

// Returns whether C is read and written by 128-bit vectors along its rows, if they are inside.
inline bool is_c_vectorized(const Problem& p) {
  return is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride, 4);
}

// DRAM cycles to read A and B and write C. `b_share`: the part of B's bytes that are read, which is
// half if a complex number stands for four elements of B (core/complex.h).
inline double simt_dram_cycles(const Problem& p, const h200::SimtDram& dram, int64_t sms,
                               double b_share = 1) {
  const auto cycles = [&](const auto& matrix, int64_t outer, int64_t inner, double bandwidth) {
    int64_t elements = outer * inner;
    for (int d = 0; d < p.batch.rank; ++d) {
      if (matrix.batch_stride[d] != 0) elements *= p.batch.size[d];
    }
    return static_cast<double>(elements) * sizeof(float) / bandwidth / static_cast<double>(sms);
  };
  return cycles(p.a, p.m, p.k, is_a_vectorized(p) ? dram.vectors : dram.elements) +
         b_share * cycles(p.b, p.n, p.k, is_b_vectorized(p) ? dram.vectors : dram.elements) +
         cycles(p.c, p.m, p.n, is_c_vectorized(p) ? dram.c_vectors : dram.c_elements);
}

struct SimtKind {
  bool threads_copy;  // operands are copied by threads, which takes issue slots from FMAs
  bool persistent;    // blocks go on to other tiles; otherwise new blocks start when old ones end
  double next_tile;   // cycles from one wave of tiles to the next
};

// Returns how many blocks the busiest SM has in the last wave, of `left` tiles, after `waves` full
// ones. A first wave is spread evenly. In the next few waves, all blocks of an SM end together, and
// new ones start there. Persistent blocks are spread over the SMs if `left` is at most half the
// number of SMs; otherwise at least two on one SM go on to another tile.
inline int64_t last_wave_blocks(const SimtKind& kind, int64_t waves, int64_t left, int blocks,
                                int64_t sms) {
  constexpr int64_t kFew = 4;
  const int64_t even = ceil_div(left, sms);
  if (waves == 0 || left == 0) return even;
  if (!kind.persistent) return waves < kFew ? blocks : even;
  return left <= sms / 2 ? 1 : std::max(even, std::min<int64_t>(blocks, 2));
}

// The plan with the fewest cycles, over all tiles, K splits, and numbers of blocks that share an
// SM. Blocks that share an SM end together, so fewer of them may leave less of the last wave empty.
// `b_share`: as above, of B's copies.
template <class Tile, size_t kTiles>
Plan fastest_simt_plan(const Tile (&tiles)[kTiles], const SimtKind& kind, const Problem& p,
                       int64_t sms, double b_share = 1) {
  using Cost = h200::Simt;
  constexpr int64_t kMaxSplits = 65535;                    // of a grid's y
  constexpr int64_t kMaxProduct = (int64_t{1} << 32) - 1;  // of splits and chunks, in 32 bits
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const bool a_scalar = !is_a_vectorized(p), b_scalar = !is_b_vectorized(p);
  Plan best{.k_splits = 0};
  for (size_t i = 0; i < kTiles; ++i) {
    const Tile& tile = tiles[i];
    const int64_t count = std::max<int64_t>(count_tiles(p, tile.m, tile.n), 1);
    const double elements = static_cast<double>(tile.m) * tile.n;
    const bool whole = p.m % tile.m == 0 && p.n % tile.n == 0;
    const double copy = whole ? Cost::kScalarCopy : Cost::kScalarCopyAtEdge;
    const double scalar_copies =
        kind.threads_copy ? ((a_scalar ? tile.m : 0) + (b_scalar ? b_share * tile.n : 0)) * copy
                          : 0;
    // Cycles per k with `blocks` resident blocks.
    const auto step = [&](int64_t blocks) {
      if (blocks == 0) return 0.0;
      const auto count = static_cast<double>(blocks);
      return std::max(tile.alone, count * elements / tile.rate) + count * scalar_copies;
    };
    int64_t next = 0;
    for (int64_t splits = 1; splits != 0; splits = next) {
      const int64_t longest = ceil_div(chunks, splits);
      next = next_k_splits(chunks, splits);
      if (next > kMaxSplits || next * chunks > kMaxProduct) next = 0;
      const auto k = static_cast<double>(std::min(longest * kChunk, p.k));
      const double reduce = splits == 1
                                ? 0
                                : Cost::kReduceLaunch + Cost::kReduceElement * elements *
                                                            static_cast<double>(count * chunks) /
                                                            static_cast<double>(sms);
      for (int blocks = 1; blocks <= tile.blocks; ++blocks) {
        const int64_t wave = sms * blocks, all = count * splits;
        const int64_t full = all / wave, left = all % wave;
        const double steps = static_cast<double>(full) * step(blocks) +
                             step(last_wave_blocks(kind, full, left, blocks, sms));
        const auto changes = static_cast<double>(full + (left > 0) - 1);
        const double next_tile = splits == 1 ? kind.next_tile : Cost::kNextTileSplitK;
        const double cycles = changes * next_tile + steps * k + reduce;
        if (best.k_splits == 0 || cycles < best.cycles) {
          best = {static_cast<int>(i), tile.m, tile.n, splits, blocks, 0, cycles};
        }
      }
    }
  }
  best.blocks = count_tiles(p, best.m, best.n) * best.k_splits;
  return best;
}

inline Plan simt_cp_async_plan_of(const Problem& p, int64_t sms, double b_share) {
  constexpr SimtKind kKind{
      .threads_copy = true, .persistent = false, .next_tile = h200::Simt::kNextTile};
  Plan plan = fastest_simt_plan(h200::kSimtCpAsyncTiles, kKind, p, sms, b_share);
  const double dram = simt_dram_cycles(p, h200::kSimtDramOfThreads, sms, b_share);
  plan.cycles = h200::kLaunchSimtCpAsync + std::max(plan.cycles, dram);
  return plan;
}
inline Plan simt_cp_async_plan(const Problem& p, int64_t sms) {
  return simt_cp_async_plan_of(p, sms, 1);
}

// simt_tma loads MN-major operands that a tensor map can describe, and transposes others first.
inline bool simt_tma_accepts(const Problem& p) {
  return fits_tma_coords(p) && fits_tma_rank(p.batch, p.a) && fits_tma_rank(p.batch, p.b);
}
inline Plan simt_tma_plan(const Problem& p, int64_t sms) {
  constexpr SimtKind kKind{
      .threads_copy = false, .persistent = true, .next_tile = h200::Simt::kNextTilePersistent};
  Plan plan = fastest_simt_plan(h200::kSimtTmaTiles, kKind, p, sms);
  const int64_t rows = is_tma_aligned_mn_major(p.batch, p.a) ? 0 : p.m;
  const int64_t cols = is_tma_aligned_mn_major(p.batch, transposed(p.b)) ? 0 : p.n;
  const double launch = h200::kLaunchSimtTma + (rows + cols > 0 ? h200::kTransposeLaunch : 0);
  plan.cycles = launch + rewrite_cycles(p, sms, rows, cols, h200::kTransposeFloat32) + plan.cycles;
  return plan;
}

// The teams of an SM do not begin and end together. The SM is busy for as long as all its tiles
// take at its best rate, or, with few tiles, for as long as rounds of single tiles take.
inline Plan simt_small_plan_of(const Problem& p, int64_t sms, double b_share) {
  using Cost = h200::Simt;
  Plan best{.k_splits = 0};
  for (size_t i = 0; i < std::size(h200::kSimtSmallTiles); ++i) {
    const h200::SimtSmallTile& tile = h200::kSimtSmallTiles[i];
    const int64_t tiles = ceil_div(count_tiles(p, tile.m, tile.n), sms);
    const auto rounds = static_cast<double>(ceil_div(tiles, tile.blocks));
    const auto k = static_cast<double>(p.k);
    const double copies =
        (is_a_vectorized(p) ? 0 : tile.m) + (is_b_vectorized(p) ? 0 : b_share * tile.n);
    const double step = tile.m * tile.n / tile.rate + copies * Cost::kSmallScalarCopies;
    const double each = tile.overhead + step * k;
    double cycles = std::max(static_cast<double>(tiles) * each, rounds * tile.alone * k);
    if (tile.n == 16 && std::max(p.m, p.n) > 16) {  // it reads parts of rows
      cycles = std::max(cycles, simt_dram_cycles(p, h200::kSimtDramOf16x16, sms, b_share));
    }
    if (i == 0 || cycles < best.cycles) {
      best = {static_cast<int>(i), tile.m, tile.n, 1, tile.blocks, 0, cycles};
    }
  }
  best.blocks = count_tiles(p, best.m, best.n);
  const double dram = simt_dram_cycles(p, h200::kSimtDramOfTeams, sms, b_share);
  best.cycles = h200::kLaunchSimtSmall + std::max(best.cycles, dram);
  return best;
}
inline Plan simt_small_plan(const Problem& p, int64_t sms) { return simt_small_plan_of(p, sms, 1); }

inline bool simt_skinny_accepts(const Problem& p) {
  return fits_tma_coords(p) && is_tma_aligned(p.batch, longer_operand(p));
}
// The smallest tile that holds all rows, or else the largest. A work tile is one chunk of K.
template <size_t kTiles>
Plan simt_skinny_plan_of(const h200::SimtSkinnyTile (&tiles)[kTiles], const Problem& p, int64_t sms,
                         double b_share) {
  using Cost = h200::Simt;
  const int64_t rows = std::min(p.m, p.n), cols = std::max(p.m, p.n);
  size_t i = 0;
  while (i + 1 < kTiles && tiles[i].m < rows) ++i;
  const h200::SimtSkinnyTile& tile = tiles[i];
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const int64_t work_tiles =
      ceil_div(rows, tile.m) * ceil_div(cols, tile.n) * chunks * p.batch.count;
  const auto each = static_cast<double>(ceil_div(work_tiles, sms));
  const double step = each <= 1 ? tile.alone : each * tile.m * tile.n / tile.rate;
  const auto k = static_cast<double>(std::min<int64_t>(p.k, kChunk));
  const double changes = std::max(each - 1, 0.0) * Cost::kSkinnyNextTile / tile.blocks;
  const double dram = simt_dram_cycles(p, h200::kSimtDram, sms, b_share);
  const double cycles = std::max(step * k + changes, dram);
  const bool long_is_a = p.m > p.n;
  Plan plan{.tile = static_cast<int>(i),
            .m = long_is_a ? tile.n : tile.m,
            .n = long_is_a ? tile.m : tile.n,
            .k_splits = chunks,
            .blocks_per_sm = tile.blocks,
            .cycles = h200::kLaunchSimtSkinny + (cycles + (chunks > 1 ? Cost::kSkinnyReduce : 0))};
  plan.blocks = count_tiles(p, plan.m, plan.n) * chunks;
  return plan;
}
inline Plan simt_skinny_plan(const Problem& p, int64_t sms) {
  return simt_skinny_plan_of(h200::kSimtSkinnyTiles, p, sms, 1);
}

// --- simt_gemv -----------------------------------------------------------------------------------

inline constexpr int kSimtGemvRows = 128;  // of the long operand, for a block
inline constexpr int64_t kSimtGemvMostK = 128;
// Bytes of a number of the long operand, and of the short one, in shared memory.
struct SimtGemvBytes {
  int of_long, of_short;
  constexpr int64_t smem(int64_t k, int cols) const {  // of a block
    return k * cols * of_short + kSimtGemvRows * (k | 1) * of_long;
  }
};
inline bool simt_gemv_is_k_major(const LongAndShort& sides) {
  return sides.long_operand.col_stride < sides.long_operand.row_stride;
}
inline bool simt_gemv_accepts(const Problem& p) { return fits_tma_coords(p); }
// Sizes of `sides` count numbers, which have `parts` floats.
inline Plan simt_gemv_plan_of(const Problem& p, int64_t sms, const LongAndShort& sides, int parts) {
  using Cost = h200::SimtGemv;
  constexpr const auto& kTiles = h200::kSimtGemvTiles;
  const bool complex = parts == 2, k_major = simt_gemv_is_k_major(sides);
  const size_t tiles = complex ? h200::kSimtGemvComplexTiles : std::size(kTiles);
  size_t i = 0;
  while (i + 1 < tiles && kTiles[i].cols < sides.short_count) ++i;
  const int cols = kTiles[i].cols;
  Plan plan{.tile = static_cast<int>(i),
            .m = sides.long_is_a ? kSimtGemvRows : cols,
            .n = sides.long_is_a ? cols : kSimtGemvRows};
  const int64_t row_blocks = ceil_div(sides.long_count, kSimtGemvRows);
  const int64_t col_tiles = ceil_div(sides.short_count, cols);
  plan.blocks = row_blocks * col_tiles * p.batch.count;
  const SimtGemvBytes bytes{4 * parts, complex && sides.long_is_a ? 16 : 4 * parts};
  const int64_t by_smem = kSharedMemoryOfSm / (bytes.smem(p.k / parts, cols) + 1024);
  const auto resident = static_cast<double>(std::min<int64_t>(kTiles[i].blocks, by_smem));
  const auto blocks = static_cast<double>(ceil_div(plan.blocks, sms));
  const auto k = static_cast<double>(p.k / parts);
  const int64_t stride = sides.long_is_a ? p.c.row_stride : p.c.col_stride * parts;
  const double sectors = stride > parts ? static_cast<double>(std::min<int64_t>(stride, 8)) / 8 : 0;
  // Columns of kSimtGemvRows that a block stores, in the mean.
  const double stored =
      sectors * static_cast<double>(sides.long_count * sides.short_count) /
      static_cast<double>(std::max<int64_t>(row_blocks * col_tiles, 1) * kSimtGemvRows);
  const double products = complex ? Cost::kComplexProducts : Cost::kProducts;
  const double each = Cost::kBlock + Cost::kStridedStores * parts * stored +
                      k * ((k_major ? Cost::kCopies : 0) + products * cols);
  const double alone = k * (complex   ? Cost::kComplexAlone
                            : k_major ? Cost::kAloneCopies
                                      : Cost::kAloneLoads);
  const double dram = simt_dram_cycles(p, h200::kSimtDramOfRows, sms, complex ? kShareOfB : 1);
  plan.cycles = h200::kLaunchSimtGemv +
                std::max({blocks * each, std::max(blocks / resident, 1.0) * alone, dram});
  return plan;
}
inline Plan simt_gemv_plan(const Problem& p, int64_t sms) {
  return simt_gemv_plan_of(p, sms, long_and_short(p), 1);
}

// --- simt_cluster --------------------------------------------------------------------------------

inline constexpr int kSimtMaxCluster = 8;  // blocks, which every Hopper GPU can run
inline constexpr int kSimtClusterThreads = 256;

// The pitch of operand rows in shared memory, in floats.
inline int64_t simt_cluster_pitch(int64_t k) {
  return ceil_div(std::min<int64_t>(k, kChunk), 32) * 32 + 4;
}
// The shared memory of a block, in bytes: operand rows, and the chunk sums of a cluster's blocks in
// one or two rounds.
inline int64_t simt_cluster_smem(const Problem& p, const h200::SimtClusterTile& tile,
                                 int64_t cluster) {
  const int64_t rows = std::min<int64_t>(std::min(p.m, p.n), tile.rows);
  const int64_t cols = std::min<int64_t>(std::max(p.m, p.n), tile.cols);
  const int64_t rounds = std::min<int64_t>(ceil_div(ceil_div(p.k, kChunk), cluster), 2);
  const int64_t sums = cluster == 1 ? 0 : rounds * kSimtMaxCluster * kSimtClusterThreads;
  return int64_t{sizeof(float)} * ((rows + cols) * simt_cluster_pitch(p.k) + sums);
}

// How a block copies `count` rows of an operand: as many at a time as row_lanes, a power of two.
struct SimtClusterCopy {
  int row_lanes;
  bool rows_adjacent;  // to adjacent threads
  int width;           // elements of a row that a thread copies at once

  // How often each thread copies, to have k of all rows.
  double copies(int64_t count, int64_t k) const {
    const int64_t at_once = int64_t{kSimtClusterThreads} / row_lanes * width;
    return static_cast<double>(ceil_div(count, row_lanes) * ceil_div(k, at_once));
  }
};
inline SimtClusterCopy simt_cluster_copy(const Problem& p, const Matrix& matrix, int64_t count) {
  constexpr int64_t kWarpRows = 8, kMostRows = 32;
  const bool k_major = count == 1 || matrix.col_stride <= matrix.row_stride;
  const bool vectors =
      p.k % 4 == 0 && is_vector_aligned(p.batch, matrix, matrix.col_stride, matrix.row_stride, 4);
  const int64_t width = vectors ? 4 : 1, all = kSimtClusterThreads;
  const auto up = [](int64_t x) { return static_cast<int64_t>(std::bit_ceil(uint64_t(x))); };
  const int64_t places = std::min(up(ceil_div(std::min<int64_t>(p.k, kChunk), width)), all);
  const int64_t most = k_major ? std::max(kWarpRows, all / places) : kMostRows;
  return {.row_lanes = static_cast<int>(std::min(up(count), most)),
          .rows_adjacent = !k_major,
          .width = static_cast<int>(width)};
}

inline bool simt_cluster_accepts(const Problem& p) { return fits_tma_coords(p); }
// A block that is alone on an SM waits for its copies and its chain of FMAs; blocks that share an
// SM take its issue slots.
inline Plan simt_cluster_plan(const Problem& p, int64_t sms) {
  using Cost = h200::SimtCluster;
  const auto [long_is_a, longer, shorter, all_cols, all_rows] = long_and_short(p);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const int64_t longest = std::min<int64_t>(p.k, kChunk);
  Plan best;
  for (size_t i = 0; i < std::size(h200::kSimtClusterTiles); ++i) {
    const h200::SimtClusterTile& tile = h200::kSimtClusterTiles[i];
    const int64_t rows = std::min<int64_t>(all_rows, tile.rows);
    const int64_t cols = std::min<int64_t>(all_cols, tile.cols);
    const int m = long_is_a ? tile.cols : tile.rows, n = long_is_a ? tile.rows : tile.cols;
    const double copies_of_chunk = simt_cluster_copy(p, shorter, rows).copies(rows, longest) +
                                   simt_cluster_copy(p, longer, cols).copies(cols, longest);
    for (const int64_t cluster : {std::min<int64_t>(chunks, kSimtMaxCluster), int64_t{1}}) {
      const int64_t usable_sms = sms_for_clusters(sms, cluster);
      const int64_t blocks = count_tiles(p, m, n) * cluster;
      const int64_t smem = simt_cluster_smem(p, tile, cluster);
      const int64_t resident = std::clamp<int64_t>(kSharedMemoryOfSm / (smem + 1024), 1, 3);
      const auto rounds = static_cast<double>(ceil_div(chunks, cluster));
      const double k = cluster == 1 ? static_cast<double>(p.k) : rounds * kChunk;
      const double copies =
          copies_of_chunk * k / static_cast<double>(std::max<int64_t>(longest, 1));
      const double warps = static_cast<double>(ceil_div(rows * cols, 32));
      const double alone = rounds * Cost::kAlone +
                           k * std::max(Cost::kChain, warps * Cost::kWarpReads) +
                           copies * Cost::kCopyAlone;
      const double shared = rounds * Cost::kShared + copies * Cost::kCopyShared;
      const auto waves = static_cast<double>(ceil_div(blocks, usable_sms * resident));
      const double share = static_cast<double>(blocks) / static_cast<double>(usable_sms);
      const double cycles = std::max(waves * alone, share * shared);
      keep_faster(best, {.tile = static_cast<int>(i),
                         .m = m,
                         .n = n,
                         .k_splits = cluster,
                         .blocks = blocks,
                         .cycles = cycles});
    }
  }
  const double dram = simt_dram_cycles(p, h200::kSimtDramOfThreads, sms);
  best.cycles = Cost::kLaunch + std::max(best.cycles, dram);
  return best;
}

// --- a complex B, read in place ------------------------------------------------------------------

// The problem with the parts of B's numbers as its B.
inline Problem with_parts_of_b(Problem p) {
  p.b = parts_of_b(p.b);
  return p;
}

inline std::optional<Plan> simt_small_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                   int64_t sms) {
  return simt_small_plan_of(with_parts_of_b(p), sms, kShareOfB);
}

// Returns whether B' has other signs than those of -y in b = x + iy.
inline bool is_signed(const SignsOfB& signs) { return signs.x_even || signs.y_even || signs.x_odd; }
inline std::optional<Plan> simt_cp_async_complex_plan(const Plan&, const Problem& p,
                                                      const SignsOfB& signs, int64_t sms) {
  Plan plan = simt_cp_async_plan_of(with_parts_of_b(p), sms, kShareOfB);
  if (is_signed(signs)) plan.cycles *= h200::Simt::kComplexBSigned;
  if (plan.tile == 0) plan.cycles *= h200::Simt::kComplexBLargeTile;
  return plan;
}

// B has to be the long operand, and a tensor map has to describe the parts of its numbers.
inline std::optional<Plan> simt_skinny_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                    int64_t sms) {
  if (p.m > p.n || !is_tma_aligned(p.batch, with_parts_of_b(p).b)) return std::nullopt;
  return simt_skinny_plan_of(h200::kSimtSkinnyComplexTiles, p, sms, kShareOfB);
}

// The sides of a complex product, in numbers, with strides in floats. in_place_a() and in_place_b()
// give means of two strides along the sides that count parts: K, and the columns of B.
inline LongAndShort simt_gemv_complex_sides(Problem p) {
  p.n /= 2;
  p.a.col_stride *= 2, p.b.row_stride *= 2, p.b.col_stride *= 2;
  return long_and_short(p);
}
// Numbers are read 8 bytes at once.
inline std::optional<Plan> simt_gemv_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                  int64_t sms) {
  const auto is_aligned = [](const Matrix& matrix) {
    return reinterpret_cast<uintptr_t>(matrix.data) % (2 * sizeof(float)) == 0;
  };
  if (!is_aligned(p.a) || !is_aligned(p.b)) return std::nullopt;
  return simt_gemv_plan_of(p, sms, simt_gemv_complex_sides(p), 2);
}

// --- workspaces ----------------------------------------------------------------------------------

// The partial sums of a split K: of whole tiles, for each chunk.
inline int64_t simt_partial_sums_bytes(const Problem& p, const Plan& plan) {
  if (plan.k_splits == 1) return 0;
  return ceil_div(p.k, kChunk) * count_tiles(p, plan.m, plan.n) * plan.m * plan.n *
         int64_t{sizeof(float)};
}
inline WorkspaceBytes simt_cp_async_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {simt_partial_sums_bytes(p, plan)};
}
// The copy of an operand that simt_tma transposes: its pitch, and its bytes.
inline int64_t simt_transposed_pitch(int64_t mn) { return ceil_div(mn, 4) * 4; }
inline int64_t simt_transposed_bytes(const Problem& p, const Matrix& matrix, int64_t mn) {
  if (is_tma_aligned_mn_major(p.batch, matrix)) return 0;
  return stored_matrices(p.batch, matrix) * p.k * simt_transposed_pitch(mn) *
         int64_t{sizeof(float)};
}
inline WorkspaceBytes simt_tma_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {simt_transposed_bytes(p, p.a, p.m) + simt_transposed_bytes(p, transposed(p.b), p.n),
          simt_partial_sums_bytes(p, plan)};
}
// The sums of work tiles, one chunk each, if there are several chunks.
inline int64_t simt_skinny_partial_sums_bytes(const Problem& p) {
  const int64_t chunks = ceil_div(p.k, kChunk), cols = h200::kSimtSkinnyCols;
  if (chunks <= 1) return 0;
  return p.batch.count * chunks * std::min(p.m, p.n) * ceil_div(std::max(p.m, p.n), cols) * cols *
         int64_t{sizeof(float)};
}
inline WorkspaceBytes simt_skinny_workspace(const Problem& p, const Plan&, int64_t) {
  return {simt_skinny_partial_sums_bytes(p)};
}

}  // namespace tiled
