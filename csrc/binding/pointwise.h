#pragma once
// Convolutions with a kernel of 1 (torch_tiled/pointwise.py). They read their operands and write
// the result through strides.

#include <optional>

#include "binding/tensors.h"

namespace tiled {

// Returns input (n, c, *sizes) by weight (o, c, 1, ...), in the memory format channels_last or else
// contiguous. A bias is added in the product's epilogue, which only a result by rows has: one that
// is channels_last or has images of one pixel.
Tensor plain_pointwise(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       bool channels_last);

}  // namespace tiled
