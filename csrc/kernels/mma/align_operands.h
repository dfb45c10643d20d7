#pragma once
// Operands of halves in lines that a tensor map can read.

#include <optional>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// The problem, of halves, with operands that are is_tma_aligned() (problem.h), or only with such a
// b. Others are copied by a kernel, line by line, whichever way their closer elements lie; and
// those that mma_transposes_to_k_major() (mma.h) to lines along K. Nothing where there is no memory
// for that, or lines are too many to be numbered by 31 bits.
std::optional<Problem> align_operands(const Problem& p, const Context& context,
                                      bool only_b = false);

}  // namespace tiled::cuda
