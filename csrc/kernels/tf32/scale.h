#pragma once
// Operands of tf32_tma: rounded to halves, by scales (csrc/tf32.h), in lines along K.

#include <cstdint>

#include "core/context.h"
#include "core/order_tf32.h"
#include "core/problem.h"
#include "kernels/common/stored_batch.h"

namespace tiled::cuda {

// Halves of a row of A, or of a column of B, are a line, padded with zeros to whole steps; the
// matrices that are stored follow one another. undo is (matrices, chunks, padded rows):
// fp16x3::inverse_scale of every group.
struct ScaledHalves {
  static constexpr int kStep = 64, kRows = 8;

  Matrix from;   // row_stride: between rows; col_stride: along K
  Batch batch;   // of matrices that are stored
  Matrix index;  // batch_stride: of the whole batch, in stored matrices
  int64_t rows = 0, k = 0;
  uint16_t* halves = nullptr;
  float* undo = nullptr;

  HOST_DEVICE int64_t pitch() const { return ceil_div(k, kStep) * kStep; }
  HOST_DEVICE int64_t matrix_elements() const { return rows * pitch(); }
  HOST_DEVICE int64_t padded_rows() const { return ceil_div(rows, kRows) * kRows; }
  HOST_DEVICE int64_t matrix_groups() const {
    return ceil_div(k, mma_order::kChunk) * padded_rows();
  }
  int64_t halves_bytes() const { return matrix_elements() * batch.count * 2; }
  int64_t undo_bytes() const { return matrix_groups() * batch.count * int64_t{sizeof(float)}; }
};

// Of a matrix by rows, as `from` says, of a batch; nothing is allocated.
inline ScaledHalves scaled_halves(const Batch& all, const Matrix& from, int64_t rows, int64_t k) {
  ScaledHalves x;
  const StoredBatch stored = stored_batch(all, from, 1, x.index);
  x.from = stored.from, x.batch = stored.batch;
  x.rows = rows, x.k = k;
  return x;
}

// Writes both, and sets *zeroed to 0.
void launch_scale(const ScaledHalves& a, const ScaledHalves& b, int* zeroed,
                  const Context& context);

}  // namespace tiled::cuda
