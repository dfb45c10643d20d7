#pragma once
// Where a lane's elements of C are among those of its warp.

#include "launch.h"

namespace tiled::cuda {

// A read of 16 bytes a lane takes four accesses to shared memory, of eight lanes each, but two
// where all lanes read what lane ^ 1 reads, or all what lane ^ 2 reads. So of kRows x kCols lanes
// the lowest bit counts columns and the next one rows: then A's elements are the same in such
// pairs, and so are B's.
template <int kRows, int kCols, bool kInPairs = true>
struct LanePlace {
  int row, col;
  __device__ explicit LanePlace(int lane) {
    static_assert(kRows * kCols <= 32);
    if constexpr (kInPairs && kRows > 1 &&
                  kCols > 2) {  // bit 1 changes places with the first of rows
      lane = lane % 2 + lane / kCols % 2 * 2 + lane % kCols / 4 * 4 + lane / 2 % 2 * kCols +
             lane / (2 * kCols) * (2 * kCols);
    }
    row = lane / kCols, col = lane % kCols;
  }
};

}  // namespace tiled::cuda
