#pragma once
// A model of Hopper's tensor cores, to the bit. It computes sum + a[0] b[0] + .. + a[15] b[15] of
// float16 or bfloat16 factors and a float32 sum.
//
// The 16 products are exact. They and the sum are the addends. All addends are aligned to the
// largest exponent among them, which is at least -133. The exponent of a product is the sum of its
// factors' exponents; a subnormal number has the exponent of the smallest normal one; zeros have
// none. Each addend loses its bits beyond the 25th after the binary point, and their exact sum is
// cut to the 24 bits of a float32. Both truncate toward zero. A sum of zeros is +0.
//
// If a factor or the sum is Inf or NaN the model gives NaN. A caller that needs Inf computes it
// by IEEE 754. For float16 factors the model expects sums that began with 0: they stay far from the
// ends of a float32's range.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/element.h"

namespace tiled::cpu {

// Exponents of zero and of NaN, far from the exponents of numbers.
inline constexpr int kZeroExponent = -4096;
inline constexpr int kNanExponent = 1 << 16;

// The properties of a type of factors. A Real holds aligned products exactly.
template <typename T>
struct FactorType;

template <>
struct FactorType<Half> {
  using Real = float;
  static constexpr int kFraction = 10, kBias = 15, kInfinity = 0x7c00;
  static constexpr int kSmallestTop = -100, kLargestExponent = 100;  // beyond all sums
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

// Brings a sum of 24 bits into the range of a float32: below the normal numbers it is truncated to
// a multiple of 2^-149, and a zero is +0; above the range it is Inf.
inline float cut_to_range(double sum) {
  const bool subnormal = std::abs(sum) < 0x1p-126;
  const int cut = static_cast<int>(subnormal ? sum * 0x1p149 : 0.0);
  return subnormal ? static_cast<float>(cut) * 0x1p-149f : static_cast<float>(sum);
}

// kDepth factors of each of kN sums, and their exponents.
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

// Adds the products of a row of A with kN columns of B to kN sums. It is inlined, so that it is
// compiled for the same machine as its caller (simd.h).
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
  Real align[kN];  // 2^(kFraction - top); any number if all addends are zero or one is NaN
  for (int n = 0; n < kN; ++n) {
    nan[n] = top[n] > kLargestExponent;
    top[n] = std::clamp(top[n], FactorType<T>::kSmallestTop, kLargestExponent);
    align[n] = power_of_two<Real>(kFraction - top[n]);
  }

  // Addends of even and of odd k are summed apart. All of them together may exceed 2^31, but either
  // sum is less than 2^30 + 2^26.
  int fixed[2][kN];
  for (int n = 0; n < kN; ++n) {
    fixed[0][n] = nan[n] ? 0 : static_cast<int>(sum[n] * align[n]);
    fixed[1][n] = 0;
  }
  for (int k = 0; k < kDepth; ++k) {
    auto& of_parity = fixed[k % 2];
    for (int n = 0; n < kN; ++n) {
      of_parity[n] += static_cast<int>(a.value[k][0] * b.value[k][n] * align[n]);
    }
  }

  for (int n = 0; n < kN; ++n) {
    const double exact = static_cast<double>(fixed[0][n]) + static_cast<double>(fixed[1][n]);
    const auto cut = std::bit_cast<double>(std::bit_cast<int64_t>(exact) & ~int64_t{0x1fffffff});
    const Real descale = power_of_two<Real>(top[n] - kFraction);
    if constexpr (std::is_same_v<T, Half>) {
      sum[n] = nan[n] ? NAN : static_cast<float>(cut) * descale;
    } else {
      sum[n] = nan[n] ? NAN : cut_to_range(cut * descale);
    }
  }
}

}  // namespace tiled::cpu
