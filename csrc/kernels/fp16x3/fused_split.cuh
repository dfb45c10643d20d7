#pragma once
// fp16x3_fused: the splitters, two warpgroups that split the long operand from shared memory to
// shared memory, and load both operands.

#include <cstddef>

#include "kernels/fp16x3/fused_load.cuh"
#include "kernels/fp16x3/running_scale.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::fp16x3_fused {

// The addresses of a splitter's elements in a stage. Two adjacent lanes have a column: one has the
// first four of each eight of K, the other one the last four. No two lanes that access shared
// memory together share a bank. Swizzled offsets differ from each other in a few bits only, so each
// is computed from one register by an exclusive or.
template <bool kKMajor>
struct SplitterLayout {
  static constexpr int kVectors = Tile::kCols * kStageK / 4 / Tile::kSplitters;  // of four elements
  uint32_t from, to;  // the first vector's offsets in a float32 stage, and in a stage of parts

  __device__ SplitterLayout() {
    const int pair = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const int col = threadIdx.x / 32 * 16 + pair / 8 * 8 + pair % 4 * 2 + pair / 4 % 2;
    to = Presplit::swizzle(col, 0) + half * 8;
    from = kKMajor ? col * 128 + (half ^ col % 8) * 16
                   : col / 32 * LongBox<false>::kBytes + half * 4 * 128 +
                         (col % 32 / 4 ^ half * 4) * 16 + col % 4 * 4;
  }
  __device__ int col() const { return static_cast<int>(to / Presplit::plane_bytes(1)); }
  // Reads vector i of the stage at an offset from `smem`.
  __device__ void read(const uint8_t* smem, uint32_t stage, int i, float (&x)[4]) const {
    const uint32_t offset = stage + from;
    if constexpr (kKMajor) {
      constexpr int kPerRow = 128 / 32;  // one of each eight elements
      const float4 x4 = *reinterpret_cast<const float4*>(smem + (offset ^ i % kPerRow * 32) +
                                                         i / kPerRow * LongBox<true>::kBytes);
      x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
    } else {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        x[j] = *reinterpret_cast<const float*>(smem + (offset ^ j * 16) + (i * 8 + j) * 128);
      }
    }
  }
  __device__ void write(uint8_t* smem, uint32_t stage, int i, const uint32_t (&hi)[2],
                        const uint32_t (&lo)[2]) const {
    constexpr int kPerStep = Presplit::kK / 8;
    uint8_t* plane = smem + ((stage + to) ^ i % kPerStep * 16) + i / kPerStep * (2 * Tile::kPlane);
    *reinterpret_cast<uint2*>(plane) = {hi[0], hi[1]};
    *reinterpret_cast<uint2*>(plane + Tile::kPlane) = {lo[0], lo[1]};
  }
};

// Splits a float32 stage to a stage of parts, both given as offsets from `smem`. Sets `factor` to
// what the column's sums so far must be multiplied by, and returns whether that is not 1 for a
// column of the warp.
template <int kAtOnce, bool kKMajor>
__device__ bool split_stage(uint8_t* smem, uint32_t long_operand, uint32_t long_parts,
                            const SplitterLayout<kKMajor>& layout, RunningScale<2>& column,
                            float& factor) {
  constexpr int kVectors = SplitterLayout<kKMajor>::kVectors;
  // Where registers allow, vectors are read before the parts of those before are written. The
  // compiler does not do so by itself, since it cannot know that the writes do not overlap them.
  constexpr bool kReadsAhead = kKMajor || kAtOnce > 1;
  Float32X4<kAtOnce> x;
  Fp16X4<kAtOnce> hi, lo;
  auto read = [&](int first, float(&to)[kAtOnce][4]) {
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) layout.read(smem, long_operand, first + i, to[i]);
  };
  factor = 1;
  bool scaled = false;
  StageRange range;
  NO_UNROLL
  for (;;) {
    Float32X4<kAtOnce> next;
    if (kReadsAhead) read(0, next);
    UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      if (!kReadsAhead) read(first, next);
      UNROLL
      for (int i = 0; i < kAtOnce * 4; ++i) x[i / 4][i % 4] = next[i / 4][i % 4];
      if (kReadsAhead && first + kAtOnce < kVectors) read(first + kAtOnce, next);
      split_x4(x, column.scale(), hi, lo);
      range.add(hi, lo);
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) layout.write(smem, long_parts, first + i, hi[i], lo[i]);
    }
    if (!__any_sync(~0u, range.overflows())) break;
    uint32_t largest = 0;
    NO_UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      read(first, x);
      largest = max(largest, largest_magnitude(x));
    }
    const float by = column.lower(largest);
    if (__all_sync(~0u, by == 1)) break;
    factor = by;
    scaled = true;
    range = {};
  }
  if (column.add(range)) {
    NO_UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      read(first, x);
      column.add(x);
    }
  }
  return scaled;
}

