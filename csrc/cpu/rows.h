#pragma once
// Softmax, logsumexp and sums of rows on the CPU.

#include "core/context.h"
#include "core/rows.h"

namespace tiled::cpu {

void launch_rows(const RowsProblem& p, const Context& context);
void launch_softmax_backward(const SoftmaxBackward& p, const Context& context);

}  // namespace tiled::cpu
