#pragma once
// Plans of the mma kernels, and of tf32_tma, which has the same main loop. Functions of one operand
// take A or the transpose of B; its `rows` are then B's columns (core/problem.h).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "core/order_mma.h"
#include "core/stored_batch.h"
#include "kernels/common/cost_model.h"
#include "kernels/mma/costs_h200.h"

namespace tiled {

// --- layouts -------------------------------------------------------------------------------------

// The width of a tile's narrow box, or 0. Boxes of an MN-major B have 64 columns; in tiles of 32
// and 96 columns one has 32. A tile of 160 columns loads three whole boxes and leaves half of the
// last one unused, which costs less than a narrow box.
constexpr int mma_narrow_box(int n) { return n == 96 || n == 32 ? 32 : 0; }

// Returns whether boxes of 64 rows of an MN-major operand may read past the end of a stored row,
// into the next one. TMA takes longer to zero-fill the part of a box outside the matrix than to
// load it, unless stored rows are so short that all blocks request the same few cache lines. Boxes
// of the last stage of K never read on, since the matrix may end there; boxes of the stage before
// it end within the last stage's rows.
inline bool mma_reads_past_end(const Matrix& matrix, int64_t rows, int64_t k) {
  const int64_t last = (k - 1) % 64 + 1;
  return matrix.col_stride >= 16 && ceil_div(rows, 64) * 64 - rows <= last * matrix.col_stride;
}

// Returns whether an MN-major operand of few rows is transposed to K-major first: if it must be
// copied anyway, if its boxes would be zero-filled, or if boxes that read on would load its
// elements too often.
inline bool mma_transposes_to_k_major(const Problem& p, const Matrix& matrix, int64_t rows) {
  constexpr int64_t kOften = 32;
  const bool loads_well = is_tma_aligned(p.batch, matrix, sizeof(uint16_t)) &&
                          mma_reads_past_end(matrix, rows, p.k) &&
                          p.k <= kOften * matrix.col_stride;
  return is_mn_major(matrix) && rows < 64 && p.k >= 256 && !loads_well;
}

// Returns whether the operand must be copied to an aligned workspace before TMA can load it.
inline bool mma_must_align(const Problem& p, const Matrix& matrix, int64_t rows) {
  return !is_tma_aligned(p.batch, matrix, sizeof(uint16_t)) ||
         mma_transposes_to_k_major(p, matrix, rows);
}

// The strides of an operand as TMA loads it: its own, or its aligned copy's. A copy stays
// K-major or MN-major, unless few rows are transposed to K-major. A single row becomes K-major,
// whatever its strides. `is_b` decides between equal strides.
//
// Rows of a copy are aligned to cache lines, so that a box requests each line once. K-major rows
// shorter than a line are aligned to 16 bytes, since the copy zero-fills the rest of a row.
inline Matrix mma_loaded_layout(const Problem& p, const Matrix& matrix, int64_t rows, bool is_b) {
  if (!mma_must_align(p, matrix, rows)) return matrix;
  const bool k_is_closer = is_b ? p.k != 1 && (rows == 1 || matrix.col_stride < matrix.row_stride)
                                : rows == 1 || (p.k != 1 && matrix.col_stride <= matrix.row_stride);
  const bool k_major = k_is_closer || mma_transposes_to_k_major(p, matrix, rows);
  constexpr int64_t kLine = kCacheLineBytes / int64_t{sizeof(uint16_t)}, kVector = 8;
  const int64_t length = k_major ? p.k : rows;
  const int64_t multiple = length >= kLine || !k_major ? kLine : kVector;
  const int64_t pitch = ceil_div(length, multiple) * multiple;
  Matrix copy = matrix;
  copy.row_stride = k_major ? pitch : 1;
  copy.col_stride = k_major ? 1 : pitch;
  return copy;
}

// Requests to L2 for each row of a box. A row that is not aligned to cache lines spans two of them,
// and takes up to about twice as long.
inline double mma_requests_per_row(const Matrix& loaded) {
  const int64_t pitch = std::max(loaded.row_stride, loaded.col_stride) * int64_t{sizeof(uint16_t)};
  const double aligned = static_cast<double>(std::gcd(pitch, kCacheLineBytes)) / kCacheLineBytes;
  return 1 + h200::Mma::kSplitLine * (1 - aligned);
}

// The problem with A and B swapped, which computes C transposed. Its bias belongs to rows.
inline Problem swap_ab(Problem p) {
  std::swap(p.m, p.n);
  p.a = transposed(std::exchange(p.b, transposed(p.a)));
  p.c = transposed(p.c);
  return p;
}
// The plan of a problem with A and B swapped, with the tile as C sees it.
inline Plan swap_tile_back(Plan plan) {
  std::swap(plan.m, plan.n);
  return plan;
}

// --- the model -----------------------------------------------------------------------------------

// Cycles to load both operands once from DRAM, by `sms` SMs of that bandwidth each.
inline double mma_dram_cycles(const Problem& p, double sms, double bandwidth) {
  const auto elements = static_cast<double>((p.m + p.n) * p.batch.count) * static_cast<double>(p.k);
  return 2 * elements / sms / bandwidth;
}

// The options by which fastest_mma_plan() chooses a tile.
struct MmaChoice {
  double slowdown = 1;      // scales every tile's compute time
  bool splits_k = true;     // the kernel has split-K
  bool mn_major = false;    // a tile has its rate_mn_major
  bool lines_only = false;  // leaves out tiles for rows that are not aligned to cache lines
};

// The fastest tile and K splits. A tile takes the longest of compute, DRAM, and L2 time; a few
// blocks cannot saturate DRAM.
template <class Tile, size_t kTiles>
Plan fastest_mma_plan(const Tile (&tiles)[kTiles], const Problem& p, int64_t sms,
                      const MmaChoice& choice) {
  using Cost = h200::Mma;
  const auto all = static_cast<double>(sms), k = static_cast<double>(p.k);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, mma_order::kChunk), 1);
  const bool is_tf32 = p.dtype == DType::kFloat32;  // its operands are aligned K-major copies
  const Matrix a = mma_loaded_layout(p, p.a, p.m, false);
  const Matrix b = mma_loaded_layout(p, transposed(p.b), p.n, true);
  const double requests_a = is_tf32 ? 1 : mma_requests_per_row(a);
  const double requests_b = is_tf32 ? 1 : mma_requests_per_row(b);
  const bool a_mn_major = !is_tf32 && is_mn_major(a), b_mn_major = !is_tf32 && is_mn_major(b);
  // Rows of a K step that a tile loads; an MN-major operand's come in boxes of 64.
  const auto rows_loaded = [](bool mn_major, int64_t rows) {
    return static_cast<double>(mn_major ? ceil_div(rows, 64) * 64 : rows);
  };
  Plan best{.k_splits = 0};
  for (size_t i = 0; i < kTiles; ++i) {
    const Tile& tile = tiles[i];
    const double rate = choice.mn_major ? tile.rate_mn_major : tile.rate;
    if (rate == 0) continue;
    if constexpr (requires { tile.rows; }) {
      if (is_tf32 && tile.tf32_stages == 0) continue;
      if (choice.lines_only && tile.rows == h200::Rows::kNotAlignedToLines) continue;
    }
    const int64_t count = count_tiles(p, tile.m * tile.cluster, tile.n) * tile.cluster;
    const double elements = static_cast<double>(tile.m) * tile.n;
    const bool partial_box = choice.mn_major && (tile.n - mma_narrow_box(tile.n)) % 64 != 0;
    const double rows = rows_loaded(a_mn_major, std::min<int64_t>(tile.m, p.m));
    const double cols = rows_loaded(b_mn_major, std::min<int64_t>(tile.n, p.n));
    const double requests = rows * requests_a + cols / tile.cluster * requests_b;
    const double l2_of_all = static_cast<double>(count) * requests * 2 * k / all /
                             (tile.n < 64 ? Cost::kL2Narrow : Cost::kL2);
    constexpr int64_t kBlocksPerSm = 4;  // work tiles, at most, if K is split
    const int64_t most =
        choice.splits_k ? ceil_div(kBlocksPerSm * sms, std::max<int64_t>(count, 1)) : 1;
    for (int64_t splits = 1; splits != 0 && splits <= most;
         splits = next_k_splits(chunks, splits)) {
      const int64_t chunks_each = ceil_div(chunks, splits);
      const double longest = static_cast<double>(std::min(chunks_each * mma_order::kChunk, p.k));
      const auto work = static_cast<double>(count * splits);
      const double share = work / all;
      const double uneven =
          (share > 0.5 && share < 0.7) || (share > 1 && share < 1.75) ? Cost::kUneven : 1;
      const double loading = std::min(all, work * Cost::kDramBlock / Cost::kDram);
      const double waves = std::ceil(share);
      const double l2 = std::max(l2_of_all, waves * requests * 2 * longest / Cost::kL2Block);
      // The reduction of tf32 has a block for each tile, the others' one for a few of its columns.
      const double tiles_read =
          is_tf32 ? static_cast<double>(ceil_div(count, sms)) : static_cast<double>(count) / all;
      const double reduce = sizeof(float) * elements *
                            (waves * static_cast<double>(chunks_each) / Cost::kSumsWritten +
                             tiles_read * static_cast<double>(chunks) / Cost::kSumsRead);
      const double cycles = waves * tile.overhead +
                            (splits == 1 ? 0 : Cost::kReduceLaunch + reduce) +
                            std::max({waves * choice.slowdown * elements * longest / rate,
                                      (partial_box ? Cost::kPartialBox : 1) * uneven *
                                          mma_dram_cycles(p, loading, Cost::kDram),
                                      l2});
      if (best.k_splits == 0 || cycles < best.cycles) {
        best = {static_cast<int>(i), tile.m, tile.n, splits, 1, 0, cycles};
      }
    }
  }
  return best;
}

