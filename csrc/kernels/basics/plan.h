#pragma once
// Plans of naive and tiled: one tile each.

#include <algorithm>

#include "kernels/basics/costs_h200.h"
#include "kernels/common/cost_model.h"

namespace tiled {

inline Plan naive_plan(const Problem& p, int64_t sms) {
  constexpr int kTile = 32;
  const int64_t blocks = count_tiles(p, kTile, kTile);
  return {.m = kTile,
          .n = kTile,
          .blocks = blocks,
          .cycles = h200::kLaunchNaive +
                    wave_cycles(blocks, sms, kTile, kTile, p.k, 0, h200::kRateNaive)};
}

// A block alone on its SM waits for each stage of K; blocks that share an SM hide that.
inline Plan tiled_plan(const Problem& p, int64_t sms, int tile, const h200::TiledCost& cost) {
  const int64_t blocks = count_tiles(p, tile, tile);
  const double alone = cost.alone * static_cast<double>(p.k);
  const double shared = wave_cycles(blocks, sms, tile, tile, p.k, cost.block, cost.rate);
  return {.m = tile, .n = tile, .blocks = blocks, .cycles = cost.launch + std::max(alone, shared)};
}
inline Plan tiled16_plan(const Problem& p, int64_t sms) {
  return tiled_plan(p, sms, 16, h200::kTiled16);
}
inline Plan tiled32_plan(const Problem& p, int64_t sms) {
  return tiled_plan(p, sms, 32, h200::kTiled32);
}
inline Plan tiled64_plan(const Problem& p, int64_t sms) {
  return tiled_plan(p, sms, 64, h200::kTiled64);
}

}  // namespace tiled
