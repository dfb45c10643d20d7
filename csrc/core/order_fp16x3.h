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
//   low = low + total * expected_cut() * 2^11,  if tensor cores may have cut bits of total, and
//                                               neither the row nor the column is coarse
//   chunk = (low * 2^-11 + total) * 2^-(s_a + s_b),  a rounding for each of these three
//
// and chunks are added in order. A chunk is NaN if the split may have lost too much, and in a
// row or column that holds Inf or NaN. An element with a NaN sum is flagged and recomputed in the
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

// The part of a total that is given back for what truncation took from it. A sum of 16 products has
// about three bits beyond the 24 that are kept, which hold 7/16 of a unit in the last place on
// average. Over mantissas that are uniform in their logarithm, that unit is 2^-23 / (2 ln 2) of the
// sum in the mean: together 0.63 * 2^-24. If the tensor core sums twice before a promotion, the
// first sum is half of the second in the mean, for numbers of any signs: 1.5 times as much.
// scaled_sum() leaves out a quarter of the totals, and the others get 4/3 of it.
HOST_DEVICE constexpr float expected_cut(int promotion) {
  return promotion == 16 ? 0.84375f * 0x1p-24f : 1.265625f * 0x1p-24f;
}

// A group is the part of a row, or of a column, in one chunk. `largest` is the maximum of
// bits_of(|x|) over it: magnitudes, Inf and NaN compare like their bits.
HOST_DEVICE inline uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }

// s, at most 127, since a float has no 2^128.
HOST_DEVICE inline int scale_exponent(uint32_t largest) {
  const int exponent = static_cast<int>(largest >> 23) - 127;
  return largest == 0 ? 0 : exponent < 14 - 127 ? 127 : 14 - exponent;
}

// 2^s, or NaN if the group is not finite, which makes all its elements NaN.
HOST_DEVICE inline float scale(uint32_t largest) {
  if (largest == 0) return 1;
  const uint32_t exponent = largest >> 23, scaled = 254 + 14 - exponent;
  return float_of(exponent == 255 ? 0x7fc00000u : (scaled < 254 ? scaled : 254) << 23);
}

// Returns whether a part of x may have lost bits that a product needs. Groups with such small
// numbers are wide.
HOST_DEVICE inline bool is_small(float x, float scaled) {
  return x != 0 && fabsf(scaled) < 0x1p-13f;
}

// Returns whether a group is coarse, like a mask, signs, a permutation or int8: it consists of
// bfloat16 numbers, which have eight bits, within eight binades, and zeros. `bits` is the bitwise
// or of bits_of(x) over the group, and `least` its least magnitude except 0, scaled. A coarse group
// is not wide.
HOST_DEVICE inline bool is_coarse(uint32_t bits, float least) {
  return (bits & 0xffffu) == 0 && least >= 0x1p7f;
}

// 2^-s, or 0 for a group of zeros. That of a wide group is negative, and the last bits of its
// mantissa count the small numbers; that of a coarse group is negative, and has the bit above them.
inline constexpr uint32_t kSmallNumbers = 0x3fff, kCoarse = 0x4000;
HOST_DEVICE inline float inverse_scale(uint32_t largest, uint32_t small_numbers, bool coarse) {
  if (largest == 0) return 0.0f;
  if (largest >= 0x7f800000u) return 1.0f;
  const int s = scale_exponent(largest);
  const uint32_t inverse = s == 127 ? 0x00400000u : static_cast<uint32_t>(127 - s) << 23;
  const uint32_t facts = small_numbers | (coarse ? kCoarse : 0);
  return float_of(facts == 0 ? inverse : 0x80000000u | inverse | facts);
}

// 2^-s alone, without what else an inverse scale says.
HOST_DEVICE inline float power_alone(float inverse_scale) {
  return float_of(bits_of(inverse_scale) & ~(0x80000000u | kCoarse | kSmallNumbers));
}
// The inverse scale of a group as if it were not coarse.
HOST_DEVICE inline float without_coarse(float inverse_scale) {
  return (bits_of(inverse_scale) & kCoarse) != 0 ? power_alone(inverse_scale) : inverse_scale;
}
HOST_DEVICE inline uint32_t small_numbers(float inverse_scale) {
  return bits_of(inverse_scale) & kSmallNumbers;
}

struct Split {
  Half hi, lo;
};

HOST_DEVICE inline Split split(float scaled) {
  const Half hi = narrow<Half>(scaled);
  return {hi, narrow<Half>((scaled - widen(hi)) * 0x1p11f)};
}

// In scaled units, a small number costs a chunk at most 2^-19: at most half an ulp of a sum that is
// this for each small number.
inline constexpr float kProven = 32;

// A chunk's descaled sum, or NaN if it must be recomputed: the small numbers of its row and its
// column may have cost too much. Beside a group of zeros they cost nothing.
HOST_DEVICE inline float descale(float scaled, float inverse_a, float inverse_b) {
  const bool zero = inverse_a == 0 || inverse_b == 0;
  const uint32_t small = zero ? 0 : small_numbers(inverse_a) + small_numbers(inverse_b);
  if (!(fabsf(scaled) >= kProven * static_cast<float>(small))) return float_of(0x7fc00000u);
  // One rounding: the product of two powers of two may exceed a float's range, but not a double's.
  const double inverse =
      static_cast<double>(power_alone(inverse_a)) * static_cast<double>(power_alone(inverse_b));
  return static_cast<float>(static_cast<double>(scaled) * inverse);
}

// Returns whether truncation is given back to an element: not if its row or its column is coarse.
// Products of 8 and 11 bits have 19, and little of them is cut if they are of similar size.
HOST_DEVICE inline bool gives_back(float inverse_a, float inverse_b) {
  return ((bits_of(inverse_a) | bits_of(inverse_b)) & kCoarse) == 0;
}

// A chunk's sum before it is descaled. Integers to 2^11 in magnitude have no lo parts, and a single
// product of hi parts has 22 bits, so that the last two of its total are zero: nothing was cut
// there, and nothing is given back.
HOST_DEVICE inline float scaled_sum(float total, float low, int promotion, bool gives_back) {
  const bool may_be_cut = gives_back && low != 0 && (bits_of(total) & 3) != 0;
  if (may_be_cut) low = fmaf(total, expected_cut(promotion) * 0x1p11f, low);
  return fmaf(low, 0x1p-11f, total);
}

HOST_DEVICE inline float chunk_sum(float total, float low, float inverse_a, float inverse_b,
                                   int promotion) {
  const bool given_back = gives_back(inverse_a, inverse_b);
  return descale(scaled_sum(total, low, promotion, given_back), inverse_a, inverse_b);
}

}  // namespace tiled::fp16x3
