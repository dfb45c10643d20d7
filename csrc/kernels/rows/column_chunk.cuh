#pragma once
// The sums of a chunk of rows, column by column, in the order of core/order_rows.h.
//
// A block has 16 lanes' columns, a 32-bit word of each row or one double for a lane. A half of a
// warp adds 4 of the 128 parts: its steps of the tree are the first ones, and the others are
// between the halves of all warps.

#include <cstdint>

#include "core/order_rows.h"
#include "kernels/common/launch.h"
#include "kernels/rows/row.cuh"

namespace tiled::cuda::rows {

inline constexpr int kColumnThreads = 512, kColumnLanes = 16;
inline constexpr int kGroups = kColumnThreads / kColumnLanes;  // of lanes, with a row each
inline constexpr int kPartsOfGroup = order::kParts / kGroups;
template <typename T>
inline constexpr int kColumnsOfLane = sizeof(T) == 2 ? 2 : 1;
template <typename T>
inline constexpr int kColumnsOfBlock = kColumnLanes * kColumnsOfLane<T>;

__device__ inline int column_lane() { return static_cast<int>(threadIdx.x) % kColumnLanes; }
__device__ inline int column_group() { return static_cast<int>(threadIdx.x) / kColumnLanes; }

// A lane's adjacent columns of a row.
template <typename T>
struct alignas(kColumnsOfLane<T> * sizeof(T)) Columns {
  T elements[kColumnsOfLane<T>];
};

// Loads the columns of which the matrix has `left`, and zeros for the others.
template <typename T>
__device__ Columns<T> load_columns(const T* from, int left, bool is_vectorized) {
  Columns<T> columns = {};
  if (is_vectorized) {
    if (left > 0) columns = *reinterpret_cast<const Columns<T>*>(from);
  } else {
    UNROLL
    for (int v = 0; v < kColumnsOfLane<T>; ++v) {
      if (v < left) columns.elements[v] = from[v];
    }
  }
  return columns;
}

// Returns whether all rows are aligned for load_columns(), and none ends within a lane's columns.
template <typename T>
bool are_columns_vectorized(const void* data, int64_t columns,
                            std::initializer_list<int64_t> pitches) {
  bool is_vectorized = reinterpret_cast<uintptr_t>(data) % alignof(Columns<T>) == 0;
  for (const int64_t size : pitches) is_vectorized &= size % kColumnsOfLane<T> == 0;
  return is_vectorized && columns % kColumnsOfLane<T> == 0;
}

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

template <typename A, int kSums, int kColumns>
using ColumnSmem = A[kSums][kColumns][kGroups][kColumnLanes];

// Sums kSums sums of each column over `count` rows. load(row) loads a lane's columns, or zeros from
// row `count` on; add(loaded, first, i, parts) adds those of row first + i * kGroups to part i; and
// store(k, v, sum) gets sum k of a lane's column v, in some thread of that lane. All threads of the
// block call it, once.
template <int kSums, int kColumns, typename A, class Load, class Add, class Store>
__device__ void sum_columns(int count, const Load& load, const Add& add, const Store& store,
                            ColumnSmem<A, kSums, kColumns>& smem) {
  constexpr int kSteps = kSums * kColumns > 2 ? 1 : 2;  // loaded at once, as registers allow
  A parts[kSums][kColumns][kPartsOfGroup] = {};
  for (int first = column_group(); first < order::kChunk; first += kSteps * order::kParts) {
    if (first - column_group() >= count) break;
    decltype(load(0)) loaded[kSteps][kPartsOfGroup];
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      UNROLL
      for (int i = 0; i < kPartsOfGroup; ++i) {
        loaded[step][i] = load(first + step * order::kParts + i * kGroups);
      }
    }
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      add(loaded[step], first + step * order::kParts, parts);
    }
  }
  UNROLL
  for (int k = 0; k < kSums; ++k) {
    UNROLL
    for (int v = 0; v < kColumns; ++v) {
      smem[k][v][column_group()][column_lane()] = sum_halves(parts[k][v]);
    }
  }
  __syncthreads();
  if (column_group() >= kSums * kColumns) return;
  const int k = column_group() / kColumns, v = column_group() % kColumns;
  A of_groups[kGroups];
  UNROLL
  for (int i = 0; i < kGroups; ++i) of_groups[i] = smem[k][v][i][column_lane()];
  store(k, v, sum_halves(of_groups));
}

}  // namespace tiled::cuda::rows
