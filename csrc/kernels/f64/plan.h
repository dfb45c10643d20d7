#pragma once
// The plans of f64_mma, a tile and K splits, of f64_direct, a tile, and of f64_gemv.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "kernels/common/cost_model.h"
#include "kernels/f64/costs_h200.h"

namespace tiled {

// Several bounds of a kernel's cycles as one, which is nearly the largest, and more if two are
// close. std::hypot of two numbers needs a newer libm than the wheel may.
inline double root_of_squares(double x, double y, double z = 0) {
  return std::sqrt(x * x + y * y + z * z);
}

// The reduction of chunk sums.
inline double f64_reduce_cycles(const Problem& p, int64_t chunks, int64_t sms) {
  const auto sums = static_cast<double>(p.batch.count * p.m * p.n * chunks);
  return h200::F64Reduce::kLaunch + h200::F64Reduce::kElement * sums / static_cast<double>(sms);
}

// --- f64_mma -------------------------------------------------------------------------------------

// Cycles of an SM for one k of `blocks` blocks that share it: its warps wait for each other, or
// keep the tensor cores busy.
template <class Tile>
double f64_tile_step(const Tile& tile, int64_t blocks) {
  return std::max(tile.alone, static_cast<double>(blocks) * tile.m * tile.n / tile.rate);
}

// The fastest of the tiles of f64_mma or f64_tma, and K splits. `read`: cycles in which one SM
// would read both operands; `store`: cycles of a tile beside its products and its overhead.
template <class Tiles>
Plan f64_tile_plan(const Tiles& tiles, const Problem& p, int64_t sms, double read, double store,
                   bool chunk_splits) {
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const auto all = static_cast<double>(sms);
  Plan best{.k_splits = 0};
  for (size_t i = 0; i < std::size(tiles); ++i) {
    const auto& tile = tiles[i];
    const int64_t count = count_tiles(p, tile.m, tile.n);
    constexpr int64_t kMaxSplits = 65535;  // enough for the SMs of any GPU
    for (int64_t splits = 1; splits != 0 && splits <= kMaxSplits;
         splits = splits < chunks && chunk_splits ? chunks : next_k_splits(chunks, splits)) {
      const auto k = static_cast<double>(std::min(ceil_div(chunks, splits) * kChunk, p.k));
      const int64_t work = count * splits, wave = sms * tile.blocks;
      const int64_t full = work / wave, left = ceil_div(work % wave, sms);
      const double overhead = tile.overhead + store;
      const double waves =
          static_cast<double>(full) * (f64_tile_step(tile, tile.blocks) * k + overhead) +
          (left > 0 ? f64_tile_step(tile, left) * k + overhead : 0);
      const double reduce = splits == 1 ? 0 : f64_reduce_cycles(p, chunks, sms);
      const double busy = std::min(all, static_cast<double>(std::max<int64_t>(work, 1)));
      const double cycles = root_of_squares(waves, read / busy) + reduce;
      if (best.k_splits == 0 || cycles < best.cycles) {
        best = {static_cast<int>(i), tile.m, tile.n, splits, tile.blocks, work, cycles};
      }
    }
  }
  return best;
}

// --- f64_mma -------------------------------------------------------------------------------------

// A tile's first row and column are 32-bit.
inline bool f64_mma_accepts(const Problem& p) { return fits_tma_coords(p); }

// The first tiles, which are compiled for Hopper alone, and for a real B.
inline constexpr int kF64MmaLargeTiles = 2;

// `b_share`: the part of B's bytes that are read, which is kShareOfB of a complex B in place.
inline Plan f64_mma_plan_of(const Problem& p, int64_t sms, int first_tile, double b_share) {
  using Cost = h200::F64Mma;
  const auto reads = [&](double rows, bool k_major) {
    const double dram = k_major ? Cost::kDramKMajor : Cost::kDramMnMajor;
    return sizeof(double) * static_cast<double>(p.batch.count) * static_cast<double>(p.k) * rows /
           dram;
  };
  const double read = reads(static_cast<double>(p.m), p.a.col_stride < p.a.row_stride) +
                      reads(b_share * static_cast<double>(p.n), p.b.row_stride < p.b.col_stride);
  const std::span tiles(h200::kF64MmaTiles);
  Plan best = f64_tile_plan(tiles.subspan(first_tile), p, sms, read, 0, false);
  best.tile += first_tile, best.cycles += Cost::kLaunch;
  return best;
}
inline Plan f64_mma_plan(const Problem& p, int64_t sms) { return f64_mma_plan_of(p, sms, 0, 1); }
inline std::optional<Plan> f64_mma_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                int64_t sms) {
  return f64_mma_plan_of(p, sms, kF64MmaLargeTiles, kShareOfB);
}

