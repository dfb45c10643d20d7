#pragma once
// Attention of float16 and bfloat16 tensors by one tensor-core product each, specified to the bit.
// The GPU's kernels and the host's compute it by the functions below.
//
// Keys are taken in chunks of kChunk, ascending from key 0, and a chunk in tiles of kTile. A sum of
// products is a chain of tensor-core sums of kDepth (cpu/tensor_core.h), ascending, with zeros
// beyond the end. For query i and the keys j of a tile, with c = log2_scale():
//
//   raw_j   chain over columns of q_i k_j, from 0
//   z_j     raw_j c + bias_j by an FMA, with bias_j = log2_bias() of a float32 mask, or 0
//   m       exponent_above() of the largest z_j of the keys that are seen in this tile; at least m
//           of the chunk's tiles before
//   p_j     weight() of raw_j c - m + bias_j, 0 if the key is not seen; rounded to q's dtype
//   l       sum of p_j in four parts, ascending in j over the chunk: key j belongs to part
//           j / 2 % 4, and l = (l0 + l1) + (l2 + l3) at the chunk's end
//   o       chain over the chunk's keys of p_j v_j, from 0
//
// From one tile of a chunk to the next, o and l are multiplied by rescale_factor() of how much m
// grew. If a z_j of a key that is seen is NaN, l is NaN.
//
// The state (M, L, O) of the chunks so far, first (kLowest, 0, 0), is joined with (m, l, o) by
// attention::join_exponents() and join(). In the end out = normalized(O, inverse_sum(L)), and the
// denominator of the softmax is L * 2^(M - kShift).
//
// Powers of two scale without rounding. So the bits of a row depend on its query, on the keys that
// it sees and on their places, and not on which rows and chunks are computed together. Each product
// is rounded once, as l sums what multiplies the values: weights add up to 1.

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_attention.h"

namespace tiled::attention_mma {

inline constexpr int kTile = 64, kChunk = 256, kDepth = 16;

// Logarithms of weights relative to the largest are limited to -kSpan, and their exponents to
// +-kLargest.
inline constexpr float kSpan = 128;
inline constexpr int kLargest = 1 << 22, kLowest = -kLargest;

// Weights are at most 2^kShift. That of float16 keeps relative weights down to 2^-39; that of
// bfloat16 leaves room for large values, and the smallest weight is a normal number.
template <typename T>
inline constexpr int kShift = 15;
template <>
inline constexpr int kShift<BFloat16> = 3;

// bias log2(e), limited to half of what exponents are limited to.
HOST_DEVICE inline float log2_bias(float bias) {
  const float limit = static_cast<float>(kLargest / 2);
  return bias == bias ? fminf(fmaxf(bias * 0x1.715476p0f, -limit), limit) : bias;
}

// The least integer not below x, within +-kLargest; kLowest for NaN.
HOST_DEVICE inline int exponent_above(float x) {
  const float limit = static_cast<float>(kLargest);
  return static_cast<int>(ceilf(fminf(fmaxf(x, -limit), limit)));
}

// weight_place() of a score is 1 + (its logarithm - m) / kSpan, limited to [0, 1]: an FMA of the
// score and c / kSpan, with place_of_zero(m), to which bias / kSpan is added by another FMA.
HOST_DEVICE inline float place_of_zero(int m) {
  return fmaf(static_cast<float>(-m), 1 / kSpan, 1.0f);  // exact
}
HOST_DEVICE inline float place_with_bias(float place, float log2_bias) {
  return fmaf(log2_bias, 1 / kSpan, place);
}
// NaN becomes 0.
HOST_DEVICE inline float weight_place(float raw, float c_of_span, float place) {
#ifdef __CUDA_ARCH__
  float x;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(x) : "f"(raw), "f"(c_of_span), "f"(place));
  return x;
#else
  const float x = fmaf(raw, c_of_span, place);
  return !(x > 0) ? 0 : x < 1 ? x : 1;
#endif
}

// 2^(kSpan (place - 1) + shift), off by at most 7.5e-5 of it: the polynomial of degree 3 with the
// least relative error in [-0.5, 0.5], times a power of two, which is added to its bits.
template <int kShift>
HOST_DEVICE float weight(float place) {
  // The sum's last bits hold the integer next to kSpan place, plus kShift - kSpan.
  constexpr float kRounder = attention::kRounder + kShift - kSpan;
  const float rounded = fmaf(place, kSpan, kRounder);
  const float fraction = fmaf(place, kSpan, -(rounded - kRounder));
  float p = 0x1.c3f760p-5f;
  p = fmaf(p, fraction, 0x1.f0de1ap-3f);
  p = fmaf(p, fraction, 0x1.62f31ap-1f);
  p = fmaf(p, fraction, 0x1.fff692p-1f);
  return float_of(bits_of(p) + (bits_of(rounded) << 23));
}

// 2^-growth, or 0 beyond what a float16 weight could hold.
HOST_DEVICE inline float rescale_factor(int growth) {
  return growth > 39 ? 0 : attention::power_of_two(-growth);
}

// 1 / L, or 0 if no key was seen.
HOST_DEVICE inline float inverse_sum(float l) { return l == 0 ? 0 : 1 / l; }

// O / L. A zero is +0.
HOST_DEVICE inline float normalized(float o, float inverse) { return fmaf(o, inverse, 0.0f); }

}  // namespace tiled::attention_mma
