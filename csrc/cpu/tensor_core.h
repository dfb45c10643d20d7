#pragma once
// A sum as Hopper's tensor cores compute it, to the bit: sum + a[0] b[0] + .. + a[15] b[15], the
// factors halves, the sum a float.
//
// The products are exact. They and the sum are aligned to the largest exponent among them: that of
// a product is its factors' together, a subnormal half's is the smallest normal one's, and zeros
// take no part. Bits beyond the 25th after the point are cut off each addend, and what the addends
// come to is cut to a float's 24 bits: always toward zero. Zeros alone add up to +0.
//
// Factors are finite or NaN, and the sum began with 0: the model covers no other.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "element.h"

namespace tiled::cpu {

// Exponents that no number here comes near.
inline constexpr int kZeroExponent = -4096;
inline constexpr int kNanExponent = 1 << 16;
inline constexpr int kLargestExponent = 100;

// A half, taken apart: its value (0 for NaN) and its exponent.
struct Factor {
  float value;
  int exponent;
};

// The factors of kN sums.
template <int kN>
struct Factors {
  static constexpr int kDepth = 16;
  float value[kDepth][kN];
  int exponent[kDepth][kN];

  void set(int k, int n, Half x) {
    const int magnitude = x.bits & 0x7fff;
    const bool nan = magnitude > 0x7c00;
    value[k][n] = nan ? 0 : widen(x);
    exponent[k][n] = nan              ? kNanExponent
                     : magnitude == 0 ? kZeroExponent
                                      : std::max(magnitude >> 10, 1) - 15;
  }
};

// kN sums at a time, with one row of A. Inlined, so that it is compiled as its caller is (simd.h).
template <int kN>
[[gnu::always_inline]] inline void add_products(float (&sum)[kN], const Factors<1>& a,
                                                const Factors<kN>& b) {
  constexpr int kFraction = 25;
  constexpr int kDepth = Factors<kN>::kDepth;

  int top[kN];  // the largest exponent
  for (int n = 0; n < kN; ++n) {
    const int biased = std::bit_cast<int>(sum[n]) >> 23 & 0xff;
    top[n] = biased == 0 ? kZeroExponent : biased - 127;
  }
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < kN; ++n) {
      top[n] = std::max(top[n], a.exponent[k][0] + b.exponent[k][n]);
    }
  }

  bool nan[kN];
  float align[kN];  // 2^(kFraction - top), or any number where all is zero or something NaN
  for (int n = 0; n < kN; ++n) {
    nan[n] = top[n] > kLargestExponent;
    top[n] = std::clamp(top[n], -kLargestExponent, kLargestExponent);
    align[n] = std::bit_cast<float>((127 + kFraction - top[n]) << 23);
  }

  // A half of the addends is less than 2^30 + 2^26, and all of them may be more than 2^31.
  int halves[2][kN];
  for (int n = 0; n < kN; ++n) {
    halves[0][n] = nan[n] ? 0 : static_cast<int>(sum[n] * align[n]);
    halves[1][n] = 0;
  }
  for (int k = 0; k < kDepth; ++k) {
    auto& half = halves[k % 2];
    for (int n = 0; n < kN; ++n) {
      half[n] += static_cast<int>(a.value[k][0] * b.value[k][n] * align[n]);
    }
  }

  for (int n = 0; n < kN; ++n) {
    const double exact = static_cast<double>(halves[0][n]) + static_cast<double>(halves[1][n]);
    const auto cut = std::bit_cast<double>(std::bit_cast<int64_t>(exact) & ~int64_t{0x1fffffff});
    const float undo = std::bit_cast<float>((127 - kFraction + top[n]) << 23);
    sum[n] = nan[n] ? NAN : static_cast<float>(cut) * undo;
  }
}

}  // namespace tiled::cpu
