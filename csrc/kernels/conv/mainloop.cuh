#pragma once
// How a consumer warpgroup of the convolutions multiplies a chunk (core/order_fp16x3.h), and stores
// its 64 x 128 elements.

#include <cstdint>

#include "core/order_chunked.h"
#include "core/presplit.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/wgmma_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::conv {

namespace wgmma = ptx::wgmma;

constexpr int kK = Presplit::kK, kStepsOfChunk = kChunk / kK;
constexpr int kWarpgroup = 128, kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kElements = 64;  // accumulators of a thread, of 64 x 128 by a warpgroup

// Sums of chunks are kept as fp16x3_wgmma keeps them.
using fp16x3_wgmma::Accumulators;
using fp16x3_wgmma::add_to_totals;
using fp16x3_wgmma::store_chunk;
static_assert(kElements == fp16x3_wgmma::Tile::kElements);

// The columns of a consumer: the offset of each one in the result, in 48 bits, and the inverse
// scale of its numbers.
struct Columns {
  static constexpr int kCount = 128;
  static constexpr int64_t kNone = (int64_t{1} << 48) - 1;  // the offset of one that does not exist
  float inverse_scales[kCount];
  uint32_t low_offset[kCount];
  uint16_t high_offset[kCount];

  __device__ int64_t offset(int i) const {
    return static_cast<int64_t>(uint64_t{high_offset[i]} << 32 | low_offset[i]);
  }
  __device__ void set_offset(int i, int64_t offset) {
    low_offset[i] = static_cast<uint32_t>(offset);
    high_offset[i] = static_cast<uint16_t>(offset >> 32);
  }
  // Of a thread whose accumulator 0 is in column `first`.
  __device__ void load_scales(int first, float2 (&scales)[kElements / 4]) const {
    UNROLL
    for (int j = 0; j < kElements / 4; ++j) {
      scales[j] = *reinterpret_cast<const float2*>(&inverse_scales[first + j * 8]);
    }
  }
};

// A thread's elements of the result from accumulator `first` on. Accumulator i is in row `row + i /
// 2 % 2 * 8`, of which `rows` exist from `row` on, and in column `col + i / 4 * 8 + i % 2` of the
// table of columns.
struct Elements {
  int64_t row, rows;
  int col, first;

  __device__ int64_t row_of(int i) const { return row + i / 2 % 2 * 8; }
  __device__ int col_of(int i) const { return col + (first + i) / 4 * 8 + i % 2; }
  __device__ bool has(int i, const Columns& columns) const {
    return i / 2 % 2 * 8 < rows && columns.offset(col_of(i)) != Columns::kNone;
  }
};

// The rows of a tile in a presplit from a step of K on. A tile of the presplit may hold several of
// ours, one after another in each plane.
struct PresplitRows {
  const uint8_t* step;  // the hi plane's; the lo plane follows it by `plane` bytes
  int plane, bytes;     // of the presplit's tile, and of our rows in it

  __device__ PresplitRows(const Presplit& presplit, int64_t row, int rows, int64_t first_step) {
    const int64_t tile = row / Presplit::kRows;
    const int in_tile = static_cast<int>(row % Presplit::kRows),
              tile_rows = presplit.tile_rows(tile);
    plane = Presplit::plane_bytes(tile_rows);
    bytes = Presplit::plane_bytes(min(tile_rows - in_tile, rows));
    step =
        presplit.hi_lo + presplit.step_offset(0, tile, first_step) + Presplit::plane_bytes(in_tile);
  }
};

// Descriptors of the hi and lo parts of a stage.
struct Operands {
  uint64_t a_hi, a_lo, b_hi, b_lo;
};

