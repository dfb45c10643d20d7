#pragma once
// fp16x3_fused: its tile, its shared memory, and the state of its loads.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "ptx/mbarrier.cuh"

namespace tiled::cuda::fp16x3_fused {

struct Tile {
  static constexpr int kCols = 128;  // of a work tile
  static constexpr int kWarpgroup = 128;
  static constexpr int kSplitters = 2 * kWarpgroup, kMultipliers = 2 * kWarpgroup;
  static constexpr int kThreads = kSplitters + kMultipliers;
  static constexpr int kSplitterWarps = kSplitters / 32;
  static constexpr int kSplitterCols = kCols / kSplitterWarps;  // of a warp
  static constexpr int kSteps = kStageK / Presplit::kK;         // of a stage
  static constexpr int kPlane = Presplit::plane_bytes(kCols);   // of a step
  static_assert(Presplit::kK == fp16x3::promotion(kChunk));
};

// How the two multiplier warpgroups share a panel of up to kPanelRows rows: by columns of the work
// tile, or else by rows of the panel.
template <int kPanelRows>
struct Panel {
  static constexpr bool kByCols = kPanelRows == 64;
  static constexpr int kRows = 64, kCols = kByCols ? 64 : 128;        // of a warpgroup
  static constexpr int kElements = kRows * kCols / Tile::kWarpgroup;  // accumulators a thread
  static constexpr int kLongStages = kByCols ? 4 : 3, kStages = 2;
  static constexpr int kVectorsAtOnce = kByCols ? 2 : 1;  // that a splitter keeps in registers
  static constexpr int kSplitterRegisters = kByCols ? 112 : 56;
  static constexpr int kMultiplierRegisters = kByCols ? 144 : 200;
  static_assert(kPanelRows <= Presplit::kRows, "a step of a panel is one copy");

  static __device__ int warpgroup() { return (threadIdx.x - Tile::kSplitters) / Tile::kWarpgroup; }
  static __device__ int first_row() { return kByCols ? 0 : warpgroup() * kRows; }
  static __device__ int first_col() { return kByCols ? warpgroup() * kCols : 0; }
};

// A thread's position in a pipeline, as one number: splitters have no register for a second.
template <int kStages>
struct StageCounter {
  unsigned count = 0;
  __device__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ int parity() const { return static_cast<int>(count / kStages % 2); }
  __device__ void advance() { ++count; }
};

__device__ inline int count_stages(const OnTheFlyParams& params, unsigned tile) {
  return (PanelChunk(params, tile / params.col_tiles).length + kStageK - 1) / kStageK;
}

// The next stage of the long operand to load. It is kept in shared memory, since the splitters are
// short of registers.
template <int kStages>
struct LongLoader {
  StageCounter<kStages> pipe;
  int stages_left;  // of the work tile; 0 if no tile is left
  int col, k;
  int matrix[kMaxTmaBatchRank];
  unsigned tile, end;  // of the block's work tiles

  __device__ void begin(const OnTheFlyParams& params, unsigned first) {
    tile = first, stages_left = 0;
    if (tile >= end) return;
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    stages_left = count_stages(params, tile);
    col = static_cast<int>((params.first_col_tile + tile % params.col_tiles) * Tile::kCols);
    k = static_cast<int>(panel_chunk.chunk * kChunk);
    int64_t index = params.first_matrix + panel_chunk.matrix;
    int used = 0;
    UNROLL
    for (int& each : matrix) each = 0;
    NO_UNROLL
    for (int d = params.p.batch.rank - 1; d >= 0; --d) {
      if (params.long_operand.batch_stride[d] != 0) {
        matrix[used++] = static_cast<int>(index % params.p.batch.size[d]);
      }
      index /= params.p.batch.size[d];
    }
  }
};

// The next step of the short operand to load, which is split beforehand.
struct ShortLoader {
  const uint8_t* from;
  int step_bytes, steps_left;

  __device__ void begin(const OnTheFlyParams& params, unsigned tile) {
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    const Presplit& presplit = params.short_presplit;
    const int panel = panel_chunk.first_row / Presplit::kRows;
    step_bytes = 2 * Presplit::plane_bytes(presplit.tile_rows(panel));
    steps_left = (panel_chunk.length + Presplit::kK - 1) / Presplit::kK;
    from =
        presplit.hi_lo + presplit.step_offset(params.first_matrix + panel_chunk.matrix, panel,
                                              int64_t{panel_chunk.chunk} * (kChunk / Presplit::kK));
  }
};

template <int kPanelRows>
struct Smem {
  static constexpr int kLongStages = Panel<kPanelRows>::kLongStages;
  static constexpr int kStages = Panel<kPanelRows>::kStages;

  alignas(1024) uint8_t long_operand[kLongStages][Tile::kCols * kStageK * 4];  // float32
  uint8_t long_parts[kStages][Tile::kSteps][2][Tile::kPlane];  // a hi plane, then a lo plane
  uint8_t short_parts[kStages][Tile::kSteps * 2 * Presplit::plane_bytes(kPanelRows)];
  float factor[kStages][Tile::kCols];                        // for the columns' sums so far
  alignas(8) uint8_t scaled[kStages][Tile::kSplitterWarps];  // whether a factor is not 1
  float inverse_scale[2][Tile::kCols];                       // of even and odd work tiles
  uint64_t long_full[kLongStages], long_empty[kLongStages];
  uint64_t full[kStages], empty[kStages];
  LongLoader<kLongStages> long_loader;
  ShortLoader short_loader;

  __device__ void init(const OnTheFlyParams& params) {
    ptx::mbarrier_init_stages(kLongStages, long_full, 1, long_empty, Tile::kSplitterWarps);
    ptx::mbarrier_init_stages(kStages, full, Tile::kSplitterWarps + 1, empty,
                              Tile::kMultipliers / 32);
    ptx::fence_mbarrier_init();
    long_loader.pipe = {};
    long_loader.end = BlockTiles(params).end;
  }
};
static_assert(sizeof(Smem<64>) <= kMaxSharedMemory && sizeof(Smem<128>) <= kMaxSharedMemory);

// The boxes that a stage of the long operand consists of, in rows of 128 bytes with 128-byte
// swizzle. A K-major box has 32 of K, and a row for each column; an MN-major one has 32 columns,
// and a row for each k.
template <bool kKMajor>
struct LongBox {
  static constexpr int kCols = kKMajor ? Tile::kCols : 32, kK = kKMajor ? 32 : kStageK;
  static constexpr int kBytes = kCols * kK * 4, kCount = Tile::kCols * kStageK * 4 / kBytes;
};

}  // namespace tiled::cuda::fp16x3_fused
