#pragma once
// The order in which products of float16 or bfloat16 are summed on tensor cores, to the bit: K is
// cut in chunks of kChunk; a chunk is a chain, from +0 and ascending in k, of Hopper's tensor-core
// sums of kDepth products (cpu/tensor_core.h), zeros beyond K; and chunk sums are added in order,
// from +0, each addition rounded to nearest.
//
// A longer chain loses to a tensor core that truncates what additions of chunks cost.
// docs/numerics.md says why, and what may be lost.

namespace tiled::mma_order {

inline constexpr int kChunk = 8192;
inline constexpr int kDepth = 16;

}  // namespace tiled::mma_order
