#pragma once
// Loops on the host's threads.

#include <cstdint>

#include "core/context.h"

namespace tiled::cpu {

// Calls body(begin, end) for ranges of [0, count) on several threads; on this one alone if waking
// others would take longer than the loop.
//
// operations: of one of the `count` items, such as FMAs or stores.
template <typename Body>
void parallel_for(const Context& context, int64_t count, double operations, const Body& body) {
  constexpr double kFewOperations = 32768;  // PyTorch's at::internal::GRAIN_SIZE
  if (static_cast<double>(count) * operations <= kFewOperations) {
    body(int64_t{0}, count);
  } else {
    context.parallel_for(count, body);
  }
}

}  // namespace tiled::cpu
