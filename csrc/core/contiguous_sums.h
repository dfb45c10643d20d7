#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiled {

// Contiguous matrices of sums, (batch, m, n), in place of C. They have no memory yet.
inline OutMatrix contiguous_sums(const Problem& p) {
  OutMatrix sums{.row_stride = p.n, .col_stride = 1};
  int64_t stride = p.m * p.n;
  for (int d = p.batch.rank - 1; d >= 0; --d) {
    sums.batch_stride[d] = stride;
    stride *= p.batch.size[d];
  }
  return sums;
}

}  // namespace tiled
