#pragma once

#include "core/attention.h"
#include "core/context.h"

namespace tiled::cpu {

// Compute attention in the order of core/order_attention.h for float32, its gradients, too, and in
// that of core/order_attention_mma.h for 16-bit floats. They take every problem with queries and
// keys.
bool launch_attention(const AttentionProblem& p, const Context& context);
bool launch_attention_backward(const AttentionBackward& p, const Context& context);
bool launch_attention_mma(const AttentionProblem& p, const Context& context);

}  // namespace tiled::cpu