// --- workspaces ----------------------------------------------------------------------------------

// The aligned copy of an operand, if TMA needs one.
inline int64_t mma_copy_bytes(const Problem& p, const Matrix& matrix, int64_t rows, bool is_b) {
  if (!mma_must_align(p, matrix, rows)) return 0;
  const Matrix copy = mma_loaded_layout(p, matrix, rows, is_b);
  const int64_t lines = copy.col_stride == 1 ? rows : p.k;
  return stored_matrices(p.batch, matrix) * lines * std::max(copy.row_stride, copy.col_stride) *
         int64_t{sizeof(uint16_t)};
}
// The tile of a cluster of blocks, as C sees it, and the accumulators of a block. A warpgroup has
// accumulators for 64 rows, also if it multiplies fewer.
struct MmaClusterShape {
  int m, n, cluster;
  int64_t accumulators;
  int64_t count(const Problem& own) const { return count_tiles(own, m * cluster, n); }
};
// The sums of each chunk of whole tiles if K is split. `own`: the problem as the tile sees it.
inline int64_t mma_partial_sums_bytes(const Problem& own, const MmaClusterShape& tile) {
  return ceil_div(own.k, mma_order::kChunk) * tile.count(own) * tile.cluster * tile.accumulators *
         int64_t{sizeof(float)};
}
// The totals of the tiles that are being computed while chunks follow: `elements` of each tile are
// neither in registers nor in shared memory.
inline int64_t mma_totals_bytes(const Problem& own, const MmaClusterShape& tile, int64_t elements,
                                int64_t sms) {
  if (own.k <= mma_order::kChunk) return 0;
  return std::min(tile.count(own), sms / tile.cluster) * tile.cluster * elements *
         int64_t{sizeof(float)};
}
// What a launch takes at most. The kernel alone knows how much of the totals it keeps elsewhere.
template <class Tile>
int64_t mma_sums_bytes(const Problem& own, const Plan& plan, const Tile& tile, int64_t sms) {
  int64_t rows = tile.m;
  if constexpr (requires { tile.warpgroup_rows; }) rows = tile.m / tile.warpgroup_rows * 64;
  const MmaClusterShape shape{tile.m, tile.n, tile.cluster, rows * tile.n};
  return plan.k_splits > 1 ? mma_partial_sums_bytes(own, shape)
                           : mma_totals_bytes(own, shape, shape.accumulators, sms);
}

