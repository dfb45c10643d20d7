#pragma once
// How the lanes of a warp are arranged over its elements of C.

#include "kernels/common/launch.h"

namespace tiled::cuda {

// The row and the column of a lane among the kRows x kCols lanes of a warp.
//
// Shared memory serves a warp's 128-bit load in fewer wavefronts if every lane reads the address
// of lane ^ 1, or every lane that of lane ^ 2: it then merges the requests of such pairs. In the
// paired order, bit 0 of the lane counts columns and bit 1 counts rows. So lane ^ 1 has the same
// row and reads the same elements of A, and lane ^ 2 has the same column and reads the same of B.
template <int kRows, int kCols, bool kPaired = true>
struct LaneCoord {
  int row, col;
  __device__ explicit LaneCoord(int lane) {
    static_assert(kRows * kCols <= 32);
    lane = swap_bits(lane);
    row = lane / kCols, col = lane % kCols;
  }
  __device__ static int lane(int row, int col) { return swap_bits(row * kCols + col); }

 private:
  // Exchanges bit 1 with the lowest bit of the row: from a lane to row * kCols + col, and back.
  __device__ static int swap_bits(int lane) {
    if constexpr (kPaired && kRows > 1 && kCols > 2) {
      lane = lane % 2 + lane / kCols % 2 * 2 + lane % kCols / 4 * 4 + lane / 2 % 2 * kCols +
             lane / (2 * kCols) * (2 * kCols);
    }
    return lane;
  }
};

}  // namespace tiled::cuda
