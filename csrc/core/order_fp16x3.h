#pragma once
// A float32 product as three float16 products, specified to the bit. docs/guide/numerics.md has the
// bounds. Every kernel and the host's kernel compute it by the functions below.
//
// K is cut in chunks of kChunk. In a chunk, a row of A (and a column of B alike) is scaled by a
// power of two 2^s that brings its largest magnitude into [2^14, 2^15), and split into two float16
// parts:
//
//   x * 2^s = hi + lo * 2^-11,    hi = half(x * 2^s),    lo = half((x * 2^s - hi) * 2^11)
//
// An element of C is, per chunk, with each sum a chain of k16 tensor-core sums (cpu/tensor_core.h):
//
//   for each promotion() of k:  part = 0 + hi_a hi_b,  ascending in k
//                               total = total + part,  from +0, rounded to nearest
//   low = 0;  for each k16, ascending:  low = low + lo_a hi_b,  then low = low + hi_a lo_b
//   chunk = (low * 2^-11 + total) * 2^-(s_a + s_b),  two roundings
//
// and chunks are added in order. A chunk is NaN where the split may have lost too much, and in a
// row or column that holds Inf or NaN. An element whose sum is NaN is flagged and recomputed in the
// chunked order (order_chunked.h), alone.
//
// The split is that of Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance", 2022. Scales, promotion, chunks and the
// guard are this library's.

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_chunked.h"
#include "core/problem.h"

namespace tiled::fp16x3 {

// Shorter sums are computed in the chunked order.
inline constexpr int kMinK = 128;

// How much of K the tensor core, which truncates, sums before an addition that rounds.
HOST_DEVICE constexpr int promotion(int64_t k) { return k < 512 ? 16 : 32; }

// A group is the part of a row, or of a column, in one chunk. `largest` is the maximum of
// bits_of(|x|) over it: magnitudes, Inf and NaN compare like their bits.
HOST_DEVICE inline uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }

// s, at most 127, since a float has no 2^128.
HOST_DEVICE inline int scale_exponent(uint32_t largest) {
  const int exponent = static_cast<int>(largest >> 23) - 127;
  return largest == 0 ? 0 : exponent < 14 - 127 ? 127 : 14 - exponent;
}

// 2^s, or NaN where the group is not finite, which makes all its elements NaN.
HOST_DEVICE inline float scale(uint32_t largest) {
  if (largest == 0) return 1;
  const uint32_t exponent = largest >> 23, scaled = 254 + 14 - exponent;
  return float_of(exponent == 255 ? 0x7fc00000u : (scaled < 254 ? scaled : 254) << 23);
}

// 2^-s, negated where the group is wide.
HOST_DEVICE inline float inverse_scale(uint32_t largest, bool wide) {
  if (largest >= 0x7f800000u) return 1.0f;
  const int s = scale_exponent(largest);
  const float inverse = s == 127 ? 0x1p-127f : float_of(static_cast<uint32_t>(127 - s) << 23);
  return wide ? -inverse : inverse;
}

struct Split {
  Half hi, lo;
};

HOST_DEVICE inline Split split(float scaled) {
  const Half hi = narrow<Half>(scaled);
  return {hi, narrow<Half>((scaled - widen(hi)) * 0x1p11f)};
}

// Returns whether a part of x may have lost bits that a product needs, which makes its group wide.
HOST_DEVICE inline bool is_wide(float x, float scaled) {
  return x != 0 && fabsf(scaled) < 0x1p-13f;
}

// In scaled units, splitting wide groups loses at most kChunk * 2^-19 of a chunk: at most half an
// ulp of a sum as large as this.
inline constexpr float kProven = 32.0f * kChunk;

// A chunk's descaled sum, or NaN where it must be recomputed: wide groups may have lost too much
// for a sum smaller than `proven`.
HOST_DEVICE inline float descale(float scaled, float inverse_a, float inverse_b, float proven) {
  const bool wide = inverse_a < 0 || inverse_b < 0;
  if (wide && !(fabsf(scaled) >= proven)) return float_of(0x7fc00000u);
  // One rounding: the product of two powers of two may exceed a float's range, but not a double's.
  const double inverse =
      static_cast<double>(fabsf(inverse_a)) * static_cast<double>(fabsf(inverse_b));
  return static_cast<float>(static_cast<double>(scaled) * inverse);
}

HOST_DEVICE inline float chunk_sum(float total, float low, float inverse_a, float inverse_b) {
  return descale(fmaf(low, 0x1p-11f, total), inverse_a, inverse_b, kProven);
}

}  // namespace tiled::fp16x3