// --- mma_tma and tf32_tma ------------------------------------------------------------------------

// mma_tma swaps A and B if C has few columns, and more rows than one wave of 64-row tiles
// covers: wide tiles then cover the transposed C in one wave. Its epilogue adds a bias to columns
// only, so a product with a bias is not swapped.
inline bool mma_tma_swaps_ab(const Problem& p, int64_t sms) {
  return p.n <= 16 && p.m > 64 * sms && p.k >= 1024 && p.epilogue.bias == nullptr;
}

inline Plan tma_tiles_plan(const Problem& p, int64_t sms) {
  if (p.dtype == DType::kFloat32) {
    return fastest_mma_plan(h200::kMmaTmaTiles, p, sms, {.lines_only = true});
  }
  const Matrix a = mma_loaded_layout(p, p.a, p.m, false);
  const Matrix b = mma_loaded_layout(p, transposed(p.b), p.n, true);
  const bool lines = mma_requests_per_row(a) == 1 && mma_requests_per_row(b) == 1;
  return fastest_mma_plan(h200::kMmaTmaTiles, p, sms,
                          {.mn_major = is_mn_major(b), .lines_only = lines});
}

inline bool mma_tma_accepts(const Problem& p) {
  return fits_tma_coords(p) && fits_tma_rank(p.batch, p.a) && fits_tma_rank(p.batch, p.b);
}
inline Plan mma_tma_plan(const Problem& p, int64_t sms) {
  Plan plan = mma_tma_swaps_ab(p, sms) ? swap_tile_back(tma_tiles_plan(swap_ab(p), sms))
                                       : tma_tiles_plan(p, sms);
  const int64_t rows = mma_must_align(p, p.a, p.m) ? p.m : 0;
  const int64_t cols = mma_must_align(p, transposed(p.b), p.n) ? p.n : 0;
  plan.blocks = count_tiles(p, plan.m, plan.n) * plan.k_splits;
  plan.cycles =
      h200::kLaunchMmaTma + rewrite_cycles(p, sms, rows, cols, h200::kAlign16Bit) + plan.cycles;
  return plan;
}

