#pragma once
// The plans of f64_mma, a tile and K splits, and of f64_direct, a tile.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/cost_model.h"

namespace tiled {

// --- f64_mma -------------------------------------------------------------------------------------

// Cycles of an SM for one k of `blocks` blocks that share it: its warps wait for each other, or
// keep the tensor cores busy.
inline double f64_mma_step(const h200::F64MmaTile& tile, int64_t blocks) {
  return std::max(tile.alone, static_cast<double>(blocks) * tile.m * tile.n / tile.rate);
}

// A tile's first row and column are 32-bit.
inline bool f64_mma_accepts(const Problem& p) { return fits_tma_coords(p); }

inline Plan f64_mma_plan(const Problem& p, int64_t sms) {
  using Cost = h200::F64Mma;
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  const auto all = static_cast<double>(sms);
  const double bytes = sizeof(double) * static_cast<double>(p.batch.count) *
                       static_cast<double>(p.m + p.n) * static_cast<double>(p.k);
  Plan best{.k_splits = 0};
  for (size_t i = 0; i < std::size(h200::kF64MmaTiles); ++i) {
    const h200::F64MmaTile& tile = h200::kF64MmaTiles[i];
    const int64_t count = count_tiles(p, tile.m, tile.n);
    constexpr int64_t kMaxSplits = 65535;  // of a grid's y
    for (int64_t splits = 1; splits != 0 && splits <= kMaxSplits;
         splits = next_k_splits(chunks, splits)) {
      const auto k = static_cast<double>(std::min(ceil_div(chunks, splits) * kChunk, p.k));
      const int64_t work = count * splits, wave = sms * tile.blocks;
      const int64_t full = work / wave, left = ceil_div(work % wave, sms);
      const double waves =
          static_cast<double>(full) * (f64_mma_step(tile, tile.blocks) * k + tile.overhead) +
          (left > 0 ? f64_mma_step(tile, left) * k + tile.overhead : 0);
      const double sums = static_cast<double>(p.batch.count * p.m * p.n * chunks) / all;
      const double reduce = splits == 1 ? 0 : Cost::kReduceLaunch + Cost::kReduceElement * sums;
      const double busy = std::min(all, static_cast<double>(work));
      const double cycles = std::max(waves, bytes / busy / Cost::kDram) + reduce;
      if (best.k_splits == 0 || cycles < best.cycles) {
        best = {static_cast<int>(i), tile.m, tile.n, splits, tile.blocks, work, cycles};
      }
    }
  }
  best.cycles += Cost::kLaunch;
  return best;
}

// --- f64_direct ----------------------------------------------------------------------------------

inline constexpr int kF64DirectWarps = 4;  // of a block
inline constexpr int kF64DirectStep = 8;   // of K in a product

// The warps that share the chunks of a tile.
inline int f64_direct_chunk_warps(int64_t k) { return k > 2 * kChunk ? 4 : k > kChunk ? 2 : 1; }

inline Plan f64_direct_plan(const Problem& p, int64_t sms) {
  using Cost = h200::F64Direct;
  const auto all = static_cast<double>(sms);
  const int64_t chunks = ceil_div(p.k, kChunk);
  const int chunk_warps = f64_direct_chunk_warps(p.k);
  const int64_t busy_warps = std::min<int64_t>(chunk_warps, chunks);  // of a tile
  const auto steps = static_cast<double>(ceil_div(chunks, chunk_warps) *
                                         ceil_div(std::min<int64_t>(p.k, kChunk), kF64DirectStep));
  const double bytes = sizeof(double) * static_cast<double>(p.batch.count) *
                       (static_cast<double>(p.m + p.n) * static_cast<double>(p.k) +
                        static_cast<double>(p.m) * static_cast<double>(p.n));
  Plan best;
  for (size_t i = 0; i < std::size(h200::kF64DirectTiles); ++i) {
    const h200::F64DirectTile& tile = h200::kF64DirectTiles[i];
    const int64_t tiles = count_tiles(p, tile.m, tile.n);
    const double warps = static_cast<double>(tiles * busy_warps) / all;  // of an SM
    const double resident =
        static_cast<double>(tile.blocks * kF64DirectWarps * busy_warps) / chunk_warps;
    const double cycles =
        std::max({std::max(1.0, warps / resident) * (tile.alone * steps + tile.overhead),
                  warps * (tile.shared * steps + tile.tile), bytes / all / Cost::kDram});
    if (i == 0 || cycles < best.cycles) {
      best = {.tile = static_cast<int>(i),
              .m = tile.m,
              .n = tile.n,
              .blocks_per_sm = tile.blocks,
              .blocks = ceil_div(tiles * chunk_warps, kF64DirectWarps),
              .cycles = cycles};
    }
  }
  best.cycles += Cost::kLaunch;
  return best;
}

}  // namespace tiled
