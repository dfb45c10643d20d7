// mma on the CPU: the specification as a program. It sums as order_mma.h says, by a model of the
// tensor core.

#include <algorithm>

#include "core/context.h"
#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/chain.h"
#include "cpu/tile.h"

namespace tiled::cpu {
namespace {

constexpr int kTile = 32;  // rows and columns of C
constexpr int kDepth = mma_order::kDepth;
static_assert(mma_order::kChunk % kDepth == 0, "a chunk is a whole number of sums");

using Sums = float[kTile][kTile];

// A row of A, or a column of B.
template <typename T>
struct OperandRow {
  const T* data;
  int64_t stride;  // along K

  T at(int64_t k) const { return data[k * stride]; }
};

// Returns a sum that is Inf or NaN. It is added in double, so finite terms stay finite.
template <typename T>
float add_not_finite(float sum, OperandRow<T> a, OperandRow<T> b, int64_t from, int64_t end) {
  double total = sum;
  for (int64_t k = from; k < std::min(from + kDepth, end); ++k) {
    total += static_cast<double>(widen(a.at(k))) * static_cast<double>(widen(b.at(k)));
  }
  return static_cast<float>(total);
}

template <typename T>
void compute_tile(const Problem& p, int64_t index) {
  const TileCoord<kTile> at(p, index);
  const auto operands = operands_of<T>(p, at);
  const auto row_of_a = [&](int i) {
    return OperandRow<T>{operands.first + i * p.a.row_stride, p.a.col_stride};
  };
  const auto column_of_b = [&](int j) {
    return OperandRow<T>{operands.second + j * p.b.col_stride, p.b.row_stride};
  };

  alignas(64) Sums total;
  std::fill_n(&total[0][0], kTile * kTile, 0.0f);
  int64_t k = 0;
  do {  // one chunk of K, which is empty if K is 0
    alignas(64) Sums sum = {};
    const int64_t end = std::min(k + mma_order::kChunk, p.k);
    add_chain<T>(k, end, at.rows, row_of_a, at.cols, column_of_b, sum,
                 [&](float before, int i, int j, int64_t from) {
                   return add_not_finite(before, row_of_a(i), column_of_b(j), from, end);
                 });
    k = end;
    for (int i = 0; i < at.rows; ++i) {
      for (int j = 0; j < kTile; ++j) total[i][j] += sum[i][j];
    }
  } while (k < p.k);

  store_tile<T>(p, at, total);
}

}  // namespace

bool launch_mma(const Problem& p, const Plan&, const Context& context) {
  const bool half = p.dtype == DType::kFloat16;
  for_tiles<kTile>(p, context, half ? compute_tile<Half> : compute_tile<BFloat16>);
  return true;
}

}  // namespace tiled::cpu
