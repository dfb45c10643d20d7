#pragma once
// The range of magnitudes in a group of numbers, which decides its scale and whether it is wide
// (core/order_fp16x3.h).

#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

struct Range {
  uint32_t largest = 0;     // magnitude bits
  uint32_t smallest = ~0u;  // magnitude bits less 1, so that zero never is the smallest

  __device__ void add(float x) {
    const uint32_t magnitude = fp16x3::magnitude_bits(x);
    largest = max(largest, magnitude);
    smallest = min(smallest, magnitude - 1);
  }
  __device__ void add(const Range& other) {
    largest = max(largest, other.largest);
    smallest = min(smallest, other.smallest);
  }
  // Adds the range of the lane whose number differs in the bits of `lanes`.
  __device__ void add_lane(int lanes) {
    add({__shfl_xor_sync(~0u, largest, lanes), __shfl_xor_sync(~0u, smallest, lanes)});
  }
  // Adds a thread's vectors of a row, and those of the lanes that hold the same row: every kRows-th
  // lane.
  template <int kRows, int kVectors>
  __device__ void add_row(const float (&x)[kVectors][8]) {
    UNROLL
    for (int j = 0; j < kVectors; ++j) {
      UNROLL
      for (int i = 0; i < 8; ++i) add(x[j][i]);
    }
    UNROLL
    for (int lanes = kRows; lanes < 32; lanes *= 2) add_lane(lanes);
  }
  __device__ float inverse_scale(float scale) const {
    const float least = float_of(smallest + 1);
    return fp16x3::inverse_scale(largest, fp16x3::is_wide(least, least * scale));
  }
};

}  // namespace tiled::cuda