inline WorkspaceBytes mma_tma_workspace(const Problem& p, const Plan& plan, int64_t sms) {
  const Problem own = mma_tma_swaps_ab(p, sms) ? swap_ab(p) : p;
  return {mma_copy_bytes(own, own.a, own.m, false) +
              mma_copy_bytes(own, transposed(own.b), own.n, true),
          mma_sums_bytes(own, plan, h200::kMmaTmaTiles[plan.tile], sms)};
}

// --- mma_unaligned -------------------------------------------------------------------------------

// mma_unaligned reads the longer operand unaligned, as A: it swaps A and B if that is B.
inline bool mma_unaligned_swaps_ab(const Problem& p) { return p.n > p.m; }

inline bool mma_unaligned_accepts(const Problem& p) {
  const Matrix& longer = mma_unaligned_swaps_ab(p) ? p.b : p.a;
  return mma_tma_accepts(p) && has_unit_stride(longer) &&
         !is_tma_aligned(p.batch, longer, size_of(p.dtype));
}
inline Plan mma_unaligned_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Mma;
  const bool swaps = mma_unaligned_swaps_ab(p);
  const Problem own = swaps ? swap_ab(p) : p;
  const bool mn_major = is_mn_major(own.a);
  const bool copies_b = mma_must_align(own, transposed(own.b), own.n);
  Plan plan = fastest_mma_plan(h200::kMmaUnalignedTiles, own, sms, {.mn_major = mn_major});
  if (mn_major) plan.cycles *= Cost::kUnalignedMnMajor;
  if (own.n == 1) {
    plan.cycles *= Cost::kUnalignedSingle;
  } else if (copies_b) {
    plan.cycles += Cost::kUnalignedWait;
  }
  if (swaps) plan = swap_tile_back(plan);
  plan.blocks = count_tiles(p, plan.m, plan.n) * plan.k_splits;
  plan.cycles = h200::kLaunchMmaUnaligned +
                rewrite_cycles(p, sms, 0, copies_b ? own.n : 0, h200::kAlign16Bit) + plan.cycles;
  return plan;
}

inline WorkspaceBytes mma_unaligned_workspace(const Problem& p, const Plan& plan, int64_t sms) {
  const Problem own = mma_unaligned_swaps_ab(p) ? swap_ab(p) : p;
  return {mma_copy_bytes(own, transposed(own.b), own.n, true),
          mma_sums_bytes(own, plan, h200::kMmaUnalignedTiles[plan.tile], sms)};
}

// --- mma_direct ----------------------------------------------------------------------------------

