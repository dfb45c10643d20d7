#pragma once
// Split operands on the CPU: written, and read again.

#include <cstdint>

#include "core/context.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled::cpu {

// Writes `presplit`, whose rows are those of `source`.
void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context);

// A row of a split operand, which is one matrix.
struct PresplitRow {
  Presplit presplit;
  int64_t row = 0;

  fp16x3::Split at(int64_t k) const;
  float inverse_scale(int64_t chunk) const;
};

}  // namespace tiled::cpu
