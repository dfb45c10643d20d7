#pragma once
// Terms that the cost models of several families share. costs_h200.h of each family has its tiles
// and their costs; benchmarks/survey/fit_costs.py compares the model with results.
//
// Units: cycles of one SM; rates in FMA per cycle and SM; bandwidths in bytes per cycle and SM.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/order_chunked.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled {

// A kernel that rewrites operands first: cycles per element of a row, and at least per row.
namespace h200 {
struct RewriteCost {
  double element, row;
};
}  // namespace h200

// Cycles of an SM to rewrite `rows` rows of A and `cols` columns of B beforehand.
inline double rewrite_cycles(const Problem& p, int64_t sms, int64_t rows, int64_t cols,
                             h200::RewriteCost cost) {
  const double each = static_cast<double>(rows + cols) * static_cast<double>(p.batch.count) /
                      static_cast<double>(sms);
  return each * std::max(static_cast<double>(p.k) * cost.element, cost.row);
}

// Cycles of whole waves, in which each SM runs one block. A block takes `wave` cycles, and m x n x
// k FMAs at `rate`.
inline double wave_cycles(int64_t blocks, int64_t sms, int m, int n, int64_t k, double wave,
                          double rate) {
  const double fmas = static_cast<double>(m) * n * static_cast<double>(k);
  return static_cast<double>(ceil_div(blocks, sms)) * (wave + fmas / rate);
}

// Replaces `best` by a faster plan. It has no cycles before the first one.
inline void keep_faster(Plan& best, const Plan& plan) {
  if (best.cycles == 0 || plan.cycles < best.cycles) best = plan;
}

// Returns how many SMs can run clusters. All blocks of a cluster are in one GPC, so some SMs are
// left over.
inline int64_t sms_for_clusters(int64_t sms, int64_t cluster) {
  return cluster <= 2 ? sms : std::max<int64_t>(sms * 3 / 4, 1);
}

// Returns how many warps share the chunks of K of a tile: a power of two, at most `most`.
inline int warps_for_chunks(int64_t k, int64_t most) {
  const auto chunks = static_cast<uint64_t>(std::max<int64_t>(ceil_div(k, kChunk), 1));
  return static_cast<int>(std::min(static_cast<int64_t>(std::bit_ceil(chunks)), most));
}

// Returns whether the sizes fit the 32-bit coordinates of TMA, also the coordinates of a tile that
// begins beyond the last one.
inline bool fits_tma_coords(const Problem& p) {
  constexpr int64_t kMaxCoord = std::numeric_limits<int32_t>::max() - 1024;
  return std::max({p.m, p.n, p.k}) <= kMaxCoord;
}

}  // namespace tiled
