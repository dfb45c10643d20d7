#pragma once
// Loads by kernels that convert float32 operands to fp16.

#include <cstdint>

#include "kernels/common/launch.h"

namespace tiled::cuda {

// Loads eight elements of a row, `left` of them in the matrix, and zeros for the rest.
inline __device__ void load_x8(float (&x)[8], const float* data, int64_t stride, int64_t left,
                               bool vectorized) {
  if (vectorized && left >= 8) {
    UNROLL
    for (int i = 0; i < 8; i += 4) {
      const float4 x4 = *reinterpret_cast<const float4*>(data + i);
      x[i] = x4.x, x[i + 1] = x4.y, x[i + 2] = x4.z, x[i + 3] = x4.w;
    }
  } else {
    UNROLL
    for (int i = 0; i < 8; ++i) x[i] = i < left ? data[i * stride] : 0.0f;
  }
}

}  // namespace tiled::cuda
