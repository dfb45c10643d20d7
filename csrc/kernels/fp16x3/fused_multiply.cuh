#pragma once
// fp16x3_fused: the multipliers, two warpgroups that multiply the parts of both operands by wgmma
// and store the sums of work tiles.

#include <type_traits>

#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/fused_load.cuh"
#include "kernels/fp16x3/fused_split.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::fp16x3_fused {

namespace wgmma = ptx::wgmma;

// A thread's accumulators of a work tile: element i is in row i / 2 % 2 of the thread's two, and in
// column i / 4 * 8 + i % 2 from its first.
template <int kElements>
struct Accumulators {
  float total[kElements], low[kElements], part[kElements];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] = low[i] = part[i] = 0;
  }
  // Multiplies the sums so far by the columns' factors, where scales fell. `scaled` has a byte for
  // each splitter warp, which says whether it has such a column.
  __device__ void scale(const float* factor, const uint8_t* scaled) {
    constexpr int kWarps = kElements * 2 / Tile::kSplitterCols, kOfWarp = kElements / kWarps;
    using Flags = std::conditional_t<kWarps == 8, uint64_t, uint32_t>;
    static_assert(sizeof(Flags) == kWarps);
    const auto flags = *reinterpret_cast<const Flags*>(scaled);
    if (flags == 0) return;
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      if ((flags >> warp * 8 & 0xff) == 0) continue;
      UNROLL
      for (int i = warp * kOfWarp; i < (warp + 1) * kOfWarp; i += 4) {
        const float2 x2 = *reinterpret_cast<const float2*>(&factor[i * 2 + threadIdx.x % 4 * 2]);
        UNROLL
        for (int j = i; j < i + 4; ++j) {
          total[j] *= j % 2 == 0 ? x2.x : x2.y, low[j] *= j % 2 == 0 ? x2.x : x2.y;
        }
      }
    }
  }
  // Multiplies a step, whose operands are given as low words of descriptors. On return the small
  // products of this step are still running, and all products before them are finished.
  template <bool kLongIsA>
  __device__ void multiply(uint32_t short_hi, uint32_t short_lo, uint32_t long_hi,
                           uint32_t long_lo) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    constexpr int kNext = 2, kEnd = Presplit::kK / 16 * kNext;  // kNext: from 16 of K to the next
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      wgmma::mma(part, wgmma::descriptor(short_hi + k), wgmma::descriptor(long_hi + k), k > 0);
    }
    wgmma::commit_group();
    // The order has lo_a hi_b first, whichever operand A is.
    const uint32_t rows[] = {kLongIsA ? short_hi : short_lo, kLongIsA ? short_lo : short_hi};
    const uint32_t cols[] = {kLongIsA ? long_lo : long_hi, kLongIsA ? long_hi : long_lo};
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        wgmma::mma(low, wgmma::descriptor(rows[i] + k), wgmma::descriptor(cols[i] + k), true);
      }
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] += part[i];
  }
  __device__ void finish() {
    wgmma::wait_group<0>();
    wgmma::fence_operand(low);
  }
};

// Descales and stores the sums of a work tile.
template <int kPanelRows>
__device__ void store_sums(const OnTheFlyParams& params, unsigned tile,
                           const float* long_inverse_scale,
                           Accumulators<Panel<kPanelRows>::kElements>& acc) {
  using P = Panel<kPanelRows>;
  constexpr int kElements = P::kElements;
  const PanelChunk panel_chunk(params, tile / params.col_tiles);
  const int col = P::first_col() + threadIdx.x % 4 * 2;
  const int row = P::first_row() + threadIdx.x % Tile::kWarpgroup / 32 * 16 +
                  threadIdx.x % 32 / 4;  // and row + 8
  const int64_t matrix = params.first_matrix + panel_chunk.matrix;
  const Presplit& presplit = params.short_presplit;
  const float* short_inverse_scale =
      presplit.inverse_scales + panel_chunk.first_row +
      (matrix * params.chunks + panel_chunk.chunk) * presplit.padded_rows();
  float row_scales[2];
  UNROLL
  for (int i = 0; i < 2; ++i) {
    row_scales[i] = row + i * 8 < panel_chunk.rows ? short_inverse_scale[row + i * 8] : 1.0f;
  }
  float2 col_scales[kElements / 4];
  UNROLL
  for (int i = 0; i < kElements / 4; ++i) {
    col_scales[i] = *reinterpret_cast<const float2*>(&long_inverse_scale[col + i * 8]);
  }
  descale_chunk(acc.total, acc.low, row_scales, col_scales, fp16x3::promotion(kChunk));
  float* to = partial_sums(params, panel_chunk) + row * params.sums_pitch() +
              int64_t{tile % params.col_tiles} * Tile::kCols + col;
  UNROLL
  for (int down = 0; down < 2; ++down, to += 8 * params.sums_pitch()) {
    if (row + down * 8 >= panel_chunk.rows) break;
    UNROLL
    for (int i = down * 2; i < kElements; i += 4) {
      __stcg(reinterpret_cast<float2*>(to + i / 4 * 8), float2{acc.total[i], acc.total[i + 1]});
    }
  }
}

template <bool kLongIsA, int kPanelRows>
__device__ void multiply_tiles(const OnTheFlyParams& params, Smem<kPanelRows>& smem) {
  using P = Panel<kPanelRows>;
  const auto [first, end] = BlockTiles(params);
  const uint32_t first_long = wgmma::descriptor_low_word(smem.long_parts[0][0][0]) +
                              Presplit::plane_bytes(P::first_col()) / 16;
  const uint32_t first_short =
      wgmma::descriptor_low_word(smem.short_parts[0]) + Presplit::plane_bytes(P::first_row()) / 16;
  StageCounter<P::kStages> pipe;
  NO_UNROLL
  for (unsigned tile = first; tile < end;) {
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    const int panel = panel_chunk.first_row / Presplit::kRows;
    const uint32_t short_plane = Presplit::plane_bytes(params.short_presplit.tile_rows(panel)) / 16;
    Accumulators<P::kElements> acc;
    acc.clear();
    NO_UNROLL
    for (int left = panel_chunk.length; left > 0; left -= kStageK, pipe.advance()) {
      const int stage = pipe.stage();
      ptx::mbarrier_wait(&smem.full[stage], pipe.parity());
      acc.scale(smem.factor[stage] + P::first_col(),
                &smem.scaled[stage][P::first_col() / Tile::kSplitterCols]);
      uint32_t short_hi =
          first_short + stage * static_cast<uint32_t>(sizeof smem.short_parts[0] / 16);
      uint32_t long_hi = first_long + stage * static_cast<uint32_t>(sizeof smem.long_parts[0] / 16);
      constexpr uint32_t kLongPlane = Tile::kPlane / 16;
      NO_UNROLL
      for (int step = 0; step < Tile::kSteps;
           ++step, short_hi += 2 * short_plane, long_hi += 2 * kLongPlane) {
        acc.template multiply<kLongIsA>(short_hi, short_hi + short_plane, long_hi,
                                        long_hi + kLongPlane);
      }
      acc.finish();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
    }
    if (any_failed(false)) continue;
    store_sums<kPanelRows>(params, tile, smem.inverse_scale[tile % 2], acc);
    ++tile;
  }
}

}  // namespace tiled::cuda::fp16x3_fused
