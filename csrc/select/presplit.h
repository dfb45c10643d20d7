#pragma once
// Operands that are split into hi and lo fp16 parts once, for later products.

#include <cstdint>

#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled {

// Returns whether products of that dtype and K on that device can use a presplit operand.
bool can_presplit(DType dtype, int64_t k, const Context& context);

// Writes `presplit` from `source`, with row_stride between its rows and col_stride along K.
void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context);

}  // namespace tiled
