#pragma once
// Element types and their accumulators. 16-bit floats are plain bits, converted by the hardware on
// a GPU and by hand on a CPU, with the same result.

#include <cstdint>

#include "core/problem.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tiled {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <typename T>
using accumulator_t = typename Accumulator<T>::type;

// Conversions between a float and its bits; std::bit_cast is not for device code.
HOST_DEVICE inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
HOST_DEVICE inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }

HOST_DEVICE inline float widen(float x) { return x; }
HOST_DEVICE inline double widen(double x) { return x; }

HOST_DEVICE inline float widen(BFloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

HOST_DEVICE inline float widen(Half x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  const uint32_t exponent = x.bits & 0x7c00u;
  uint32_t bits = (x.bits & 0x7fffu) << 13;
  if (exponent == 0x7c00u) {
    bits |= 0x7f800000u;  // Inf and NaN
  } else if (exponent != 0) {
    bits += 112u << 23;  // the exponent's bias changes from 15 to 127
  } else {
    // Subnormal: read it as 2^-14 plus its value, then subtract 2^-14, which is exact.
    bits = bits_of(float_of(bits + (113u << 23)) - 0x1p-14f);
  }
  return float_of(bits | (x.bits & 0x8000u) << 16);
#endif
}

// Rounds to nearest, ties to even.
template <typename T>
HOST_DEVICE T narrow(accumulator_t<T> x);

template <>
HOST_DEVICE inline float narrow<float>(float x) {
  return x;
}
template <>
HOST_DEVICE inline double narrow<double>(double x) {
  return x;
}

template <>
HOST_DEVICE inline BFloat16 narrow<BFloat16>(float x) {
#ifdef __CUDA_ARCH__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
  const uint32_t bits = bits_of(x);
  if (x != x) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

template <>
HOST_DEVICE inline Half narrow<Half>(float x) {
#ifdef __CUDA_ARCH__
  return {__half_as_ushort(__float2half_rn(x))};
#else
  const uint32_t all = bits_of(x);
  const uint32_t magnitude = all & 0x7fffffffu;
  uint32_t bits;
  if (x != x) {
    return {0x7fff};
  } else if (magnitude >= 0x477ff000u) {
    bits = 0x7c00u;  // 65520 and more round to Inf
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 aligns the last kept bit with 2^-24, and the adder rounds.
    bits = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    bits = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(bits | (all >> 16 & 0x8000u))};
#endif
}

// Calls f.template operator()<T>() with the element type that `dtype` names.
template <typename F>
void with_element_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32: return f.template operator()<float>();
    case DType::kFloat64: return f.template operator()<double>();
    case DType::kFloat16: return f.template operator()<Half>();
    case DType::kBFloat16: return f.template operator()<BFloat16>();
  }
}

}  // namespace tiled
