#pragma once
// The launch of mma_unaligned_kernel, which two translation units instantiate: one for each
// layout of A.

#include "core/context.h"
#include "core/plan.h"
#include "kernels/mma/tma_kernel.cuh"

namespace tiled::cuda::mma_unaligned {

struct EpilogueParams : mma_tma::MainloopParams {
  bool swap_ab;            // A and B are swapped, so the bias belongs to rows
  bool bias_relu_at_most;  // Epilogue::is_bias_relu_at_most()
  bool a_is_ready;         // the previous kernel copies B, and all before it have ended
};

// Launches the kernel for the plan's tile. Returns false if there is no memory for a workspace.
template <class T, bool kAMnMajor, bool kBMnMajor>
bool launch(const EpilogueParams& params, const Plan& plan, const Context& context);

}  // namespace tiled::cuda::mma_unaligned
