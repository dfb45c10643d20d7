#pragma once
// The scale of a group: a row of A or a column of B in one chunk (core/order_fp16x3.h).

#include <algorithm>
#include <cstdint>

#include "core/order_fp16x3.h"

namespace tiled::cpu {

struct Group {
  float scale = 1;
  float inverse_scale = 1;
};

// Finds the scale of the group at(0), .., at(count - 1).
template <typename At>
Group measure(int64_t count, const At& at) {
  uint32_t largest = 0, smallest = ~0u, bits = 0;  // `smallest` is 1 less, so that 0 is not it
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t magnitude = fp16x3::magnitude_bits(at(k));
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1);
    bits |= magnitude;
  }
  const float scale = fp16x3::scale(largest);
  uint32_t small_numbers = 0;
  for (int64_t k = 0; k < count; ++k) small_numbers += fp16x3::is_small(at(k), at(k) * scale);
  const bool coarse = fp16x3::is_coarse(bits, float_of(smallest + 1) * scale);
  return {scale, fp16x3::inverse_scale(largest, small_numbers, coarse)};
}

}  // namespace tiled::cpu
