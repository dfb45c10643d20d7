#pragma once
// The sums of chunks of K in memory, which split_k_reduce.cuh adds.

#include "core/problem.h"

namespace tiled::cuda {

// The problem with partial sums in memory as its C: (batch, m, n), the first of the chunks.
inline Problem to_partial_sums(Problem p, double* sums) {
  p.c = {.data = sums, .row_stride = p.n, .col_stride = 1};
  int64_t stride = p.m * p.n;
  for (int d = p.batch.rank - 1; d >= 0; --d) {
    p.c.batch_stride[d] = stride;
    stride *= p.batch.size[d];
  }
  p.epilogue = {};
  return p;
}

}  // namespace tiled::cuda
