#pragma once
// What fp16x3_wgmma has around its main loop (wgmma_sm90.cu): the tile, the shared memory, the
// parameters and the epilogues.

#include <cstdint>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace fp16x3_wgmma {

// --- The tile of a block, its shared memory, and the kernel's parameters -------------------------

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
  bool has_lo[Tile::kStages];  // whether a stage has the lo plane of a 16-bit operand
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// Which operand is a 16-bit one.
enum class NarrowSide { kNone, kA, kB };

static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct SplitOperand {
  Presplit presplit;
  Matrix matrix;  // batch_stride counts stored matrices
  LoFlags flags;  // of a 16-bit operand
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

// The chunks that a block accumulates: all of them, or those of its K split, the grid's y.
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

// --- Epilogues of a chunk and of a tile ----------------------------------------------------------

// The sums of a chunk are descaled and added to those of the chunks before, or stored for the
// split-K reduction. The totals are stored to C, and flagged if they are NaN. The split-K reduction
// ends in the same stores.

// The inverse scales of a chunk, for a thread's rows and columns.
struct InverseScales {
  float row[2];
  float2 col[Tile::kElements / 4];

  __device__ InverseScales(const Presplit& a, int64_t a_matrix, const Presplit& b, int64_t b_matrix,
                           int chunk, const ThreadCoord& coord) {
    const float* of_a = a.inverse_scales + a_matrix * a.matrix_groups() + chunk * a.padded_rows();
    const float* of_b = b.inverse_scales + b_matrix * b.matrix_groups() + chunk * b.padded_rows();
    UNROLL
    for (int i = 0; i < 2; ++i) {
      row[i] = coord.row + i * 8 < a.padded_rows() ? of_a[coord.row + i * 8] : 1.0f;
    }
    UNROLL
    for (int j = 0; j < Tile::kElements / 4; ++j) {
      const int64_t first = coord.col + j * 8;
      col[j] =
          first < b.padded_rows() ? *reinterpret_cast<const float2*>(of_b + first) : float2{1, 1};
    }
  }
};

// Adds the totals of the chunks before, if there are any, and keeps the new totals for the chunks
// that follow, if there are any.
__device__ inline void add_to_totals(Accumulators& totals, int thread, bool has_previous,
                                     bool has_next, float (&sum)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    float4& total = totals[i / 4][thread];
    if (has_previous) {
      sum[i] += total.x, sum[i + 1] += total.y;
      sum[i + 2] += total.z, sum[i + 3] += total.w;
    }
    if (has_next) total = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
}

// The sums of a chunk in the workspace of the split-K reduction.
__device__ inline Accumulators& partial_sums(const Params& params, int64_t tile, int chunk,
                                             int warpgroup) {
  const int64_t index = tile * ceil_div(params.p.k, kChunk) + chunk;
  return params.partial_sums[index * Tile::kConsumers + warpgroup];
}

// Stores a chunk's sums for the split-K reduction.
__device__ inline void store_chunk(Accumulators& sums, int thread,
                                   const float (&sum)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    __stcg(&sums[i / 4][thread], float4{sum[i], sum[i + 1], sum[i + 2], sum[i + 3]});
  }
}

