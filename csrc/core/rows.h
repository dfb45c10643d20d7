#pragma once
// Reductions of rows as launchers take them, in the order of core/order_rows.h.

#include <cstdint>

#include "core/problem.h"

namespace tiled {

// Rows of adjacent elements. Consecutive rows begin `pitch` elements apart.
struct Rows {
  const void* data = nullptr;
  int64_t pitch = 0;
};

enum class RowsOp { kSoftmax, kLogSoftmax, kLogSumExp, kSum, kMean };

// A row of `out`, which is contiguous, has `columns` elements for a softmax, and one otherwise.
struct RowsProblem {
  RowsOp op = RowsOp::kSum;
  DType dtype = DType::kFloat32;  // of x and out
  int64_t rows = 0, columns = 0;
  Rows x;
  void* out = nullptr;
};

// Sums or means over the rows of (batch, rows, columns), whose columns are adjacent. `out`, (batch,
// columns), is contiguous.
struct ColumnsProblem {
  bool is_mean = false;
  DType dtype = DType::kFloat32;
  int64_t batch = 0, rows = 0, columns = 0;
  const void* x = nullptr;
  int64_t batch_pitch = 0, row_pitch = 0;
  void* out = nullptr;
};

// The gradient of x, from that of y = softmax(x), or of its logarithm. It is contiguous.
struct SoftmaxBackward {
  bool is_log = false;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0;
  Rows grad, y;
  void* out = nullptr;
};

}  // namespace tiled
