#pragma once
// The chunked order of summation, of the simt and tiled kernels and of every recomputed element: K
// is cut in chunks of kChunk; within a chunk products are accumulated by FMA, ascending in k, from
// +0; chunk sums are added in order. An element's bits then depend on its row, its column and K
// alone.
//
// Contraction is switched off for the whole library (--fmad=false, -ffp-contract=off): every FMA is
// written as one.

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace tiled {

inline constexpr int kChunk = 1024;

HOST_DEVICE inline float fused_multiply_add(float a, float b, float sum) { return fmaf(a, b, sum); }
HOST_DEVICE inline double fused_multiply_add(double a, double b, double sum) {
  return fma(a, b, sum);
}

// The total of chunk sums starts here: -0 + x is x for every x, +0 and -0 included.
template <typename Acc>
inline constexpr Acc kAddIdentity = Acc(-0.0);

// Padding of A's and B's tiles beyond K: 0 * -0 is -0, which changes no sum.
template <typename Acc>
inline constexpr Acc kPadA = Acc(0.0);
template <typename Acc>
inline constexpr Acc kPadB = Acc(-0.0);

}  // namespace tiled
