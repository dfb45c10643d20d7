#pragma once

#include "core/attention.h"
#include "core/context.h"

namespace tiled::cpu {

// Compute float32 attention, and its gradients, in the order of core/order_attention.h. They take
// every problem with queries and keys.
bool launch_attention(const AttentionProblem& p, const Context& context);
bool launch_attention_backward(const AttentionBackward& p, const Context& context);

}  // namespace tiled::cpu
