#pragma once
#include "core/context.h"
#include "core/problem.h"

namespace tiled::cpu {

// C = activation(alpha * A + bias + beta * C). p.a holds finished sums (m, n) in the
// accumulator type of p.dtype.
void apply_epilogue(const Problem& p, const Context& context);

}  // namespace tiled::cpu
