#pragma once
// Operands as the copy engine wants them for tiles of (K, rows of A) and (K, columns of B).

#include <optional>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// The problem, of float32, with operands that tensor maps can read (kernels/tensor_map.h) and whose
// neighbours lie along rows of A and along columns of B. Those that lie otherwise are copied by a
// kernel, and the next may start before that has ended, or not: nothing where there is no memory
// for that. For K > 0.
std::optional<Problem> lay_out(const Problem& p, bool next_starts_early, const Context& context);

}  // namespace tiled::cuda
