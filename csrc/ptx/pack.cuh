#pragma once
// Two 16-bit floats in one register: PTX ISA, "cvt" to f16x2 and bf16x2.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tiled::ptx {

// Rounds two numbers and packs them, the first in the lower bits.
template <bool kBFloat16 = false>
__device__ uint32_t pack_x2(float x, float y) {
  if constexpr (kBFloat16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  } else {
    const __half2 two = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  }
}

// fp16x3::split() of two numbers, the first in the lower bits.
__device__ inline void split_x2(float x, float y, uint32_t& hi, uint32_t& lo) {
  const __half2 hi_two = __floats2half2_rn(x, y);
  const float2 rounded = __half22float2(hi_two);
  const __half2 lo_two = __floats2half2_rn((x - rounded.x) * 0x1p11f, (y - rounded.y) * 0x1p11f);
  hi = reinterpret_cast<const uint32_t&>(hi_two);
  lo = reinterpret_cast<const uint32_t&>(lo_two);
}

// fp16x3::split() of eight numbers of a group with the scale, in order.
__device__ inline void split_x8(const float (&x)[8], float scale, uint4& hi, uint4& lo) {
  split_x2(x[0] * scale, x[1] * scale, hi.x, lo.x);
  split_x2(x[2] * scale, x[3] * scale, hi.y, lo.y);
  split_x2(x[4] * scale, x[5] * scale, hi.z, lo.z);
  split_x2(x[6] * scale, x[7] * scale, hi.w, lo.w);
}

}  // namespace tiled::ptx
