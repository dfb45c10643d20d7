#pragma once
// Eight halves, wherever they lie, as 16 bytes.

#include <cstdint>

#include "kernels/common/launch.h"

namespace tiled::cuda {

inline constexpr int kEight = 8;

// Eight elements, of which `inside` are there.
__device__ inline uint4 gather(const uint16_t* from, int64_t stride, int inside) {
  uint32_t x[kEight];
  UNROLL
  for (int i = 0; i < kEight; ++i) x[i] = i < inside ? from[i * stride] : 0;
  return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

// Bytes from a multiple of 16 on.
__device__ inline int shift_of(const uint16_t* from) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
}

// Eight neighbours, the first of which lies `shift` bytes beyond a multiple of 16, from the 16
// bytes there and those that follow.
__device__ inline uint4 shifted(const uint4& near, const uint4& far, int shift) {
  uint32_t x[] = {near.x, near.y, near.z, near.w, far.x, far.y, far.z, far.w};
  UNROLL
  for (int i = 0; i < 6; ++i) x[i] = shift & 8 ? x[i + 2] : x[i];
  UNROLL
  for (int i = 0; i < 5; ++i) x[i] = shift & 4 ? x[i + 1] : x[i];
  UNROLL
  for (int i = 0; i < 4; ++i) x[i] = __funnelshift_r(x[i], x[i + 1], shift % 4 * 8);
  return make_uint4(x[0], x[1], x[2], x[3]);
}

}  // namespace tiled::cuda
