#pragma once
// Chains of tensor-core sums, as order_mma.h defines them, by a model of the tensor core.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/order_mma.h"
#include "cpu/simd.h"
#include "cpu/tensor_core.h"

namespace tiled::cpu {

// Sets column n of `factors` to kDepth elements of an operand row (a row of A or a column of B),
// with zeros from `end` on.
template <typename OperandRow, int kN, typename T>
void read_row(const OperandRow& row, int64_t from, int64_t end, Factors<kN, T>& factors, int n) {
  for (int k = 0; k < mma_order::kDepth; ++k) {
    factors.set(k, n, from + k < end ? row.at(from + k) : T{0});
  }
}

template <int kTile, typename T>
SIMD static void multiply_row(const Factors<1, T>& a, const Factors<kTile, T>& b,
                              float (&sum)[kTile]) {
  add_products(sum, a, b);
}

// Adds the products of [begin, end) of K to a tile's sums. The model gives NaN for sums that are
// not finite. They are replaced by not_finite(before, row, col, k); `before` is the sum
// before the products from k on.
template <typename T, int kTile, typename RowOfA, typename ColumnOfB, typename NotFinite>
void add_chain(int64_t begin, int64_t end, int rows, const RowOfA& row_of_a, int cols,
               const ColumnOfB& column_of_b, float (&sum)[kTile][kTile],
               const NotFinite& not_finite) {
  alignas(64) Factors<kTile, T> b_factors = {};
  for (int64_t k = begin; k < end; k += mma_order::kDepth) {
    for (int j = 0; j < cols; ++j) read_row(column_of_b(j), k, end, b_factors, j);
    for (int i = 0; i < rows; ++i) {
      Factors<1, T> a_factors;
      read_row(row_of_a(i), k, end, a_factors, 0);
      float before[kTile];
      std::copy_n(sum[i], kTile, before);
      multiply_row(a_factors, b_factors, sum[i]);
      for (int j = 0; j < cols; ++j) {
        if (std::isnan(sum[i][j])) sum[i][j] = not_finite(before[j], i, j, k);
      }
    }
  }
}

}  // namespace tiled::cpu
