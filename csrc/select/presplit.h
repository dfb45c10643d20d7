#pragma once
// Operands that are split once, for the products to come.

#include <cstdint>

#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled {

// Whether a product of that dtype and K, on that device, may be one of halves.
bool takes_16bit(DType dtype, int64_t k, const Context& context);

// Writes `presplit`. Its rows lie source.row_stride apart, and what is beside one another along K
// source.col_stride.
void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context);

}  // namespace tiled
