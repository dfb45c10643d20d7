#pragma once
// Division by a number that the host knows.

#include <bit>
#include <cstdint>

namespace tiled::cuda {

// Divides numbers below 2^31 by a multiplication and a shift: Granlund and Montgomery, "Division by
// Invariant Integers using Multiplication", 1994. A kernel locates its first tile before its first
// load, so the latency of a division would be exposed.
struct FastDivmod {
  uint32_t by, factor, shift;

  static FastDivmod of(uint32_t by) {
    const auto bits = static_cast<uint32_t>(std::bit_width(by - 1));
    const auto factor = ((uint64_t{1} << (31 + bits)) + by - 1) / by;
    return {by, static_cast<uint32_t>(factor), 31 + bits};
  }
  __device__ uint32_t divide(uint32_t x) const {
    return static_cast<uint32_t>(uint64_t{x} * factor >> shift);
  }
  __device__ int64_t divide(int64_t x) const {
    return x >> 31 == 0 ? divide(static_cast<uint32_t>(x)) : x / by;
  }
};

}  // namespace tiled::cuda
