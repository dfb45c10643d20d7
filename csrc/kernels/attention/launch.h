#pragma once
// Attention on a GPU.

#include "core/attention.h"
#include "core/context.h"

namespace tiled::cuda {

// Whether a kernel takes the problem: float32 or 16-bit floats on Hopper, with q, k and v of up to
// 256 columns, and its gradients: float32 of up to 128.
bool attention_accepts(const AttentionProblem& p, const Context& context);
bool attention_backward_accepts(const AttentionProblem& p, const Context& context);

// Launches an accepted problem with queries and keys; returns false if there is no memory for its
// workspace.
bool launch_attention(const AttentionProblem& p, const Context& context);
bool launch_attention_backward(const AttentionBackward& p, const Context& context);

}  // namespace tiled::cuda
