#pragma once
// Where a lane's elements of C are among those of its warp.

#include "kernels/common/launch.h"

namespace tiled::cuda {

// A read of 16 bytes a lane is faster by a half where all lanes read what lane ^ 1 reads, or all
// what lane ^ 2 reads. So of kRows x kCols lanes the lowest bit counts columns and the next one
// rows: A's elements are the same in pairs of the first kind, and B's in those of the second.
template <int kRows, int kCols, bool kInPairs = true>
struct LanePlace {
  int row, col;
  __device__ explicit LanePlace(int lane) {
    static_assert(kRows * kCols <= 32);
    lane = exchange(lane);
    row = lane / kCols, col = lane % kCols;
  }
  __device__ static int lane(int row, int col) { return exchange(row * kCols + col); }

 private:
  // Bit 1 and the first of rows change places.
  __device__ static int exchange(int lane) {
    if constexpr (kInPairs && kRows > 1 && kCols > 2) {
      lane = lane % 2 + lane / kCols % 2 * 2 + lane % kCols / 4 * 4 + lane / 2 % 2 * kCols +
             lane / (2 * kCols) * (2 * kCols);
    }
    return lane;
  }
};

}  // namespace tiled::cuda
