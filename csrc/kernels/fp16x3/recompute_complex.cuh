#pragma once
// Recomputes single elements of a product with a complex B, as recompute_element.cuh does.

#include <cstdint>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/recompute_element.cuh"

namespace tiled::cuda {

// Recomputes an element by one thread, and counts it if there is a counter. B is stored as
// in_place_b() describes it. A warp of threads, each with an element of its own, waits for the
// longest: few products have such elements, and K is all that they read.
inline __device__ __noinline__ float recompute_complex(const Problem& p, const SignsOfB& signs,
                                                       int64_t matrix, int64_t row, int64_t col,
                                                       unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  const ComplexColumn column(signs, col);
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, matrix) +
                   row * p.a.row_stride;
  const auto* b = reinterpret_cast<const float2*>(static_cast<const float*>(p.b.data) +
                                                  batch_offset(p.batch, p.b, matrix) +
                                                  col / 2 * 2 * p.b.col_stride);
  float total = kAddIdentity<float>;
  for (int64_t left = p.k; left > 0; left -= kChunk) {
    const int pairs = static_cast<int>(min(left, int64_t{kChunk})) / 2;
    float acc = 0;
    _Pragma("unroll 4") for (int i = 0; i < pairs; ++i) {
      const float2 numbers = column.numbers(__ldg(b));
      acc = fused_multiply_add(__ldg(a), numbers.x, acc);
      acc = fused_multiply_add(__ldg(a + p.a.col_stride), numbers.y, acc);
      a += 2 * p.a.col_stride, b += p.b.row_stride;
    }
    total += acc;
  }
  return total;
}

// Recomputes an element by one thread. kComplex: of a complex B with these signs.
template <bool kComplex>
__device__ float recompute_element(const Problem& p, const SignsOfB& signs, int64_t matrix,
                                   int64_t row, int64_t col, unsigned long long* counter) {
  if constexpr (kComplex) return recompute_complex(p, signs, matrix, row, col, counter);
  return recompute_by_thread(p, matrix, row, col, counter);
}

}  // namespace tiled::cuda
