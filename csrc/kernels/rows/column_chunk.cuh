#pragma once
// The sums of a chunk of rows, column by column, in the order of core/order_rows.h.
//
// A block has the columns of 16 lanes: one of each lane, or two adjacent ones of 16 bits. A half of
// a warp adds 4 of the 128 parts: its steps of the tree are the first ones, and the others are
// between all groups of 16 lanes.

#include <cstdint>

#include "core/order_rows.h"
#include "kernels/common/launch.h"
#include "kernels/rows/row.cuh"

namespace tiled::cuda::rows {

inline constexpr int kColumnThreads = 512, kColumnLanes = 16;
inline constexpr int kGroups = kColumnThreads / kColumnLanes;  // of lanes, with a row each
inline constexpr int kPartsOfGroup = order::kParts / kGroups;
__device__ inline int column_lane() { return static_cast<int>(threadIdx.x) % kColumnLanes; }
__device__ inline int column_group() { return static_cast<int>(threadIdx.x) / kColumnLanes; }

// A lane's adjacent columns of a row, loaded at once.
template <typename T, int kColumns>
struct alignas(kColumns * sizeof(T)) Columns {
  T elements[kColumns];
};

// The columns of a matrix that a lane has, (rows, columns). Its loads are within the matrix, so
// that no load waits for a branch: lanes past the last column have it, too.
template <typename T, int kColumns>
class ColumnsOfLane {
 public:
  __device__ ColumnsOfLane(const void* data, int64_t pitch, int64_t first_row, int count,
                           int64_t column, int64_t columns)
      : data_(static_cast<const T*>(data) + first_row * pitch + min(column, columns - kColumns)),
        pitch_(pitch),
        last_(count - 1) {}

  __device__ Columns<T, kColumns> operator()(int row) const {
    return *reinterpret_cast<const Columns<T, kColumns>*>(data_ + min(row, last_) * pitch_);
  }

 private:
  const T* data_;
  int64_t pitch_;
  int last_;
};

// Returns whether lanes can load two columns of 16 bits at once.
inline bool has_pairs(const void* data, int64_t columns, int64_t pitch) {
  return reinterpret_cast<uintptr_t>(data) % 4 == 0 && columns % 2 == 0 && pitch % 2 == 0;
}

// Calls f.template operator()<kColumns>() for the columns of a lane.
template <typename T, class F>
void with_columns(bool are_pairs, const F& f) {
  if constexpr (sizeof(T) == 2) {
    if (are_pairs) return f.template operator()<2>();
  }
  f.template operator()<1>();
}

// x_i + x_{i + n / 2} of n numbers, then likewise of the n / 2 sums, down to one.
template <typename A, int kCount>
__device__ A sum_pairs(const A (&x)[kCount]) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    A sums[kCount / 2];
    UNROLL
    for (int i = 0; i < kCount / 2; ++i) sums[i] = x[i] + x[i + kCount / 2];
    return sum_pairs(sums);
  }
}

template <typename A, int kSums, int kColumns>
using ColumnSmem = A[kSums][kColumns][kGroups][kColumnLanes];

// Sums kSums sums of each column over `count` rows. load(row) loads a lane's columns, and
// add(loaded, i, parts) adds them to part i of the thread's; store(k, v, sum) gets sum k of a
// lane's column v, in some thread of that lane. All threads of the block call it, once.
template <int kSums, int kColumns, typename A, class Load, class Add, class Store>
__device__ void sum_columns(int count, const Load& load, const Add& add, const Store& store,
                            ColumnSmem<A, kSums, kColumns>& smem) {
  constexpr int kSteps = kSums * kColumns > 2 ? 1 : 2;  // loaded at once, as registers allow
  constexpr int kLoads = kSteps * kPartsOfGroup;
  A parts[kSums][kColumns][kPartsOfGroup] = {};
  for (int first = column_group(); first < count; first += kSteps * order::kParts) {
    decltype(load(0)) loaded[kLoads];
    UNROLL
    for (int i = 0; i < kLoads; ++i) loaded[i] = load(first + i * kGroups);
    UNROLL
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kGroups < count) add(loaded[i], i % kPartsOfGroup, parts);
    }
  }
  UNROLL
  for (int k = 0; k < kSums; ++k) {
    UNROLL
    for (int v = 0; v < kColumns; ++v) {
      smem[k][v][column_group()][column_lane()] = sum_pairs(parts[k][v]);
    }
  }
  __syncthreads();
  if (column_group() >= kSums * kColumns) return;
  const int k = column_group() / kColumns, v = column_group() % kColumns;
  A of_groups[kGroups];
  UNROLL
  for (int i = 0; i < kGroups; ++i) of_groups[i] = smem[k][v][i][column_lane()];
  store(k, v, sum_pairs(of_groups));
}

}  // namespace tiled::cuda::rows
