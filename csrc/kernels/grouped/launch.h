#pragma once
// Launches of grouped products (core/problem.h): nothing waits for the GPU, which alone knows where
// groups end. What no group has is set to 0. Of the epilogue only a bias is applied.

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Launches the kernel that fits. Returns false if there is no memory for its workspace. Throws for
// a precision that has no kernel.
bool launch_grouped(const Problem& p, const Context& context);

// float32 by three float16 products, on Hopper. Groups of less than fp16x3::kMinK of K are left to
// launch_grouped_chunked().
bool launch_grouped_fp16x3(const Problem& p, const Context& context);

// float32 and float64 in the chunked order. If K is cut, groups with more than `most_k` are left
// out.
bool launch_grouped_chunked(const Problem& p, const Context& context, int64_t most_k);

// 16-bit operands: any, and on Hopper those that TMA can load.
bool launch_grouped_mma_sync(const Problem& p, const Context& context);
bool grouped_mma_tma_accepts(const Problem& p);
bool launch_grouped_mma_tma(const Problem& p, const Context& context);

}  // namespace tiled::cuda
