#pragma once
// Split operands on the CPU: written, and read again.

#include <cstdint>

#include "context.h"
#include "fp16x3.h"
#include "packed.h"
#include "problem.h"

namespace tiled::cpu {

// Writes `packed`, whose rows are those of `source`.
void pack(const Matrix& source, const Packed& packed, const Context& context);

// A row of a split operand, which is one matrix.
struct PackedRow {
  Packed packed;
  int64_t row = 0;

  fp16x3::Split at(int64_t k) const;
  float undo_scale(int64_t chunk) const;
};

}  // namespace tiled::cpu
