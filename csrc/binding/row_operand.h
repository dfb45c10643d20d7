#pragma once
// Tensors as rows along their last dimension, for reductions.

#include <optional>

#include "binding/tensors.h"
#include "core/rows.h"

namespace tiled {

// Checks dtype and rank, as check_rows() of torch_tiled/_op/row_checks.py does.
void check_rows(const char* op, Named x);

int64_t columns_of(const Tensor& x);
Shape shape_of_rows(const Tensor& x);  // without the columns

// The rows of a tensor with elements, in place or, if its columns are not adjacent or no single
// pitch leads through all rows, in a contiguous copy.
struct RowOperand {
  Tensor memory;
  Rows rows;

  explicit RowOperand(const Tensor& x);
};

// Rows that are adjacent columns of a tensor's memory, in `batch` matrices of `count` columns.
struct ColumnsOperand {
  int64_t batch = 1, batch_pitch = 0, count = 1;
};

// Returns how x, of any strides, is such columns, or nothing if it is not.
std::optional<ColumnsOperand> columns_operand(const Tensor& x);

}  // namespace tiled
