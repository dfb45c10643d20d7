#include "cpu/again.h"

#include <algorithm>

#include "cpu/simd.h"
#include "sum.h"

namespace tiled::cpu {

SIMD float sum_in_chunks(int64_t k, const float* a, int64_t a_stride, const float* b,
                         int64_t b_stride) {
  float total = kEmptyTotal<float>;
  for (int64_t chunk = 0; chunk < k; chunk += kChunk) {
    float sum = 0;
    const int64_t end = std::min(chunk + kChunk, k);
    for (int64_t i = chunk; i < end; ++i) {
      sum = multiply_add(a[i * a_stride], b[i * b_stride], sum);
    }
    total += sum;
  }
  return total;
}

}  // namespace tiled::cpu