// Stores the totals from registers, after a bias and ReLU at most: in pairs if C allows it and
// all elements of the warp are inside. Returns false, with nothing done, if the epilogue is
// another, or an element is flagged.
__device__ inline bool try_store(const Params& params, const ThreadCoord& coord,
                                 float (&sum)[Tile::kElements], const float (&bias)[Tile::kN]) {
  const Problem& p = params.p;
  bool possible = params.bias_relu_at_most;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) possible &= !isnan(sum[i]);
  if (!__all_sync(~0u, possible)) return false;
  if (p.epilogue.bias != nullptr) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 4) {
      const float2 x2 = *reinterpret_cast<const float2*>(&bias[threadIdx.x % 4 * 2 + i * 2]);
      sum[i] += x2.x, sum[i + 1] += x2.y, sum[i + 2] += x2.x, sum[i + 3] += x2.y;
    }
  }
  if (p.epilogue.activation == Activation::kRelu) {
    UNROLL
    for (float& each : sum) each = activate(Activation::kRelu, each);
  }
  const OutMatrix& c = p.c;
  float* data = static_cast<float*>(c.data) + batch_offset(p.batch, c, coord.batch) +
                coord.row * c.row_stride + coord.col * c.col_stride;
  const int64_t down = 8 * c.row_stride;
  const bool inside = coord.row + 8 < p.m && coord.col + Tile::kN - 8 + 1 < p.n;
  if (__all_sync(~0u, inside) && params.allows_x2_store) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 2) {
      *reinterpret_cast<float2*>(data + i / 2 % 2 * down + i / 4 * 8) = {sum[i], sum[i + 1]};
    }
    return true;
  }
  const bool has_row[2] = {coord.row < p.m, coord.row + 8 < p.m};
  const int cols_left = static_cast<int>(min(p.n - coord.col, int64_t{Tile::kN}));
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, data += 8 * c.col_stride) {
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (has_row[j / 2] && i * 2 + j % 2 < cols_left) {
        data[j / 2 * down + j % 2 * c.col_stride] = sum[i + j];
      }
    }
  }
  return true;
}

// Stores the totals one by one, after any epilogue, except flagged ones, which are listed. Totals
// go through shared memory so that the loop need not be unrolled: it would hold the code of every
// activation 64 times.
__device__ inline void store_each(const Params& params, const ThreadCoord& coord,
                                  const float (&sum)[Tile::kElements],
                                  const float (&bias)[Tile::kN], Accumulators& staging) {
  const Problem& p = params.p;
  const Epilogue& epilogue = p.epilogue;
  const int thread = threadIdx.x % Tile::kWarpgroup;
  const int64_t down = 8 * p.c.row_stride, right = p.c.col_stride;
  const bool inside[2] = {coord.row < p.m, coord.row + 8 < p.m};
  const int cols_left = static_cast<int>(min(p.n - coord.col, int64_t{Tile::kN}));
  uint64_t flags = 0;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const bool exists = inside[i / 2 % 2] && i / 4 * 8 + i % 2 < cols_left;
    if (exists && isnan(sum[i])) flags |= uint64_t{1} << i;
  }
  append_flagged(params.recompute, coord.batch, coord.row, coord.col, flags);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    staging[i / 4][thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
  float* c = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, coord.batch) +
             coord.row * p.c.row_stride + coord.col * p.c.col_stride;
  NO_UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, c += 8 * right) {
    const float4 x4 = staging[i / 4][thread];
    const float each[] = {x4.x, x4.y, x4.z, x4.w};
    const float2 bias_x2 = *reinterpret_cast<const float2*>(&bias[thread % 4 * 2 + i * 2]);
    bool stored[4];
    float old[4] = {};
    UNROLL
    for (int j = 0; j < 4; ++j) {
      stored[j] = inside[j / 2] && i * 2 + j % 2 < cols_left && !isnan(each[j]);
      if (epilogue.beta != 0 && stored[j]) old[j] = c[j / 2 * down + j % 2 * right];
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float value = combine(epilogue, each[j], j % 2 == 0 ? bias_x2.x : bias_x2.y, old[j]);
      if (stored[j]) c[j / 2 * down + j % 2 * right] = activate(epilogue.activation, value);
    }
  }
}

// Stores a warpgroup's totals. `barrier` is the warpgroup's own; `staging` is shared memory that
// the totals may overwrite.
__device__ inline void store_tile(const Params& params, const ThreadCoord& coord, int barrier,
                                  float (&sum)[Tile::kElements], float (&bias)[Tile::kN],
                                  Accumulators& staging) {
  if (params.p.epilogue.bias != nullptr) {
    load_bias<float>(params.p.epilogue, 0, params.p.n, coord.tile_col, barrier, bias);
  }
  if (!try_store(params, coord, sum, bias)) store_each(params, coord, sum, bias, staging);
}

}  // namespace fp16x3_wgmma
}  // namespace tiled::cuda
