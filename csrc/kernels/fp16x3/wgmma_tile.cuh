#pragma once
// fp16x3_wgmma: the tile of a block, its shared memory, and the kernel's parameters.

#include <cstdint>

#include "core/order_chunked.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/fp16x3/costs_h200.h"
#include "kernels/fp16x3/recompute_list.cuh"

namespace tiled::cuda::fp16x3_wgmma {

struct Tile {
  static constexpr int kM = 128, kN = 128, kK = Presplit::kK;
  static constexpr int kStages = 5;
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = 2;  // warpgroups, each of 64 rows of the tile
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kElements = 64;   // accumulators a thread
  static constexpr int kRasterRows = 8;  // rows of tiles that are rasterized together

  static_assert(kM == Presplit::kRows && kN == Presplit::kRows, "a step of a tile is one copy");
  static_assert(kM == h200::Fp16x3::kWgmmaTile && kN == h200::Fp16x3::kWgmmaTile);
};

// The accumulators of a consumer warpgroup: elements 4i .. 4i + 3 of a thread are at [i][thread].
using Accumulators = float4[Tile::kElements / 4][Tile::kWarpgroup];

struct Smem {
  struct Stage {
    uint8_t a[2 * Presplit::plane_bytes(Tile::kM)];  // the hi plane, then the lo plane
    uint8_t b[2 * Presplit::plane_bytes(Tile::kN)];
  };
  alignas(1024) Stage stage[Tile::kStages];
  Accumulators totals[Tile::kConsumers];  // of the chunks before
  float bias[Tile::kConsumers][Tile::kN];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct SplitOperand {
  Presplit presplit;
  Matrix matrix;  // batch_stride counts stored matrices
};

struct Params {
  TileScheduler scheduler;
  int64_t tiles;
  Problem p;
  SplitOperand a, b;
  RecomputeList recompute;
  bool bias_relu_at_most;  // is all that the epilogue has
  bool allows_x2_store;    // C takes pairs of a row at once
  // With split-K, the sums of chunks: (tiles, chunks, consumers).
  Accumulators* partial_sums;
};

// The chunks that a block accumulates: all of them, or its K split's, the grid's y.
struct KSplit {
  int first, end;
  __device__ explicit KSplit(const Problem& p) {
    const auto all = static_cast<unsigned>(ceil_div(p.k, kChunk));
    first = static_cast<int>(blockIdx.y * all / gridDim.y);
    end = static_cast<int>((blockIdx.y + 1) * all / gridDim.y);
  }
};

// The position of a thread's elements in C: element i is in row `row + i / 2 % 2 * 8` and column
// `col + i / 4 * 8 + i % 2`.
struct ThreadCoord {
  int64_t batch, row, col;
  int64_t tile_col;  // the first column of the tile
  __device__ ThreadCoord(const TileCoord& tile, int warpgroup, int thread)
      : batch(tile.batch),
        row(tile.row + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4),
        col(tile.col + thread % 4 * 2),
        tile_col(tile.col) {}
};

}  // namespace tiled::cuda::fp16x3_wgmma
