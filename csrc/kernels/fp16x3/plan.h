#pragma once
// Plans of the fp16x3 kernels: tiles, K splits, and cycles by the cost model.

#include <algorithm>
#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/cost_model.h"

namespace tiled {

// Where there are too few tiles for all SMs, K is split: chunk sums go to a workspace, and a second
// kernel adds them in order.
inline Plan fp16x3_wgmma_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  const int64_t tiles = count_tiles(p, Cost::kWgmmaTile, Cost::kWgmmaTile);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  Plan best{.m = Cost::kWgmmaTile, .n = Cost::kWgmmaTile};
  for (int64_t splits = 1; splits != 0 && splits <= sms; splits = next_k_splits(chunks, splits)) {
    const int64_t longest = std::min(ceil_div(chunks, splits) * kChunk, p.k);
    const double each = Cost::kWgmmaWave + Cost::kWgmmaTile * Cost::kWgmmaTile *
                                               static_cast<double>(longest) / Cost::kWgmmaRate;
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

// A plan with a block for each chunk of each (m, n) tile, where m is along C's shorter side.
// Threads copy the longer operand, and take longer where it allows no 128-bit copies.
inline Plan chunk_per_block_plan(const Problem& p, int64_t sms, int m, int n, double launch,
                                 double wave, double rate) {
  const int64_t tiles =
      ceil_div(std::min(p.m, p.n), m) * ceil_div(std::max(p.m, p.n), n) * p.batch.count;
  const int64_t chunks = std::max<int64_t>(1, ceil_div(p.k, kChunk));
  const Matrix& longer = longer_operand(p);
  const auto [inner, outer] = std::minmax(longer.row_stride, longer.col_stride);
  const double slowdown = inner == 1 && outer % 4 == 0 ? 1 : h200::Fp16x3::kScalarCopySlowdown;
  const int64_t k = std::min<int64_t>(p.k, kChunk), blocks = tiles * chunks;
  return {.m = m,
          .n = n,
          .k_splits = chunks,
          .blocks = blocks,
          .cycles = launch + wave_cycles(blocks, sms, m, n, k, wave, rate) * slowdown};
}

// Returns whether rows of the operand are K-major and 16-byte aligned, as bulk copies need them.
inline bool fp16x3_cluster_bulk_copies(const Problem& p, const Matrix& matrix) {
  return p.k % 4 == 0 &&
         is_vector_aligned(p.batch, matrix, matrix.col_stride, matrix.row_stride, 4);
}
inline Plan fp16x3_cluster_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  return chunk_per_block_plan(p, sms, 16, 32, 0, Cost::kClusterWave, Cost::kClusterRate);
}

inline Plan fp16x3_skinny_plan(const Problem& p, int64_t sms) {
  using Cost = h200::Fp16x3;
  return chunk_per_block_plan(p, sms, 32, 32, h200::kLaunchFp16x3Skinny, Cost::kSkinnyWave,
                              Cost::kSkinnyRate);
}

inline bool fp16x3_fused_accepts(const Problem& p) {
  return fits_tma_coords(p) && is_tma_aligned(p.batch, longer_operand(p));
}
inline Plan fp16x3_fused_plan(const Problem& p, int64_t sms) {
  return chunk_per_block_plan(p, sms, 64, 128, h200::kLaunchFp16x3Fused, 0,
                              h200::Fp16x3::kFusedRate);
}

inline Plan fp16x3_small_plan(const Problem& p, int64_t sms) {
  constexpr int kM = 32, kN = 16;
  const int64_t blocks = count_tiles(p, kM, kN);
  return {.m = kM,
          .n = kN,
          .blocks = blocks,
          .cycles = h200::kLaunchFp16x3Small +
                    wave_cycles(blocks, sms, kM, kN, p.k, 0, h200::Fp16x3::kSmallRate)};
}

}  // namespace tiled
