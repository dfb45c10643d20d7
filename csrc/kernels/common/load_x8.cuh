#pragma once
// How kernels read that round float32 operands to halves.

#include <cstdint>

#include "kernels/common/launch.h"

namespace tiled::cuda {

// Eight elements along K, of which `left` are in the matrix; zeros for the rest.
inline __device__ void load_eight(float (&x)[8], const float* data, int64_t stride, int64_t left,
                                  bool vectors) {
  if (vectors && left >= 8) {
    UNROLL
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(data + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  } else {
    UNROLL
    for (int i = 0; i < 8; ++i) x[i] = i < left ? data[i * stride] : 0.0f;
  }
}

}  // namespace tiled::cuda
