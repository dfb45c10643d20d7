#pragma once
// Operands of tf32_tma: float32 scaled and rounded to fp16 (core/order_tf32.h), K-major.

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/order_tf32.h"
#include "core/problem.h"
#include "core/stored_batch.h"

namespace tiled::cuda {

// A "row" is a row of A or a column of B. Rows of fp16 are padded with zeros to whole steps of K.
// Each stored matrix is scaled once, however often it is broadcast. inverse_scales is (matrices,
// chunks, padded rows): fp16x3::inverse_scale() of each group, which is a row in a chunk.
struct ScaledOperand {
  static constexpr int kStep = 64, kRows = 8;

  Matrix from;   // row_stride is the distance between rows, col_stride the one along K
  Batch batch;   // of stored matrices
  Matrix index;  // batch_stride: of the whole batch, in stored matrices
  int64_t rows = 0, k = 0;
  uint16_t* fp16 = nullptr;
  float* inverse_scales = nullptr;

  HOST_DEVICE int64_t pitch() const { return ceil_div(k, kStep) * kStep; }
  HOST_DEVICE int64_t matrix_elements() const { return rows * pitch(); }
  HOST_DEVICE int64_t padded_rows() const { return ceil_div(rows, kRows) * kRows; }
  HOST_DEVICE int64_t matrix_groups() const {
    return ceil_div(k, mma_order::kChunk) * padded_rows();
  }
};

// Describes an operand with the matrix `from`, of strides as above; the caller sets the memory.
inline ScaledOperand scaled_operand(const Batch& all, const Matrix& from, int64_t rows, int64_t k) {
  ScaledOperand x;
  const StoredBatch stored = stored_batch(all, from, 1, x.index);
  x.from = stored.from, x.batch = stored.batch;
  x.rows = rows, x.k = k;
  return x;
}

// Scales and rounds both operands, and sets `zeroed` to 0.
void launch_scale(const ScaledOperand& a, const ScaledOperand& b, std::span<int> zeroed,
                  const Context& context);

}  // namespace tiled::cuda
