#pragma once
// Terms that the cost models of several families share.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/plan.h"
#include "core/problem.h"
#include "kernels/common/costs_h200.h"

namespace tiled {

// Cycles of an SM to rewrite `rows` rows of A and `cols` columns of B beforehand.
inline double rewrite_cycles(const Problem& p, int64_t sms, int64_t rows, int64_t cols,
                             h200::RewriteCost cost) {
  const double each = static_cast<double>(rows + cols) * static_cast<double>(p.batch.count) /
                      static_cast<double>(sms);
  return each * std::max(static_cast<double>(p.k) * cost.element, cost.row);
}

// Cycles of whole waves, in which each SM runs one block. A block takes `wave` cycles and those of
// m x n x k FMAs at `rate`.
inline double wave_cycles(int64_t blocks, int64_t sms, int m, int n, int64_t k, double wave,
                          double rate) {
  const double fmas = static_cast<double>(m) * n * static_cast<double>(k);
  return static_cast<double>(ceil_div(blocks, sms)) * (wave + fmas / rate);
}

// Returns whether the sizes fit the 32-bit coordinates of TMA, those of a tile that begins beyond
// the last one included.
inline bool fits_tma_coords(const Problem& p) {
  constexpr int64_t kMaxCoord = std::numeric_limits<int32_t>::max() - 1024;
  return std::max({p.m, p.n, p.k}) <= kMaxCoord;
}

}  // namespace tiled
