#pragma once
// Splits float32 operands into hi and lo fp16 parts beforehand, as core/presplit.h lays them out.

#include <cstdint>
#include <span>

#include "core/complex.h"
#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled::cuda {

// An operand, with A's rows or B's columns as rows, and the place of its split.
struct OperandToSplit {
  Matrix matrix;  // row_stride: between rows; col_stride: along K
  Batch batch;    // the matrices to split; those that a broadcast repeats may be left out
  Presplit presplit;
  // The operand is a complex B, stored as in_place_b() describes it, transposed.
  bool is_complex = false;
  SignsOfB signs_of_b = {};
};

// Writes the presplits of at most two operands, the second of them perhaps complex, and sets
// `zeroed` to 0.
void launch_split(std::span<const OperandToSplit> operands, std::span<int> zeroed,
                  const Context& context);

}  // namespace tiled::cuda
