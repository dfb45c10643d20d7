#pragma once
// Splits operands beforehand (core/presplit.h).

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled::cuda {

// An operand to be split; its rows are A's rows or B's columns.
struct Operand {
  Matrix matrix;  // row_stride: between rows; col_stride: along K
  Batch batch;    // of stored matrices: without broadcast dimensions
  Presplit presplit;
};

// Writes Operand::presplit of at most two operands, and sets all of `zeroed` to 0.
void launch_split(std::span<const Operand> operands, std::span<int> zeroed, const Context& context);

}  // namespace tiled::cuda
