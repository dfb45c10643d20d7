#pragma once
// f64_mma and f64_direct of a complex product, which read B as it lies.

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled::cuda {

// Compute the real product of core/complex.h, whose `b` is that of in_place_b(). They return true.
bool launch_f64_mma_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                            const Context& context);
bool launch_f64_direct_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                               const Context& context);

}  // namespace tiled::cuda