// --- f64_tma -------------------------------------------------------------------------------------

inline constexpr int64_t kF64TmaMostTiles = (int64_t{1} << 31) - 1;  // of all chunks

inline bool f64_tma_accepts(const Problem& p) {
  const h200::F64TmaTile& smallest = *std::rbegin(h200::kF64TmaTiles);
  const int64_t tiles = count_tiles(p, smallest.m, smallest.n) * ceil_div(p.k, kChunk);
  return fits_tma_coords(p) && tiles <= kF64TmaMostTiles &&
         is_tma_aligned(p.batch, p.a, sizeof(double)) &&
         is_tma_aligned(p.batch, transposed(p.b), sizeof(double));
}
inline Plan f64_tma_plan_of(const Problem& p, int64_t sms, double b_share, double store) {
  using Cost = h200::F64Tma;
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k), batch = static_cast<double>(p.batch.count);
  const double bytes = sizeof(double) * batch * (m * k + b_share * n * k + m * n);
  Plan best = f64_tile_plan(h200::kF64TmaTiles, p, sms, bytes / Cost::kDram, store, true);
  best.cycles += Cost::kLaunch;
  return best;
}
// With a short K, nothing hides the store of sums through shared memory, which rows that are not
// 32-byte aligned need.
inline Plan f64_tma_plan(const Problem& p, int64_t sms) {
  const bool exposed = p.k <= h200::F64Tma::kShortK && p.n % 4 != 0;
  return f64_tma_plan_of(p, sms, 1, exposed ? h200::F64Tma::kStagedStore : 0);
}
inline std::optional<Plan> f64_tma_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                int64_t sms) {
  Problem parts = p;
  parts.b = parts_of_b(p.b);
  if (is_mn_major(p.a)) parts.a = parts_of_a(p.a), parts.m *= 2;
  if (!f64_tma_accepts(parts)) return {};
  return f64_tma_plan_of(p, sms, kShareOfB, 0);
}

// --- f64_direct ----------------------------------------------------------------------------------

inline constexpr int kF64DirectWarps = 4;  // of a block
inline constexpr int kF64DirectStep = 8;   // of K in a product

// The warps that share the chunks of a tile.
inline int f64_direct_chunk_warps(int64_t k) { return warps_for_chunks(k, 4); }

// Warps share the chunks of a tile, and one of them adds their sums; or K is split, so that each
// chunk has warps of its own.
inline Plan f64_direct_plan_of(const Problem& p, int64_t sms, double b_share) {
  using Cost = h200::F64Direct;
  constexpr int64_t kMostTiles = int64_t{1} << 31;
  const auto all = static_cast<double>(sms);
  const int64_t chunks = ceil_div(p.k, kChunk);
  const int64_t steps_of_chunk = ceil_div(std::min<int64_t>(p.k, kChunk), kF64DirectStep);
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k), batch = static_cast<double>(p.batch.count);
  const double bytes = sizeof(double) * batch * (m * k + b_share * n * k + m * n);
  Plan best;
  for (size_t i = 0; i < std::size(h200::kF64DirectTiles); ++i) {
    const h200::F64DirectTile& tile = h200::kF64DirectTiles[i];
    const int64_t tiles = count_tiles(p, tile.m, tile.n);
    for (const int64_t splits : {int64_t{1}, chunks}) {
      if (splits > 1 && tiles > kMostTiles / splits) continue;
      const int64_t sharers = splits > 1 ? splits : f64_direct_chunk_warps(p.k);  // of a tile
      const int64_t busy_warps = std::min(sharers, chunks);
      const auto steps = static_cast<double>(steps_of_chunk * ceil_div(chunks, sharers));
      const double warps = static_cast<double>(tiles * busy_warps) / all;  // of an SM
      const double resident = static_cast<double>(tile.blocks * kF64DirectWarps) *
                              (static_cast<double>(busy_warps) / static_cast<double>(sharers));
      const double multiply =
          std::max(std::max(1.0, warps / resident) * (tile.alone * steps + tile.overhead),
                   warps * (tile.shared * steps + tile.tile));
      const double loads = static_cast<double>(tiles) * sizeof(double) * k *
                           (std::min<double>(tile.m, m) + b_share * std::min<double>(tile.n, n));
      const double reduce = splits == 1 ? 0 : f64_reduce_cycles(p, chunks, sms);
      const double cycles =
          root_of_squares(multiply, loads / all / Cost::kL2, bytes / all / Cost::kDram) + reduce;
      keep_faster(best, {.tile = static_cast<int>(i),
                         .m = tile.m,
                         .n = tile.n,
                         .k_splits = splits,
                         .blocks_per_sm = tile.blocks,
                         .blocks = ceil_div(tiles * sharers, kF64DirectWarps),
                         .cycles = cycles});
    }
  }
  best.cycles += Cost::kLaunch;
  return best;
}
inline Plan f64_direct_plan(const Problem& p, int64_t sms) { return f64_direct_plan_of(p, sms, 1); }
inline std::optional<Plan> f64_direct_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                   int64_t sms) {
  return f64_direct_plan_of(p, sms, kShareOfB);
}

