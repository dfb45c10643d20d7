#pragma once
// Operands that are split beforehand (core/presplit.h), on the CPU: writing and reading them.

#include <cstdint>

#include "core/context.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled::cpu {

// Writes `presplit` from `source`, with row_stride between rows and col_stride along K.
void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context);

// A row of a presplit operand without a batch.
struct PresplitRow {
  Presplit presplit;
  int64_t row = 0;

  fp16x3::Split at(int64_t k) const;
  float inverse_scale(int64_t chunk) const;
};

}  // namespace tiled::cpu
