#pragma once
// Marked elements where a kernel computes them again by itself, one at a time: where they are rare
// and a launch for them would cost more than they do.

#include "epilogue.h"
#include "problem.h"
#include "sum.h"

namespace tiled::cuda {

// An element in the order of sum.h; counted where there is a counter.
inline __device__ __noinline__ float sum_again(const Problem& p, int64_t batch, int64_t row,
                                               int64_t col, unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, batch) +
                   row * p.a.row_stride;
  const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, batch) +
                   col * p.b.col_stride;
  float total = kEmptyTotal<float>;
  for (int64_t begin = 0; begin < p.k; begin += kChunk) {
    const int64_t end = min(begin + kChunk, p.k);
    float acc = 0;
    _Pragma("unroll 8") for (int64_t k = begin; k < end; ++k) {
      acc = multiply_add(a[k * p.a.col_stride], b[k * p.b.row_stride], acc);
    }
    total += acc;
  }
  return total;
}

// store(), once in the code however often it is called.
inline __device__ __noinline__ void store_one(const Problem& p, int64_t c_offset, int64_t row,
                                              int64_t col, float sum) {
  store<float>(p, c_offset, row, col, sum);
}

}  // namespace tiled::cuda
