#pragma once
// float32 attention by float16 products, specified to the bit. The GPU's kernels and the host's
// compute it by the functions below.
//
// Rows of q, k and v are scaled by powers of two, each row by its own, and split into float16 parts
// x 2^s = hi + lo, with hi = half(x 2^s) and lo = half(x 2^s - hi). A row is scaled by its largest
// finite magnitude to [2^14, 2^15), by 2^127 at most, and a value row by 2^kMaxValueScale at most.
// What is Inf or NaN becomes a hi part of NaN.
//
// Keys are taken in tiles of kTile from key 0 on, ascending. Every sum over 16 products is one of
// the tensor core (cpu/tensor_core.h), and columns beyond the last count as zeros. For query i and
// the keys j of a tile:
//
//   raw_j = lo_q hi_k, then + hi_q lo_k, then + hi_q hi_k: three chains from 0 on, ascending in
//           columns by 16
//   log2 of p_j = raw_j 2^-s_k * query_factor(), an integer `whole` and a `fraction`: round_log2()
//   m    = the largest whole_j - s_v,j of the tile's visible keys
//   p_j  = exp2_fraction(fraction) * 2^(whole_j - s_v,j - m + 14), or 0 if that power is below 2^-126
//   l    = the sum of p_j 2^s_v,j by FMAs in four parts, ascending in j: j belongs to part
//          j / 2 % 4, and l = (l0 + l1) + (l2 + l3)
//   o    = lo_p hi_v, then + hi_p lo_v, then + hi_p hi_v: three chains from 0 on, ascending in keys
//          by 16, with p_j split unscaled
//
// The state (M, L, O) of the tiles so far is joined with (m, l, o) by join(), from M = kLowest and
// L = O = 0 on. At the end out = O / L, or 0 if L is 0, and the softmax's denominator is L 2^(M - 14).
//
// Powers of two scale without a rounding. So a row's bits depend on its query and on the keys that it
// sees and their places, and not on the order in which tiles are computed before they are joined.

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_fp16x3.h"

namespace tiled::attention {

inline constexpr int kTile = 64;  // keys

// The exponent of a key that is not seen, below those of all that are, and that of no key at all.
inline constexpr int kMasked = -(1 << 30), kLowest = -(1 << 29);
inline constexpr int kLargestWhole = 1 << 28;

// --- Scales and parts ----------------------------------------------------------------------------

// A value row of zeros, or of tiny numbers, must not make the sum of p_j 2^s_v overflow.
inline constexpr int kMaxValueScale = 80;

// bits_of(|x|) for the maximum over a row: 0 for Inf and NaN.
HOST_DEVICE inline uint32_t finite_bits(float x) {
  const uint32_t bits = fp16x3::magnitude_bits(x);
  return bits < 0x7f800000u ? bits : 0;
}

HOST_DEVICE inline int value_scale_exponent(uint32_t largest) {
  if (largest == 0) return kMaxValueScale;
  const int s = fp16x3::scale_exponent(largest);
  return s < kMaxValueScale ? s : kMaxValueScale;
}

// 2^exponent, or 0 if it is below -126. The exponent is at most 127.
HOST_DEVICE inline float power_of_two(int exponent) {
  const int biased = exponent + 127;
  return float_of(static_cast<uint32_t>(biased > 0 ? biased : 0) << 23);
}

// 2^-s of a row of q or k.
HOST_DEVICE inline float inverse_scale(uint32_t largest) {
  const int s = fp16x3::scale_exponent(largest);
  return s == 127 ? 0x1p-127f : power_of_two(-s);
}

HOST_DEVICE inline fp16x3::Split split(float scaled) {
  const Half hi = narrow<Half>(scaled);
  const bool finite = fabsf(scaled) < INFINITY;
  return {finite ? hi : Half{0x7fff}, narrow<Half>(finite ? scaled - widen(hi) : 0.0f)};
}

// What raw_j 2^-s_k is multiplied by: scale log2(e) 2^-s_q.
HOST_DEVICE inline float query_factor(double scale, uint32_t largest) {
  return static_cast<float>(scale * 0x1.71547652b82fep0) * inverse_scale(largest);
}

// --- Exponentials --------------------------------------------------------------------------------

struct Log2 {
  int whole;
  float fraction;  // in [-0.5, 0.5]
};

// Adding it to a float below 2^22 in magnitude rounds that to an integer, to nearest even, which the
// sum's last bits hold.
inline constexpr float kRounder = 0x1.8p23f;
inline constexpr int kRounderBits = 0x4b400000;

// From here on a logarithm has no fraction.
inline constexpr float kLargeLog2 = 0x1p22f;

// x y as an integer and a fraction, if |x y| < kLargeLog2.
HOST_DEVICE inline Log2 round_log2(float x, float y) {
  const float rounded = fmaf(x, y, kRounder);
  return {static_cast<int>(bits_of(rounded)) - kRounderBits, fmaf(x, y, -(rounded - kRounder))};
}

HOST_DEVICE inline Log2 round_large_log2(float x) {
  const float limit = static_cast<float>(kLargestWhole);
  const float clamped = fminf(fmaxf(x, -limit), limit);
  return {static_cast<int>(rintf(clamped)), x == x ? 0.0f : x};
}

// x y of any size.
HOST_DEVICE inline Log2 round_any_log2(float x, float y) {
  const float product = x * y;
  return fabsf(product) < kLargeLog2 ? round_log2(x, y) : round_large_log2(product);
}

// x y + bias log2(e), of any size. A bias of 0 changes no bit.
HOST_DEVICE inline Log2 add_bias(float x, float y, float bias) {
  const float log2_bias = bias * 0x1.715476p0f, product = x * y;
  if (!(fabsf(product) < kLargeLog2 && fabsf(log2_bias) < kLargeLog2)) {
    return round_large_log2(fmaf(x, y, log2_bias));
  }
  const Log2 of_product = round_log2(x, y), of_bias = round_log2(log2_bias, 1);
  const float fraction = of_product.fraction + of_bias.fraction, carried = rintf(fraction);
  return {of_product.whole + of_bias.whole + static_cast<int>(carried), fraction - carried};
}

// 2^fraction, off by at most 2.1e-7 of it: the polynomial of degree 5 with the least relative error
// in [-0.5, 0.5], 7.5e-8.
HOST_DEVICE inline float exp2_fraction(float fraction) {
  float p = 0x1.5c08d2p-10f;
  p = fmaf(p, fraction, 0x1.3d0c52p-7f);
  p = fmaf(p, fraction, 0x1.c6b6e6p-5f);
  p = fmaf(p, fraction, 0x1.ebf918p-3f);
  p = fmaf(p, fraction, 0x1.62e428p-1f);
  return fmaf(p, fraction, 0x1.000002p0f);
}

// --- The state -----------------------------------------------------------------------------------

// What an old and a new exponent multiply their sums by, so that both have the exponent `joined`.
struct Join {
  int joined;
  float old_factor, new_factor;
};

HOST_DEVICE inline Join join_exponents(int old_exponent, int new_exponent) {
  const int joined = old_exponent > new_exponent ? old_exponent : new_exponent;
  return {joined, power_of_two(old_exponent - joined), power_of_two(new_exponent - joined)};
}

HOST_DEVICE inline float join(float old_sum, float new_sum, const Join& by) {
  return fmaf(new_sum, by.new_factor, old_sum * by.old_factor);
}

// out from a row's sums.
HOST_DEVICE inline float quotient(float o, float l) { return l == 0 ? 0.0f : o / l; }

}  // namespace tiled::attention
