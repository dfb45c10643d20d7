#pragma once
// Plans of naive, tiled and the course: one tile each.

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

// 8 x 8 elements a thread, or 4 x 4 of float64, which CUDA cores multiply half as fast.
inline Plan register_tile_plan(const Problem& p, int64_t sms, const h200::TiledCost& cost) {
  if (p.dtype != DType::kFloat64) return tiled_plan(p, sms, 128, cost);
  return tiled_plan(p, sms, 64, {cost.launch, cost.alone / 2, cost.block, cost.rate / 2});
}
inline Plan padded32_plan(const Problem& p, int64_t sms) {
  return tiled_plan(p, sms, 32, h200::kPadded32);
}
inline Plan register_tile_plan(const Problem& p, int64_t sms) {
  return register_tile_plan(p, sms, h200::kRegisterTile);
}
inline Plan vectorized_plan(const Problem& p, int64_t sms) {
  return register_tile_plan(p, sms, h200::kVectorized);
}
inline Plan double_buffered_plan(const Problem& p, int64_t sms) {
  return register_tile_plan(p, sms, h200::kDoubleBuffered);
}

inline bool tensor_core_accepts(const Problem& p) {
  return fits_tma_coords(p) && is_tma_aligned(p.batch, p.a, sizeof(uint16_t)) &&
         is_tma_aligned(p.batch, transposed(p.b), sizeof(uint16_t));
}
inline Plan tensor_core_plan(const Problem& p, int64_t sms) {
  return tiled_plan(p, sms, 128, h200::kTensorCore);
}

}  // namespace tiled
