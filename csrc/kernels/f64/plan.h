#pragma once
// The plan of f64_mma: a tile, and K splits.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/cost_model.h"

namespace tiled {

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

}  // namespace tiled
