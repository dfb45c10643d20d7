#pragma once
// The epilogue of f64's tensor core kernels: a warp's sums go from shared memory to C.

#include <cstdint>

#include "core/epilogue.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "ptx/warp.cuh"

namespace tiled::cuda::f64_mma {

// Applies the epilogue to a warp's kRows x kCols sums, and stores them at (row, col) of C's matrix
// that begins at c_offset, as far as they are inside. sum_at(row, col) reads a sum from shared
// memory. Adjacent lanes store adjacent elements, so stores fill sectors at any alignment of C. The
// four lanes that have a row in a fragment would fill parts of sectors if C is not 32-byte aligned.
template <int kRows, int kCols, class SumAt>
__device__ void store_sums(const Problem& p, int64_t c_offset, int64_t row, int64_t col,
                           SumAt&& sum_at) {
  const bool by_col = p.c.row_stride < p.c.col_stride;  // lanes are along a column of C
  const auto rows = static_cast<int>(min(p.m - row, int64_t{kRows}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{kCols}));
  const int along = by_col ? rows : cols, across = by_col ? cols : rows;
  const int64_t along_stride = by_col ? p.c.row_stride : p.c.col_stride;
  const int64_t across_stride = by_col ? p.c.col_stride : p.c.row_stride;
  // If a row is shorter than a warp, a power of two of lanes is along it, and others take more
  // rows.
  const int lane = ptx::lane_id();
  const int log_lanes = min(5, 32 - __clz(along - 1));
  const int first = lane >> log_lanes, step = 32 >> log_lanes;
  __syncwarp();  // all lanes have written their sums
  // The loops are the same for all lanes, so that what is uniform stays in uniform registers.
  NO_UNROLL
  for (int begin = 0; begin < along; begin += 32) {
    const int i = begin + (lane & ((1 << log_lanes) - 1));
    const int end = i < along ? across : 0;
    const auto sum = [&](int j) { return by_col ? sum_at(i, j) : sum_at(j, i); };
    if (p.epilogue.is_identity()) {
      double* c = static_cast<double*>(p.c.data) + c_offset + row * p.c.row_stride +
                  col * p.c.col_stride + i * along_stride + first * across_stride;
      constexpr int kAtOnce = 4;
      NO_UNROLL
      for (int j = first; j < across + first; j += kAtOnce * step) {
        double sums[kAtOnce];
        UNROLL
        for (int k = 0; k < kAtOnce; ++k) sums[k] = sum(min(j + k * step, across - 1));
        UNROLL
        for (int k = 0; k < kAtOnce; ++k, c += step * across_stride) {
          if (j + k * step < end) *c = sums[k];
        }
      }
    } else {
      NO_UNROLL
      for (int j = first; j < across + first; j += step) {
        if (j >= end) continue;
        store<double>(p, c_offset, row + (by_col ? i : j), col + (by_col ? j : i), sum(j));
      }
    }
  }
  __syncwarp();  // the sums may be overwritten
}

// A warp's sums in shared memory. Eight lanes at once write pairs of adjacent columns, four in each
// of two rows that are 2 or 8 apart; lanes of store_sums() read a row or a column.
template <int kRows, int kCols>
class WarpSums {
 public:
  // The place of a pair, which begins at an even col. It is linear over ^: the place of a lane's
  // first pair ^ that of a pair's distance from it, if their rows and columns have no bit in
  // common.
  __device__ static constexpr int place(int row, int col) {
    const int swizzle = (row & 1) * 2 ^ (row & 4) ^ ((row >> 1 ^ row >> 3) & 1) * 12;
    return row * kCols ^ col ^ swizzle;
  }
  __device__ double2& pair(int place) { return *reinterpret_cast<double2*>(&sums_[place]); }
  __device__ void store(const Problem& p, int64_t c_offset, int64_t row, int64_t col) const {
    store_sums<kRows, kCols>(p, c_offset, row, col,
                             [&](int i, int j) { return sums_[place(i, j)]; });
  }

 private:
  static_assert(kCols % 16 == 0);
  alignas(16) double sums_[kRows * kCols];
};

}  // namespace tiled::cuda::f64_mma