// At the end of a work tile, returns whether the scale of any column failed, so that the tile must
// be multiplied once more. All threads of the block call it: splitters and multipliers.
__device__ inline bool any_failed(bool failed) {
  return ptx::named_barrier_sync_or(1, Tile::kThreads, failed);
}

template <bool kKMajor, int kPanelRows>
__device__ void split_tiles(const OnTheFlyParams& params, const CUtensorMap& map,
                            Smem<kPanelRows>& smem) {
  using S = Smem<kPanelRows>;
  const bool loads_long = threadIdx.x == 0, loads_short = threadIdx.x == Tile::kWarpgroup;
  const SplitterLayout<kKMajor> layout;
  StageCounter<S::kLongStages> long_pipe;
  StageCounter<S::kStages> pipe;
  auto begin_long = [&](unsigned tile) {
    if (!loads_long) return;
    smem.long_loader.begin(params, tile);
    NO_UNROLL
    for (int i = 0; i < S::kLongStages - 1; ++i) load_long<kKMajor>(params, map, smem);
  };
  begin_long(BlockTiles(params).first);
  // Only the short operand depends on the previous kernel, which splits it.
  if (loads_short) ptx::pdl_wait();
  RunningScale<2> column;
  NO_UNROLL
  for (unsigned tile = BlockTiles(params).first; tile < smem.long_loader.end;) {
    if (loads_short) smem.short_loader.begin(params, tile);
    NO_UNROLL
    for (int left = count_stages(params, tile); left > 0; --left) {
      ptx::mbarrier_wait(&smem.empty[pipe.stage()], pipe.parity() ^ 1);
      if (loads_short) load_short(smem, pipe.stage());
      ptx::mbarrier_wait(&smem.long_full[long_pipe.stage()], long_pipe.parity());
      __syncwarp();
      const auto long_operand = static_cast<uint32_t>(
          offsetof(S, long_operand) + long_pipe.stage() * sizeof smem.long_operand[0]);
      const auto long_parts =
          static_cast<uint32_t>(offsetof(S, long_parts) + pipe.stage() * sizeof smem.long_parts[0]);
      const bool scaled = split_stage<Panel<kPanelRows>::kVectorsAtOnce>(
          reinterpret_cast<uint8_t*>(&smem), long_operand, long_parts, layout, column,
          smem.factor[pipe.stage()][layout.col()]);
      ptx::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        smem.scaled[pipe.stage()][threadIdx.x / 32] = scaled;
        ptx::mbarrier_arrive(&smem.full[pipe.stage()]);
        ptx::mbarrier_arrive(&smem.long_empty[long_pipe.stage()]);
      }
      if (loads_long) load_long<kKMajor>(params, map, smem);
      long_pipe.advance(), pipe.advance();
    }
    __syncwarp();
    smem.inverse_scale[tile % 2][layout.col()] = column.inverse_scale();
    if (any_failed(column.failed())) {
      column.restart();
      // The stages of the tiles that follow, which are already loaded, are dropped.
      int ahead = 0;
      for (unsigned next = tile + 1; next < smem.long_loader.end && ahead < S::kLongStages - 1;
           ++next) {
        ahead += count_stages(params, next);
      }
      for (int i = min(ahead, S::kLongStages - 1); i > 0; --i, long_pipe.advance()) {
        ptx::mbarrier_wait(&smem.long_full[long_pipe.stage()], long_pipe.parity());
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.long_empty[long_pipe.stage()]);
      }
      begin_long(tile);
    } else {
      column = {};
      ++tile;
    }
  }
}

}  // namespace tiled::cuda::fp16x3_fused