// --- f64_gemv ------------------------------------------------------------------------------------

inline constexpr int kF64GemvRows = 32;  // elements of C of a warp, or complex ones
inline constexpr int kF64GemvStep = 16;  // doubles of K in a stage

inline bool f64_gemv_accepts(const Problem& p) {
  constexpr int64_t kMostMatrices = int64_t{1} << 31;
  return std::min(p.m, p.n) <= 2 && fits_tma_coords(p) && p.batch.count < kMostMatrices;
}

// The long operand has `rows` rows, of complex numbers if they are read in place. Each chunk has
// warps of its own.
inline Plan f64_gemv_plan_of(const Problem& p, int64_t sms, int64_t rows, bool long_is_a,
                             bool complex) {
  using Cost = h200::F64Gemv;
  const auto all = static_cast<double>(sms);
  const int64_t chunks = ceil_div(p.k, kChunk);
  const int64_t warps = ceil_div(rows, kF64GemvRows) * p.batch.count * chunks;
  const auto steps = static_cast<double>(ceil_div(std::min<int64_t>(p.k, kChunk), kF64GemvStep));
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k), batch = static_cast<double>(p.batch.count);
  const double bytes = sizeof(double) * batch * (m * k + (complex ? kShareOfB : 1) * n * k + m * n);
  const bool k_major = long_is_a ? !is_mn_major(p.a) : !is_mn_major(transposed(p.b));
  const double dram = k_major ? Cost::kDramKMajor : Cost::kDramMnMajor;
  const bool one_sum = !complex && std::min(p.m, p.n) == 1;  // of a lane
  const h200::F64GemvCost cost = one_sum ? Cost::kOneSum : Cost::kTwoSums;
  const double multiply =
      std::max(cost.alone * steps + Cost::kOverhead,
               static_cast<double>(warps) / all * (cost.shared * steps + Cost::kWarp));
  const double reduce = chunks == 1 ? 0 : f64_reduce_cycles(p, chunks, sms);
  return {.m = long_is_a ? kF64GemvRows : 1,
          .n = long_is_a ? 1 : kF64GemvRows,
          .k_splits = chunks,
          .blocks = warps,
          .cycles = Cost::kLaunch + root_of_squares(multiply, bytes / all / dram) + reduce};
}
inline Plan f64_gemv_plan(const Problem& p, int64_t sms) {
  return f64_gemv_plan_of(p, sms, std::max(p.m, p.n), p.m > p.n, false);
}
// The long operand's numbers are read 16 bytes at once.
inline std::optional<Plan> f64_gemv_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                 int64_t sms) {
  const bool long_is_a = p.m > 1;
  const void* numbers = long_is_a ? p.a.data : p.b.data;
  if ((long_is_a && p.n != 2) || reinterpret_cast<uintptr_t>(numbers) % 16 != 0) return {};
  return f64_gemv_plan_of(p, sms, long_is_a ? p.m : p.n / 2, long_is_a, true);
}

// --- workspaces ----------------------------------------------------------------------------------

// The sums of each chunk, or of each split, of all of C.
inline int64_t f64_partial_sums_bytes(const Problem& p, int64_t parts) {
  return parts * p.batch.count * p.m * p.n * int64_t{sizeof(double)};
}
// Of f64_mma and f64_tma, which write the sums of each chunk.
inline WorkspaceBytes f64_mma_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {plan.k_splits > 1 ? f64_partial_sums_bytes(p, ceil_div(p.k, kChunk)) : 0};
}
// Of f64_direct and f64_gemv, which split K at each chunk or not at all.
inline WorkspaceBytes f64_splits_workspace(const Problem& p, const Plan& plan, int64_t) {
  return {plan.k_splits > 1 ? f64_partial_sums_bytes(p, plan.k_splits) : 0};
}

}  // namespace tiled
