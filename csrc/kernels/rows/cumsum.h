#pragma once
// Running sums of rows on a GPU.

#include "core/context.h"
#include "core/order_cumsum.h"

namespace tiled::cuda {

void launch_cumsum(const CumSumProblem& p, const Context& context);

}  // namespace tiled::cuda
