#pragma once
// float32 attention by float16 products, specified to the bit. The GPU's kernels and the host's
// compute it by the functions below.
//
// Each row of q, k and v is scaled by a power of two 2^s of its own and split into float16 parts:
//
//   x * 2^s = hi + lo,    hi = half(x * 2^s),    lo = half(x * 2^s - hi)
//
// The scale brings the row's largest finite magnitude into [2^14, 2^15), if it is not limited. What
// is Inf or NaN gets a hi part of NaN.
//
// Keys are taken in tiles of kTile, ascending from key 0. A sum of products is one chain of
// tensor-core sums of 16 (cpu/tensor_core.h) that begins with 0 and has three parts: lo of the left
// factors times hi of the right ones, then hi times lo, then hi times hi, each ascending. Factors
// beyond the end are zeros. For query i and the keys j of a tile:
//
//   raw_j                 sum over columns of q_i k_j
//   whole_j, fraction_j   log2 of the exponential, raw_j * 2^-s_k,j times query_factor(), plus a
//                         mask: round_log2() and the functions after it
//   m                     largest whole_j - s_v,j of the keys that are seen
//   p_j                   exp2_fraction(fraction_j) * power_of_two(whole_j - s_v,j - m + 14)
//   o                     sum over the tile's keys of p_j v_j, with p_j split as it is
//   l                     sum of p_j * 2^(s_v,j - kSumShift) by FMAs in four parts, ascending in j.
//                         Key j belongs to part j / 2 % 4, and l = (l0 + l1) + (l2 + l3)
//
// A key that is not seen has p_j = 0. If p_j is 0 because its power is too small, but whole_j is at
// most kCounted below the tile's largest, then l counts what p_j stands for:
// exp2_fraction(fraction_j) * power_of_two(whole_j - m + 14 - kSumShift).
//
// The state (M, L, O) of the tiles so far, first (kLowest, 0, 0), is joined with (m, l, o) by
// join() and join_sums(). In the end out = normalized(O, normalizer(L)), and the denominator of the
// softmax is L * 2^exponent_of_sum(L, M).
//
// Gradients: at the end of this file.
//
// Powers of two scale without rounding. So the bits of a row depend on its query, on the keys that
// it sees and on their places, and not on which tiles are computed together.

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_fp16x3.h"

