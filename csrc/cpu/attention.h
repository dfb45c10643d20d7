#pragma once

#include "core/attention.h"
#include "core/context.h"

namespace tiled::cpu {

// Computes attention in the order of core/order_attention.h for float32, and in that of
// core/order_attention_mma.h for 16-bit floats. They take every problem.
bool launch_attention(const AttentionProblem& p, const Context& context);
bool launch_attention_mma(const AttentionProblem& p, const Context& context);

}  // namespace tiled::cpu
