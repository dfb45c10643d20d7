#pragma once
// The larger of two numbers: PTX ISA, "max.NaN".

namespace tiled::ptx {

// NaN if one of them is.
__device__ inline float max_nan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}

}  // namespace tiled::ptx
