#pragma once
// Operands that are split once, for the products to come.

#include <cstdint>

#include "context.h"
#include "packed.h"
#include "problem.h"

namespace tiled {

// Whether a product of that dtype and K, on that device, may be one of halves.
bool takes_halves(DType dtype, int64_t k, const Context& context);

// Writes `packed`. Its rows lie source.row_stride apart, and what is beside one another along K
// source.col_stride.
void prepare(const Matrix& source, const Packed& packed, const Context& context);

}  // namespace tiled
