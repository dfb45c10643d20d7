#pragma once
// The epilogue of f64_mma: two adjacent columns of a row, from their sums to C.

#include "core/epilogue.h"
#include "core/problem.h"
#include "kernels/common/launch.h"

namespace tiled::cuda::f64_mma {

// Applies the epilogue to a pair, and stores it at (row, col) of C's matrix that begins at
// c_offset, as far as it is inside.
__device__ inline void store_pair(const Problem& p, bool in_pairs, int64_t c_offset, int64_t row,
                                  int64_t col, double2 pair) {
  if (row >= p.m) return;
  if (in_pairs && p.epilogue.is_identity() && col + 2 <= p.n) {
    double* c = static_cast<double*>(p.c.data) + c_offset + row * p.c.row_stride + col;
    *reinterpret_cast<double2*>(c) = pair;
    return;
  }
  NO_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (col + i < p.n) store<double>(p, c_offset, row, col + i, i == 0 ? pair.x : pair.y);
  }
}

}  // namespace tiled::cuda::f64_mma
