#pragma once
// The range of magnitudes in a group of numbers, which decides its scale and whether it is wide or
// coarse; and the count of small numbers, for groups that are wide (core/order_fp16x3.h).

#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

template <bool kHasBits>
struct BasicRange {
  static constexpr uint32_t kBits = kHasBits ? 0xffffu : 0;

  // Magnitude bits, except that the last 16, which no scale depends on, are the bitwise or of all
  // numbers if `kHasBits`: they are 0 if all are bfloat16 numbers. Otherwise they may be any.
  uint32_t largest = 0;
  uint32_t smallest = ~0u;  // magnitude bits less 1, so that zero never is the smallest

  template <int kCount>
  __device__ void add_all(const float (&x)[kCount]) {
    uint32_t bits = largest;
    UNROLL
    for (const float each : x) {
      const uint32_t magnitude = fp16x3::magnitude_bits(each);
      largest = max(largest, magnitude);
      smallest = min(smallest, magnitude - 1);
      bits |= magnitude;
    }
    largest |= bits & kBits;
  }
  __device__ void add(const BasicRange& other) {
    const uint32_t bits = largest | other.largest;
    largest = max(largest, other.largest) | (bits & kBits);
    smallest = min(smallest, other.smallest);
  }
  // Adds the range of the lane with a number that differs in the bits of `lanes`.
  __device__ void add_lane(int lanes) {
    add({__shfl_xor_sync(~0u, largest, lanes), __shfl_xor_sync(~0u, smallest, lanes)});
  }
  // Adds a thread's vectors of a row, and of the lanes that hold the same row: every kRows-th
  // lane.
  template <int kRows, int kVectors>
  __device__ void add_row(const float (&x)[kVectors][8]) {
    UNROLL
    for (int j = 0; j < kVectors; ++j) add_all(x[j]);
    UNROLL
    for (int lanes = kRows; lanes < 32; lanes *= 2) add_lane(lanes);
  }
  __device__ bool is_wide(float scale) const { return fp16x3::is_small(least(), least() * scale); }
  __device__ bool is_coarse(float scale) const {
    static_assert(kHasBits);
    return is_coarse(scale, largest);
  }
  // The same by the bitwise or of all numbers.
  __device__ bool is_coarse(float scale, uint32_t bits) const {
    return fp16x3::is_coarse(bits, least() * scale);
  }

 private:
  __device__ float least() const { return float_of(smallest + 1); }
};
using Range = BasicRange<true>;

// Numbers that fp16x3::is_small() by `scale`, a power of two. A product for each number would cost
// registers: they are compared with 2^-13 / scale.
template <int kCount>
__device__ uint32_t count_small_numbers(const float (&x)[kCount], float scale) {
  const float limit = 0x1p-14f * float_of((255u << 23) - bits_of(scale));
  uint32_t count = 0;
  UNROLL
  for (const float each : x) count += each != 0 && fabsf(each) < limit;
  return count;
}

// Adds `count` to the small numbers of a group's inverse scale in shared memory. Several threads
// may call it at once, beside store_inverse_scale() by another one.
__device__ inline void add_small_numbers(float* inverse_scale, uint32_t count) {
  if (count == 0) return;
  auto* bits = reinterpret_cast<uint32_t*>(inverse_scale);
  atomicAdd(bits, count);
  atomicOr(bits, 0x80000000u);
}
// Stores the inverse scale of a group in shared memory, which has 0 before, or small numbers.
__device__ inline void store_inverse_scale(float* inverse_scale, uint32_t largest, bool coarse) {
  atomicOr(reinterpret_cast<uint32_t*>(inverse_scale),
           bits_of(fp16x3::inverse_scale(largest, 0, coarse)));
}

}  // namespace tiled::cuda