// mma_direct swaps A and B if its tile has more rows than columns and C has fewer.
inline bool mma_direct_swaps_ab(const Problem& p, const h200::MmaDirectTile& tile) {
  return tile.rows > tile.cols && p.n > p.m;
}
// How a lane of mma_direct loads its elements of a fragment.
enum class MmaDirectLoads {
  kKMajorPairs,   // two adjacent k at a time: rows are K-major and 4-byte aligned, and K is even
  kMnMajorPairs,  // two adjacent rows at a time: k are 4-byte aligned, and rows even in number
  kElements,
};
inline MmaDirectLoads mma_direct_loads(const Problem& p, const Matrix& matrix, int64_t rows) {
  const auto pairs = [&](int64_t inner, int64_t outer) {
    return is_vector_aligned(p.batch, matrix, inner, outer, 2, sizeof(uint16_t));
  };
  using enum MmaDirectLoads;
  if (p.k % 2 == 0 && pairs(matrix.col_stride, matrix.row_stride)) return kKMajorPairs;
  if (rows % 2 == 0 && pairs(matrix.row_stride, matrix.col_stride)) return kMnMajorPairs;
  return kElements;
}
// Returns whether four adjacent columns of C, as the tile sees it, are stored at once.
inline bool mma_direct_stores_x4(const Problem& p, const h200::MmaDirectTile& tile) {
  const OutMatrix c = mma_direct_swaps_ab(p, tile) ? transposed(p.c) : p.c;
  return is_vector_aligned(p.batch, c, c.col_stride, c.row_stride, 4, sizeof(uint16_t));
}

// A warp waits for its loads, `ahead` steps of K at a time, or the SM is busy with all its warps.
inline Plan mma_direct_plan(const Problem& p, int64_t sms) {
  using Cost = h200::MmaDirect;
  using enum MmaDirectLoads;
  const bool elements = mma_direct_loads(p, p.a, p.m) == kElements ||
                        mma_direct_loads(p, transposed(p.b), p.n) == kElements;
  const auto steps = static_cast<double>(ceil_div(p.k, mma_order::kDepth));
  Plan best;
  for (size_t i = 0; i < std::size(h200::kMmaDirectTiles); ++i) {
    const h200::MmaDirectTile& tile = h200::kMmaDirectTiles[i];
    int m = tile.rows * 16, n = tile.cols * 16;
    if (mma_direct_swaps_ab(p, tile)) std::swap(m, n);
    const int64_t tiles = count_tiles(p, m, n);
    const auto rows = static_cast<double>(std::min<int64_t>(p.m, m));
    const auto cols = static_cast<double>(std::min<int64_t>(p.n, n));
    const double trips = std::ceil(steps / tile.ahead);
    const double alone = trips * Cost::kTrip + steps * Cost::kProduct;
    const double load = elements ? Cost::kLoadElements : Cost::kLoadPairs;
    const double store = mma_direct_stores_x4(p, tile) ? Cost::kStoreX4 : Cost::kStore;
    const double busy = Cost::kTile + steps * (rows + cols) / 16 * load + rows * cols / 256 * store;
    const auto warps = static_cast<double>(sms * tile.blocks * 4);
    const double cycles = std::max({std::ceil(static_cast<double>(tiles) / warps) * alone,
                                    static_cast<double>(tiles) / static_cast<double>(sms) * busy,
                                    mma_dram_cycles(p, static_cast<double>(sms), Cost::kDram)});
    keep_faster(best,
                {.tile = static_cast<int>(i), .m = m, .n = n, .blocks = tiles, .cycles = cycles});
  }
  best.cycles += Cost::kLaunch;
  return best;
}

// --- mma_sync ------------------------------------------------------------------------------------

inline Plan mma_sync_plan(const Problem& p, int64_t sms) {
  const bool aligned = is_16_byte_aligned(p.batch, p.a, sizeof(uint16_t)) &&
                       is_16_byte_aligned(p.batch, p.b, sizeof(uint16_t));
  const MmaChoice choice{.slowdown = aligned ? 1 : h200::Mma::kSyncScalar, .splits_k = false};
  Plan plan = fastest_mma_plan(h200::kMmaSyncTiles, p, sms, choice);
  plan.blocks = count_tiles(p, plan.m, plan.n);
  plan.cycles = h200::kLaunchMmaSync + plan.cycles;
  return plan;
}

}  // namespace tiled