// Multiplies the steps of a chunk, from zero: `total` is of the hi parts, promoted every kPromote
// of K, and `low` accumulates the two small products. operands_of(stage) gives the operands;
// release(stage) says that a stage has been read. Returns the last stage, which is not yet
// released: its small products are still running. 16 of K add kBStep to a descriptor of b, which is
// MN-major if that is not 2.
template <int kPromote, int kBStep = 2, class OperandsOf, class Release>
__device__ int multiply_chunk(uint64_t* full, ptx::PipelineState& pipe, int steps,
                              float (&low)[kElements], float (&total)[kElements],
                              const OperandsOf& operands_of, const Release& release) {
  constexpr int kNoStage = -1;
  float part[kElements];
  UNROLL
  for (int i = 0; i < kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&full[pipe.stage], pipe.parity);
    const Operands operands = operands_of(pipe.stage);
    // Unrolled, each part has registers of its own, and no two products overlap.
    NO_UNROLL
    for (int k = 0; k < kK; k += kPromote) {
      wgmma::fence_operand(part);
      wgmma::fence_operand(low);
      wgmma::fence();
      UNROLL
      for (int k16 = 0; k16 < kPromote / 16; ++k16) {
        const int k_step = k / 16 + k16, a = k_step * 2, b = k_step * kBStep;
        wgmma::mma<false, false, kBStep != 2>(part, operands.a_hi + a, operands.b_hi + b, k16 > 0);
      }
      wgmma::commit_group();
      UNROLL
      for (int k16 = 0; k16 < kPromote / 16; ++k16) {
        const int k_step = k / 16 + k16, a = k_step * 2, b = k_step * kBStep;
        wgmma::mma<false, false, kBStep != 2>(low, operands.a_hi + a, operands.b_lo + b, true);
        wgmma::mma<false, false, kBStep != 2>(low, operands.a_lo + a, operands.b_hi + b, true);
      }
      wgmma::commit_group();
      wgmma::wait_group<1>();
      wgmma::fence_operand(part);
      if (k == 0 && to_release != kNoStage) release(to_release);
      UNROLL
      for (int i = 0; i < kElements; ++i) total[i] += part[i];
    }
    to_release = pipe.stage;
  }
  return to_release;
}

// Adds kCount of a thread's sums, from accumulator `first` on, over `count` blocks in order.
template <int kCount>
__device__ void add_sums(const Accumulators* from, int pitch, int count, int first, int thread,
                         float (&sum)[kCount]) {
  UNROLL
  for (float& each : sum) each = kAddIdentity<float>;
  _Pragma("unroll 4") for (int index = 0; index < count; ++index, from += pitch) {
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const float4 x4 = __ldcg(&(*from)[(first + i) / 4][thread]);
      sum[i] += x4.x, sum[i + 1] += x4.y, sum[i + 2] += x4.z, sum[i + 3] += x4.w;
    }
  }
}

// The inverse scales of a thread's two rows in a chunk.
__device__ inline void load_row_scales(const Presplit& presplit, int chunk, int64_t row,
                                       float (&scales)[2]) {
  const float* of_rows = presplit.inverse_scales + chunk * presplit.padded_rows() + row;
  UNROLL
  for (int i = 0; i < 2; ++i) {
    scales[i] = row + i * 8 < presplit.padded_rows() ? of_rows[i * 8] : 1.0f;
  }
}

// Copies a thread's sums to shared memory and back, for a loop over them that is not unrolled.
template <int kCount>
__device__ void to_staging(float4 (&staging)[kCount / 4][kWarpgroup], int thread,
                           const float (&sum)[kCount]) {
  UNROLL
  for (int i = 0; i < kCount; i += 4) {
    staging[i / 4][thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
}
template <int kCount>
__device__ void from_staging(const float4 (&staging)[kCount / 4][kWarpgroup], int thread,
                             float (&sum)[kCount]) {
  UNROLL
  for (int i = 0; i < kCount; i += 4) {
    const float4 x4 = staging[i / 4][thread];
    sum[i] = x4.x, sum[i + 1] = x4.y, sum[i + 2] = x4.z, sum[i + 3] = x4.w;
  }
}

// Stores a thread's elements. `first_row` is the row of accumulator 0.
template <int kCount>
__device__ void store_elements(float* first_row, int64_t row_stride, const Elements& at,
                               const Columns& columns, const float (&sum)[kCount]) {
  UNROLL
  for (int i = 0; i < kCount; i += 4) {
    const int64_t offset = columns.offset(at.col_of(i)), next = columns.offset(at.col_of(i + 1));
    if (offset == Columns::kNone) continue;
    float* to = first_row + offset;
    UNROLL
    for (int down = 0; down < 2; ++down, to += 8 * row_stride) {
      if (down * 8 >= at.rows) break;
      const float2 x2 = {sum[i + down * 2], sum[i + down * 2 + 1]};
      if (next == offset + 1 && reinterpret_cast<uintptr_t>(to) % sizeof(float2) == 0) {
        *reinterpret_cast<float2*>(to) = x2;
      } else {
        *to = x2.x;
        if (next != Columns::kNone) to[next - offset] = x2.y;
      }
    }
  }
}

}  // namespace tiled::cuda::conv
