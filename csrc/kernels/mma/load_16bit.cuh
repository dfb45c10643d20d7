#pragma once
// Loads of eight 16-bit elements, however they are aligned, as 16 bytes.

#include <cstdint>

#include "kernels/common/launch.h"

namespace tiled::cuda {

inline constexpr int kX8 = 8;  // 16-bit elements in 16 bytes

// Loads eight elements one by one; those from `inside` on are zero.
__device__ inline uint4 gather_x8(const uint16_t* from, int64_t stride, int inside) {
  uint32_t x[kX8];
  UNROLL
  for (int i = 0; i < kX8; ++i) x[i] = i < inside ? from[i * stride] : 0;
  return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

// Bytes between the last multiple of 16 and the address.
__device__ inline int misalignment_16(const uint16_t* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16);
}

// Returns the 16 bytes that begin `shift` bytes after `low` does; `high` are the 16 bytes after it.
__device__ inline uint4 funnel_shift_x8(const uint4& low, const uint4& high, int shift) {
  uint32_t x[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  UNROLL
  for (int i = 0; i < 6; ++i) x[i] = shift & 8 ? x[i + 2] : x[i];
  UNROLL
  for (int i = 0; i < 5; ++i) x[i] = shift & 4 ? x[i + 1] : x[i];
  UNROLL
  for (int i = 0; i < 4; ++i) x[i] = __funnelshift_r(x[i], x[i + 1], shift % 4 * 8);
  return make_uint4(x[0], x[1], x[2], x[3]);
}

}  // namespace tiled::cuda
