#pragma once
// A float32 product as one of halves, specified to the bit: what precision "tf32" allows, whose 11
// bits a scaled half has too. docs/numerics.md says why; every kernel and the host rung compute it
// by the functions below.
//
// K is cut in chunks of mma_order::kChunk. In a chunk, a row of A (and likewise a column of B) is
// scaled as fp16x3.h has it, and rounded to halves: hi = half(x * 2^s). An element of C is, per
// chunk, a chain of k16 tensor-core sums as mma_order.h has them, from +0 and ascending in k, zeros
// beyond K:
//
//   chunk = (0 + hi_a hi_b + ..) * 2^-(s_a + s_b),  one rounding
//
// and chunks are added in order, from +0. Where rounding may have lost more than TF32 does, the
// chunk is NaN instead, and so is a chunk of a row or column that holds Inf or NaN: an element
// whose sum is NaN is computed again in the order of sum.h, by itself.

#include <cstdint>

#include "core/order_mma.h"
#include "core/order_fp16x3.h"

namespace tiled::tf32 {

// Shorter sums are computed in the order of sum.h, and longer ones, which no tensor map holds.
inline constexpr int64_t kMinK = fp16x3::kMinK, kMaxK = (int64_t{1} << 31) - 1024;

// In scaled units: a half below 2^-14 is off by 2^-25 at most, which a factor below 2^15 makes
// 2^-10 of, on either side; so a chunk loses 2^4 at most to halves that have fewer than 11 bits.
// That is 2^-14 of a sum as large as this.
inline constexpr float kProven = 32.0f * mma_order::kChunk;

// A chunk's sum, or NaN where it must be computed again.
HOST_DEVICE inline float chunk_sum(float sum, float undo_a, float undo_b) {
  return fp16x3::descale(sum, undo_a, undo_b, kProven);
}

}  // namespace tiled::tf32
