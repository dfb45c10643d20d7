#pragma once
// A sum as Hopper's tensor cores compute it, to the bit: sum + a[0] b[0] + .. + a[15] b[15], the
// factors of float16 or bfloat16, the sum a float.
//
// The products are exact. They and the sum are aligned to the largest exponent among them, which is
// -133 at least: that of a product is its factors' together, a subnormal number's is the smallest
// normal one's, and zeros take no part. Bits beyond the 25th after the point are cut off each
// addend, and what the addends come to is cut to a float's 24 bits: always toward zero. Zeros alone
// add up to +0.
//
// Where a factor or the sum is Inf or NaN the model says NaN: whoever needs Inf asks IEEE 754.
// Sums of float16 factors began with 0, so that they stay far from the ends of a float's range.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/element.h"

namespace tiled::cpu {

// Exponents that no number here comes near.
inline constexpr int kZeroExponent = -4096;
inline constexpr int kNanExponent = 1 << 16;

// A type of factors, and what holds their products and aligns them, exactly.
template <typename T>
struct FactorType;

template <>
struct FactorType<Half> {
  using Real = float;
  static constexpr int kFraction = 10, kBias = 15, kInfinity = 0x7c00;
  static constexpr int kSmallestTop = -100, kLargestExponent = 100;  // beyond all there are
};

template <>
struct FactorType<BFloat16> {
  using Real = double;
  static constexpr int kFraction = 7, kBias = 127, kInfinity = 0x7f80;
  static constexpr int kSmallestTop = -133, kLargestExponent = 300;
};

// 2^exponent.
template <typename Real>
Real power_of_two(int exponent) {
  if constexpr (std::is_same_v<Real, float>) {
    return std::bit_cast<float>((127 + exponent) << 23);
  } else {
    return std::bit_cast<double>(static_cast<int64_t>(1023 + exponent) << 52);
  }
}

// What becomes of a sum of 24 bits that a float's range may not hold: below, it is cut once more,
// to a multiple of 2^-149, and nothing is left of it but +0; beyond, it is Inf.
inline float cut_to_range(double sum) {
  const bool subnormal = std::abs(sum) < 0x1p-126;
  const int cut = static_cast<int>(subnormal ? sum * 0x1p149 : 0.0);
  return subnormal ? static_cast<float>(cut) * 0x1p-149f : static_cast<float>(sum);
}

// The factors of kN sums.
template <int kN, typename T = Half>
struct Factors {
  using Type = FactorType<T>;
  static constexpr int kDepth = 16;
  typename Type::Real value[kDepth][kN];  // 0 for Inf and NaN
  int exponent[kDepth][kN];

  void set(int k, int n, T x) {
    const int magnitude = x.bits & 0x7fff;
    const bool finite = magnitude < Type::kInfinity;
    value[k][n] = finite ? widen(x) : 0;
    exponent[k][n] = !finite          ? kNanExponent
                     : magnitude == 0 ? kZeroExponent
                                      : std::max(magnitude >> Type::kFraction, 1) - Type::kBias;
  }
};

// kN sums at a time, with one row of A. Inlined, so that it is compiled as its caller is (simd.h).
template <int kN, typename T>
[[gnu::always_inline]] inline void add_products(float (&sum)[kN], const Factors<1, T>& a,
                                                const Factors<kN, T>& b) {
  using Real = typename FactorType<T>::Real;
  constexpr int kLargestExponent = FactorType<T>::kLargestExponent;
  constexpr int kFraction = 25;
  constexpr int kDepth = Factors<kN, T>::kDepth;

  int top[kN];  // the largest exponent
  for (int n = 0; n < kN; ++n) {
    const int biased = std::bit_cast<int>(sum[n]) >> 23 & 0xff;
    if constexpr (std::is_same_v<T, Half>) {
      top[n] = biased == 0 ? kZeroExponent : biased - 127;
    } else {
      top[n] = sum[n] == 0     ? kZeroExponent
               : biased == 255 ? kNanExponent
                               : std::max(biased, 1) - 127;
    }
  }
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < kN; ++n) {
      top[n] = std::max(top[n], a.exponent[k][0] + b.exponent[k][n]);
    }
  }

  bool nan[kN];
  Real align[kN];  // 2^(kFraction - top), or any number where all is zero or something NaN
  for (int n = 0; n < kN; ++n) {
    nan[n] = top[n] > kLargestExponent;
    top[n] = std::clamp(top[n], FactorType<T>::kSmallestTop, kLargestExponent);
    align[n] = power_of_two<Real>(kFraction - top[n]);
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
    const Real undo = power_of_two<Real>(top[n] - kFraction);
    if constexpr (std::is_same_v<T, Half>) {
      sum[n] = nan[n] ? NAN : static_cast<float>(cut) * undo;
    } else {
      sum[n] = nan[n] ? NAN : cut_to_range(cut * undo);
    }
  }
}

}  // namespace tiled::cpu
