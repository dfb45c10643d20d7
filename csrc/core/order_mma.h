#pragma once
// The order in which float16 and bfloat16 products are summed on tensor cores, specified to the
// bit: K is cut in chunks of kChunk; a chunk is a chain, from +0 and ascending in k, of Hopper's
// tensor-core sums of kDepth products (cpu/tensor_core.h), with zeros beyond K; chunk sums are
// added in order, from +0, each addition rounded to nearest.
//
// A tensor core truncates. A longer chain would lose more to truncation than additions of chunks
// cost. docs/guide/numerics.md has the bounds.

namespace tiled::mma_order {

inline constexpr int kChunk = 8192;
inline constexpr int kDepth = 16;

}  // namespace tiled::mma_order
