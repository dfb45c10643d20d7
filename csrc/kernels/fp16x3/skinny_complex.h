#pragma once
// fp16x3_skinny of a complex product with few rows, which reads B as it lies.

#include "core/complex.h"
#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Computes the real product of core/complex.h, whose `b` is that of in_place_b(). B is the longer
// operand. Returns false, with C untouched, where there is no memory for a workspace.
bool launch_fp16x3_skinny_complex(const Problem& p, const SignsOfB& signs, const Context& context);

}  // namespace tiled::cuda
