#pragma once
// Plans of naive and tiled: one tile each, and whole waves of one block an SM.

#include "kernels/common/cost_model.h"

namespace tiled {

template <int kTile>
Plan square_tile_plan(const Problem& p, int64_t sms, double wave, double rate) {
  const int64_t blocks = count_tiles(p, kTile, kTile);
  return {
      .m = kTile,
      .n = kTile,
      .blocks = blocks,
      .cycles = h200::kLaunchTeaching + wave_cycles(blocks, sms, kTile, kTile, p.k, wave, rate)};
}

inline Plan naive_plan(const Problem& p, int64_t sms) {
  return square_tile_plan<32>(p, sms, 0, h200::kRateNaive);
}
inline Plan tiled16_plan(const Problem& p, int64_t sms) {
  return square_tile_plan<16>(p, sms, h200::kWaveTiled, h200::kRateTiled16);
}
inline Plan tiled32_plan(const Problem& p, int64_t sms) {
  return square_tile_plan<32>(p, sms, h200::kWaveTiled, h200::kRateTiled32);
}
inline Plan tiled64_plan(const Problem& p, int64_t sms) {
  return square_tile_plan<64>(p, sms, h200::kWaveTiled, h200::kRateTiled64);
}

}  // namespace tiled
