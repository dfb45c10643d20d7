#pragma once
// simt_thin: how a warp loads and multiplies a chunk of K.
//
// The kernel sees a product from the side of its longer operand, whichever of A and B that is.
// `row` counts rows of the short operand, C's short side; `col` counts rows of the long operand,
// C's long side. Where the long operand is A, that is C transposed.

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"

namespace tiled::cuda::simt_thin {

inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kCols = 32;  // of a group: each lane has one
inline constexpr int kK = 32;     // of a stage
inline constexpr int kStages = 4;

// How a warp copies the long operand.
enum class Copy {
  kVectors,  // 128-bit vectors of K-major columns
  kKMajor,   // elements; adjacent lanes copy adjacent k
  kMnMajor,  // elements; adjacent lanes copy adjacent columns
};

// A warp's stage. The four k of unit u of a column are stored at unit u ^ column % 8, so that lanes
// that read one unit of eight columns find them in different banks.
template <int kRows>
struct Stage {
  alignas(128) float long_smem[kCols][kK];
  alignas(16) float short_smem[kRows][kK];
};

// A part of an operand that a warp goes through: `count` rows of it, from `at` on, one chunk long.
struct Part {
  const float* at;
  int64_t row_stride, k_stride;
  int count;
};

// Begins to copy a stage, of which `length` k are left.
template <int kRows>
__device__ void load_stage(Stage<kRows>& stage, Copy copy, const Part& columns, const Part& rows,
                           int length) {
  const int lane = threadIdx.x % 32;
  if (copy == Copy::kVectors) {
    const int k = lane % 8 * 4;
    NO_UNROLL
    for (int col = lane / 8; col < columns.count && k < length; col += 4) {
      ptx::cp_async_x4_zfill(ptx::shared_address(&stage.long_smem[col][k ^ col % 8 * 4]),
                             columns.at + col * columns.row_stride + k, min(length - k, 4) * 4);
    }
  } else {
    // Along K, a lane copies its k of all columns; along columns, its column of all k.
    const bool along_k = copy == Copy::kKMajor;
    const int count = along_k ? columns.count : min(length, kK);
    const int64_t stride = along_k ? columns.row_stride : columns.k_stride;
    const float* at = columns.at + lane * (along_k ? columns.k_stride : columns.row_stride);
    const uint32_t to = ptx::shared_address(stage.long_smem) + lane * (along_k ? 4 : kK * 4);
    const auto copy_x8 = [&](int first, int left) {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32_t offset = along_k ? (first + i) * (kK * 4) : (first + i) * 4;
        // The lane is k's place within the column, or the column; both are part of `to`.
        const uint32_t swizzle = (along_k ? i : lane % 8) * 16;
        if (i < left) ptx::cp_async_4_zfill((to + offset) ^ swizzle, at + i * stride, 4);
      }
      at += 8 * stride;
    };
    if (lane < (along_k ? length : columns.count)) {
      NO_UNROLL
      for (int first = 0; first < count; first += 8) {
        if (count - first >= 8) {
          copy_x8(first, 8);
        } else {
          copy_x8(first, count - first);
        }
      }
    }
  }
  if (lane < length) {
    const float* at = rows.at + lane * rows.k_stride;
    UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (row < rows.count) ptx::cp_async_4_zfill(&stage.short_smem[row][lane], at, 4);
      at += rows.row_stride;
    }
  }
}

// Adds the products of the first `count` of four k, for this lane's column.
template <int kRows>
__device__ void multiply_k4(const Stage<kRows>& stage, int k, int count, float (&acc)[kRows]) {
  const int lane = threadIdx.x % 32;
  const float4 x4 = *reinterpret_cast<const float4*>(&stage.long_smem[lane][k ^ lane % 8 * 4]);
  const float x[4] = {x4.x, x4.y, x4.z, x4.w};
  UNROLL
  for (int row = 0; row < kRows; ++row) {
    const float4 y4 = *reinterpret_cast<const float4*>(&stage.short_smem[row][k]);
    const float y[4] = {y4.x, y4.y, y4.z, y4.w};
    UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < count) acc[row] = fused_multiply_add(x[i], y[i], acc[row]);
    }
  }
}

// Sums a chunk of `length` for this lane's column and all rows. Columns and rows that do not exist
// have any sums.
template <int kRows>
__device__ void multiply_chunk(Stage<kRows> (&stages)[kStages], Copy copy, Part columns, Part rows,
                               int length, float (&acc)[kRows]) {
  int to_load = length;
  const auto load_next = [&](int stage) {
    if (to_load > 0) load_stage(stages[stage], copy, columns, rows, to_load);
    __pipeline_commit();
    columns.at += kK * columns.k_stride, rows.at += kK * rows.k_stride, to_load -= kK;
  };
  UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) load_next(stage);
  int own = 0;
  NO_UNROLL
  for (int left = length; left > 0; left -= kK, own = (own + 1) % kStages) {
    __pipeline_wait_prior(kStages - 2);
    __syncwarp();  // all lanes' copies have landed, and none reads the stage that is loaded next
    load_next((own + kStages - 1) % kStages);
    if (left >= kK) {
      UNROLL
      for (int k = 0; k < kK; k += 4) multiply_k4(stages[own], k, 4, acc);
    } else {
      NO_UNROLL
      for (int k = 0; k < left; k += 4) multiply_k4(stages[own], k, left - k, acc);
    }
  }
  __syncwarp();  // before the next chunk's copies
}

}  // namespace tiled::cuda::simt_thin
