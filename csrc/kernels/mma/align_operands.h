#pragma once
// Copies of 16-bit operands that TMA cannot load.

#include <optional>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Returns the problem with operands that are is_tma_aligned(), or with such a B if only_b. Other
// operands are copied to a workspace in the layout that they have, or K-major if
// mma_transposes_to_k_major() says so. Returns nothing if there is no memory for a workspace, or if
// the copies are too many for one launch.
std::optional<Problem> align_operands(const Problem& p, const Context& context,
                                      bool only_b = false);

}  // namespace tiled::cuda
