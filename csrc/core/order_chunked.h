#pragma once
// The order of summation, which every rung that `auto` can pick keeps, so that an element's bits
// depend on its row, its column and K alone: K is cut in chunks of kChunk; within a chunk products
// are added by fused multiply-adds, ascending in k, from +0; chunk sums are added in order.
//
// Contraction is switched off for the whole library (--fmad=false, -ffp-contract=off): what is
// fused is written here.

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace tiled {

inline constexpr int kChunk = 1024;

HOST_DEVICE inline float fused_multiply_add(float a, float b, float sum) { return fmaf(a, b, sum); }
HOST_DEVICE inline double fused_multiply_add(double a, double b, double sum) { return fma(a, b, sum); }

// The running total of chunk sums starts here: -0 + x is x for every x, +0 and -0 included.
template <typename Acc>
inline constexpr Acc kAddIdentity = Acc(-0.0);

// What pads tiles of A and of B beyond K: 0 * -0 + x is x as well.
template <typename Acc>
inline constexpr Acc kPadA = Acc(0.0);
template <typename Acc>
inline constexpr Acc kPadB = Acc(-0.0);

}  // namespace tiled
