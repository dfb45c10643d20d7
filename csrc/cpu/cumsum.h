#pragma once
// Running sums of rows on the CPU.

#include "core/context.h"
#include "core/order_cumsum.h"

namespace tiled::cpu {

void launch_cumsum(const CumSumProblem& p, const Context& context);

}  // namespace tiled::cpu
