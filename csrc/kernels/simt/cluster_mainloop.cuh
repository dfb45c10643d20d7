#pragma once
// simt_cluster: how a block copies operand rows, and how a thread multiplies two of them. Operand
// rows are those of either operand along its side of C.

#include <cuda_pipeline_primitives.h>

#include <bit>
#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/simt/plan.h"
#include "ptx/cp_async.cuh"

namespace tiled::cuda::simt_cluster {

inline constexpr int kThreads = kSimtClusterThreads;
inline constexpr int kThreadsLog2 = std::countr_zero(static_cast<unsigned>(kThreads));
inline constexpr int kPart = kChunk / 2;  // of K: what is waited for at a time
inline constexpr int kStep = 8;           // of K: what a thread reads ahead

// How threads copy an operand: row_lanes rows at a time, and kThreads / row_lanes places along K,
// each of `width` elements. Adjacent threads copy adjacent rows, or adjacent places. Warps request
// all rows of a place at about the same time, since they share cache lines.
struct CopyMode {
  int row_lanes_log2;
  bool rows_adjacent;
  int width;  // 1 or 4

  // For `count` rows of a tile.
  static CopyMode of(const Problem& p, const Matrix& matrix, int count) {
    const SimtClusterCopy copy = simt_cluster_copy(p, matrix, count);
    return {std::countr_zero(static_cast<unsigned>(copy.row_lanes)), copy.rows_adjacent,
            copy.width};
  }
};

// Begins to copy k of `count` operand rows, from `first` on and before `last`. In shared memory,
// element k of row i is at to[i * pitch + k]. The pitch is four more than a multiple of 32, so that
// eight threads that each read four k of a row of their own find them in different banks.
__device__ inline void copy_rows(const float* from, int64_t row_stride, int64_t k_stride, int count,
                                 CopyMode mode, int first, int last, float* to, int pitch) {
  constexpr int kAtOnce = 4;
  const int row_lanes = 1 << mode.row_lanes_log2, k_lanes = kThreads >> mode.row_lanes_log2;
  const int thread = threadIdx.x;
  int row, place;
  if (!mode.rows_adjacent) {
    row = thread >> (kThreadsLog2 - mode.row_lanes_log2), place = thread & (k_lanes - 1);
  } else if (row_lanes <= 8) {
    row = thread & (row_lanes - 1), place = thread >> mode.row_lanes_log2;
  } else {  // a warp has eight rows at four places, which lie in different banks
    const int warp = thread / 32;
    row = thread % 8 + warp % (row_lanes / 8) * 8;
    place = thread / 8 % 4 + (warp >> (mode.row_lanes_log2 - 3)) * 4;
  }
  const int first_k = first + place * mode.width, step = k_lanes * mode.width;
  const int64_t from_step = step * k_stride;
  const auto copy = [&](uint32_t target, const float* source) {
    if (mode.width == 4) {
      ptx::cp_async_16(target, source);
    } else {
      ptx::cp_async_4_zfill(target, source, 4);
    }
  };
  from += row * row_stride + first_k * k_stride;
  uint32_t to_row = ptx::shared_address(to + row * pitch + first_k);
  NO_UNROLL
  for (; row < count; row += row_lanes) {
    const float* source = from;
    uint32_t target = to_row;
    int k = first_k;
    NO_UNROLL
    for (; k + (kAtOnce - 1) * step < last; k += kAtOnce * step) {
      UNROLL
      for (int i = 0; i < kAtOnce; ++i, source += from_step) copy(target + i * step * 4, source);
      target += kAtOnce * step * 4;
    }
    NO_UNROLL
    for (; k < last; k += step, source += from_step, target += step * 4) copy(target, source);
    from += row_lanes * row_stride;
    to_row += row_lanes * pitch * 4;
  }
}

// Adds the products of k from `first` on and before `last`, both multiples of 2 * kStep. x and y
// are the element's operand rows.
__device__ inline float multiply_part(const float* x, const float* y, int first, int last,
                                      float acc) {
  constexpr int kVectors = kStep / 4;
  struct Operands {
    float4 x[kVectors], y[kVectors];
  } even, odd;
  const auto load = [&](Operands& to, int k) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      to.x[v] = *reinterpret_cast<const float4*>(&x[k + v * 4]);
      to.y[v] = *reinterpret_cast<const float4*>(&y[k + v * 4]);
    }
  };
  const auto multiply = [&](const Operands& of) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      acc = fused_multiply_add(of.x[v].x, of.y[v].x, acc);
      acc = fused_multiply_add(of.x[v].y, of.y[v].y, acc);
      acc = fused_multiply_add(of.x[v].z, of.y[v].z, acc);
      acc = fused_multiply_add(of.x[v].w, of.y[v].w, acc);
    }
  };
  load(even, first);
  NO_UNROLL
  for (int k = first; k < last; k += 2 * kStep) {
    load(odd, k + kStep);
    multiply(even);
    load(even, k + 2 * kStep < last ? k + 2 * kStep : first);  // or else not used
    multiply(odd);
  }
  return acc;
}

}  // namespace tiled::cuda::simt_cluster
