#include "cpu/recompute.h"

#include <algorithm>

#include "core/order_chunked.h"
#include "cpu/simd.h"

namespace tiled::cpu {
namespace {

// The function is local to this file, since the compiler would export both of its versions
// (simd.h).
SIMD float sum(int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride) {
  float total = kAddIdentity<float>;
  for (int64_t chunk = 0; chunk < k; chunk += kChunk) {
    float part = 0;
    const int64_t end = std::min(chunk + kChunk, k);
    for (int64_t i = chunk; i < end; ++i) {
      part = fused_multiply_add(a[i * a_stride], b[i * b_stride], part);
    }
    total += part;
  }
  return total;
}

}  // namespace

float sum_in_chunks(int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride) {
  return sum(k, a, a_stride, b, b_stride);
}

}  // namespace tiled::cpu
