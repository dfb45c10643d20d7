#pragma once
// A float32 product as one float16 product, specified to the bit: precision "tf32" allows it, since
// a scaled float16 has TF32's 11 bits. docs/guide/numerics.md has the bounds. Every kernel and the
// host's kernel compute it by the functions below.
//
// K is cut in chunks of mma_order::kChunk. In a chunk, a row of A (and a column of B alike) is
// scaled as in order_fp16x3.h and rounded to float16: hi = half(x * 2^s). An element of C is, per
// chunk, a chain of k16 tensor-core sums as in order_mma.h, from +0 and ascending in k, with zeros
// beyond K:
//
//   chunk = (0 + hi_a hi_b + ..) * 2^-(s_a + s_b),  one rounding
//
// and chunks are added in order, from +0. A chunk is NaN if rounding may have lost more than
// TF32 does, and in a row or column that holds Inf or NaN. An element with a NaN sum is flagged
// and recomputed in the chunked order (order_chunked.h), alone.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "core/order_mma.h"

namespace tiled::tf32 {

// Shorter sums, and longer ones, which no tensor map holds, are computed in the chunked order.
inline constexpr int64_t kMinK = 64, kMaxK = (int64_t{1} << 31) - 1024;

// A chunk's descaled sum, or NaN if it must be recomputed. In scaled units, a float16 below
// 2^-14, which has fewer than 11 bits, is off by at most 2^-25. Times a factor below 2^15 that is
// 2^-10, and 2^-15 of a sum as large as fp16x3::kProven for each such number.
HOST_DEVICE inline float chunk_sum(float sum, float inverse_a, float inverse_b) {
  return fp16x3::descale(sum, inverse_a, inverse_b);
}

}  // namespace tiled::tf32
