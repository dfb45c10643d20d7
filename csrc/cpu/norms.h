#pragma once

#include "core/context.h"
#include "core/norms.h"

namespace tiled::cpu {

// Compute norms of rows and their gradients in the order of core/order_rows.h.
void launch_norm(const NormProblem& p, const Context& context);
void launch_norm_backward(const NormBackward& p, const Context& context);

}  // namespace tiled::cpu
