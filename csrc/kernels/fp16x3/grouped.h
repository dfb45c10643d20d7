#pragma once
// Grouped products that cut rows, by kernels of this family and plans of equal groups.

#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled::cuda {

bool launch_grouped_fp16x3_direct(const Problem& p, const Plan& plan, const Context& context);
// For more rows than columns.
bool launch_grouped_fp16x3_rows(const Problem& p, const Plan& plan, const Context& context);

}  // namespace tiled::cuda
