#pragma once
// Softmax, logsumexp and sums of rows on a GPU.

#include "core/context.h"
#include "core/rows.h"

namespace tiled::cuda {

void launch_softmax(const RowsProblem& p, const Context& context);  // and logsumexp
void launch_softmax_backward(const SoftmaxBackward& p, const Context& context);
void launch_sum_rows(const RowsProblem& p, const Context& context);

// Returns false if there is no memory for its workspace.
bool launch_sum_columns(const ColumnsProblem& p, const Context& context);

}  // namespace tiled::cuda
