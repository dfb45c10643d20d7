#pragma once
// Running sums over the last dimension, in the order of core/order_cumsum.h.

#include "binding/tensors.h"

namespace tiled {

// Returns the running sums of x, from the first column or, if is_reversed, from the last one back.
// They are contiguous and have x's dtype.
Tensor row_cumsum(const Tensor& x, bool is_reversed);

}  // namespace tiled
