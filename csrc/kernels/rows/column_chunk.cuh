#pragma once
// The sums of a chunk of rows, column by column, in the order of core/order_rows.h.
//
// A block has 32 columns, a lane each. Warp w has parts w, w + kColumnWarps and so on, so that the
// tree's first steps are within a thread and the last ones between warps.

#include <cstdint>

#include "core/order_rows.h"
#include "kernels/common/launch.h"
#include "kernels/rows/row.cuh"

namespace tiled::cuda::rows {

inline constexpr int kColumnWarps = 16, kColumnThreads = kColumnWarps * kWarp;
inline constexpr int kRowsAtOnce = order::kParts / kColumnWarps;  // parts of a warp

template <typename A, int kSums>
using ColumnSmem = A[kSums][kColumnWarps][kWarp];

// x_i + x_{i + n / 2} of n numbers, then likewise of the n / 2 sums, down to one.
template <typename A, int kCount>
__device__ A sum_halves(const A (&x)[kCount]) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    A halves[kCount / 2];
    UNROLL
    for (int i = 0; i < kCount / 2; ++i) halves[i] = x[i] + x[i + kCount / 2];
    return sum_halves(halves);
  }
}

// Sums kSums sums of `count` rows; warp 0 gets them. load(row) loads what add(loaded, i, parts)
// adds to part i of the thread's kRowsAtOnce parts. prepare(row) is called before they are added,
// with the first of the rows, which are kColumnWarps apart. All threads of the block call it, once.
template <class Prepare, class Load, class Add, typename A, int kSums>
__device__ void sum_columns(int count, const Prepare& prepare, const Load& load, const Add& add,
                            ColumnSmem<A, kSums>& smem, A (&sums)[kSums]) {
  A parts[kSums][kRowsAtOnce] = {};
  for (int first = warp_index(); first < count; first += order::kParts) {
    decltype(load(0)) loaded[kRowsAtOnce] = {};
    UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = first + i * kColumnWarps;
      if (row < count) loaded[i] = load(row);
    }
    prepare(first);
    UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i * kColumnWarps < count) add(loaded[i], i, parts);
    }
  }
  UNROLL
  for (int k = 0; k < kSums; ++k) smem[k][warp_index()][lane_index()] = sum_halves(parts[k]);
  __syncthreads();
  if (warp_index() != 0) return;
  UNROLL
  for (int k = 0; k < kSums; ++k) {
    A of_warps[kColumnWarps];
    UNROLL
    for (int i = 0; i < kColumnWarps; ++i) of_warps[i] = smem[k][i][lane_index()];
    sums[k] = sum_halves(of_warps);
  }
}

}  // namespace tiled::cuda::rows
