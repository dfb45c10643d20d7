#pragma once

#include "core/attention.h"
#include "core/context.h"

namespace tiled::cpu {

// Computes float32 attention in the order of core/order_attention.h. It takes every problem.
bool launch_attention(const AttentionProblem& p, const Context& context);

}  // namespace tiled::cpu
