#pragma once
// Norms of rows on a GPU.

#include "core/context.h"
#include "core/norms.h"

namespace tiled::cuda {

void launch_norm(const NormProblem& p, const Context& context);

// Returns false if there is no memory for the column sums' workspace.
bool launch_norm_backward(const NormBackward& p, const Context& context);

namespace rows {

// The gradients of the weight and of the bias; false if there is no memory.
bool launch_column_sums(const NormBackward& p, const Context& context);

}  // namespace rows
}  // namespace tiled::cuda