namespace tiled::attention {

inline constexpr int kTile = 64;  // keys

// The exponent of a key that is not seen, below those of all that are, and that of no key at all.
inline constexpr int kMasked = -(1 << 30), kLowest = -(1 << 29);
inline constexpr int kLargestWhole = 1 << 28;  // to which logarithms are clamped

// --- Scales and parts ----------------------------------------------------------------------------

// Sums of p_j * 2^(s_v - kSumShift) are normal numbers for the least s_v, -113, and for the
// greatest one they do not overflow with up to 2^23 keys.
inline constexpr int kSumShift = 13;

// bits_of(|x|) for the maximum over a row: 0 for Inf and NaN.
HOST_DEVICE inline uint32_t finite_bits(float x) {
  const uint32_t bits = fp16x3::magnitude_bits(x);
  return bits < 0x7f800000u ? bits : 0;
}

// Returns s of a value row. A row of zeros must not outweigh rows of small values, nor vanish from
// the sum beside large ones.
HOST_DEVICE inline int value_scale_exponent(uint32_t largest) {
  constexpr int kOfZeros = 80, kMost = 103;
  if (largest == 0) return kOfZeros;
  const int s = fp16x3::scale_exponent(largest);
  return s < kMost ? s : kMost;
}

inline constexpr int kCounted = 50;
// If a tile's s_v differ by no more than this, every p_j that is 0 is below kCounted.
inline constexpr int kMostSpread = 90;

// 2^(exponent + offset), or 0 if that exponent is below -126. It is at most 127.
HOST_DEVICE inline float power_of_two(int exponent, int offset = 0) {
#ifdef __CUDA_ARCH__
  const int biased = __viaddmax_s32(exponent, offset + 127, 0);  // one instruction
#else
  const int biased = exponent + offset + 127 > 0 ? exponent + offset + 127 : 0;
#endif
  return float_of(static_cast<uint32_t>(biased) << 23);
}

// 2^-s of a row of q or k, or 0 for a row of zeros, which must not outweigh others in a gradient.
HOST_DEVICE inline float inverse_scale(uint32_t largest) {
  if (largest == 0) return 0;
  const int s = fp16x3::scale_exponent(largest);
  return s == 127 ? 0x1p-127f : power_of_two(-s);
}

HOST_DEVICE inline fp16x3::Split split(float scaled) {
  const Half hi = narrow<Half>(scaled);
  const bool finite = fabsf(scaled) < INFINITY;
  return {finite ? hi : Half{0x7fff}, narrow<Half>(finite ? scaled - widen(hi) : 0.0f)};
}

// scale log2(e)
HOST_DEVICE inline float log2_scale(double scale) {
  return static_cast<float>(scale * 0x1.71547652b82fep0);
}
// What raw_j 2^-s_k is multiplied by: scale log2(e) 2^-s_q.
HOST_DEVICE inline float query_factor(double scale, uint32_t largest) {
  return log2_scale(scale) * inverse_scale(largest);
}

// --- Exponentials --------------------------------------------------------------------------------

struct Log2 {
  int whole;
  float fraction;  // in [-0.5, 0.5]
};

// Adding it to a float below 2^22 in magnitude rounds that to an integer, to nearest even, which
// the sum's last bits hold.
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

// x 2^exponent, of an exponent from -252 to 0; 0 if it is lower.
HOST_DEVICE inline float scale_down(float x, int exponent) {
  const int half = exponent / 2;
  return x * power_of_two(half) * power_of_two(exponent - half);
}

// join() of L and l. They may count where the factor of O and o would be 0: a tile of small values
// has as much weight as one of large values.
HOST_DEVICE inline float join_sums(float old_sum, int old_exponent, float new_sum, int new_exponent,
                                   int joined) {
  return scale_down(old_sum, old_exponent - joined) + scale_down(new_sum, new_exponent - joined);
}

// 2^-kSumShift / L in two factors, as that need not be a normal number.
struct Normalizer {
  float inverse, power;
};

HOST_DEVICE inline Normalizer normalizer(float l) {
  if (!(l >= 0x1p-126f && l < INFINITY)) return {l == 0 ? 0.0f : 1 / l, 1};
  const uint32_t bits = bits_of(l);
  const float mantissa = float_of((bits & 0x7fffffu) | 0x3f800000u);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  return {0x1p-14f / mantissa, power_of_two(1 - exponent)};
}

HOST_DEVICE inline float normalized(float o, const Normalizer& by) {
  return o * by.inverse * by.power;
}
static_assert(kSumShift == 13);

// The exponent of the denominator L * 2^exponent, or 0 if L is NaN.
HOST_DEVICE inline int exponent_of_sum(float l, int exponent) {
  return l == l ? exponent - 14 + kSumShift : 0;
}

// --- Gradients -----------------------------------------------------------------------------------

// Rows of q, k, v and dout are scaled alike here, with s as for q and k, and split. For query i and
// key j, with raw_ij, whole_ij and fraction_ij of the forward pass:
//
//   P_ij     probability() by the query's denominator()
//   delta_i  sum over columns of dout_i out_i: FMAs from 0, ascending, of four columns each, and
//            then sums of two neighbours, of two such sums, and so on
//   dS_ij    score_gradient(), by the sum over columns of dout_i v_j
//
//   dv_j = sum over i of P_ij dout_i,  dk_j = scale sum over i of dS_ij q_i,
//   dq_i = scale sum over j of dS_ij k_j
//
// The gradient of an added mask is the sum of dS_ij, or of +0 if P_ij is 0, over the dimensions
// that the mask is expanded in, in any order. The other sums go over tiles of kTile queries or
// keys, ascending; dk and dv have the tiles of each query head of a group in turn. In a tile, P_ij
// or dS_ij is a factor of a row of parts and is multiplied by that row's 2^-s, or by 0 if the row
// is of zeros. Then the 64 factors of a sum are scaled and split like a row of q, and total = total
// + sum * 2^-s by an FMA, from 0. A tile without a key that is seen changes no bit, if its numbers
// are finite.

// 2^exponent / inverse is the denominator of a row's softmax, with inverse in (0.5, 1], or 0 if no
// key is seen.
struct Denominator {
  float inverse;
  int exponent;
};

HOST_DEVICE inline Denominator denominator(float sum, int exponent) {
  if (!(sum >= 0x1p-126f && sum < INFINITY)) return {sum == 0 ? 0.0f : 1 / sum, exponent};
  const uint32_t bits = bits_of(sum);
  const float mantissa = float_of((bits & 0x7fffffu) | 0x3f800000u);
  return {1 / mantissa, exponent + static_cast<int>(bits >> 23) - 127};
}

HOST_DEVICE inline float probability(const Log2& log2, const Denominator& by) {
  // Both of kRounderBits cancel, the first one in round_log2().
  const float power = power_of_two(log2.whole + kRounderBits, -kRounderBits - by.exponent);
  return exp2_fraction(log2.fraction) * power * by.inverse;
}

// raw: the sum of the parts of dout_i and v_j, with the scales' inverses
HOST_DEVICE inline float score_gradient(float probability, float raw, float inverse_v,
                                        float inverse_dout, float delta) {
  return probability * fmaf(raw * inverse_v, inverse_dout, -delta);
}

}  // namespace tiled::attention
