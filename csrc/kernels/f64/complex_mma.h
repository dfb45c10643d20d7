#pragma once
// f64_mma and f64_direct of a complex product, which read B in place: the launches of rows of
// select/kernels.def (ReadsComplexB in select/ladder.h).

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled::cuda {

bool launch_f64_mma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                            const Context& context);
bool launch_f64_direct_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                               const Context& context);

}  // namespace tiled::cuda
