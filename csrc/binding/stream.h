#pragma once
// The operators that products larger than the GPU need beside matmul: torch_tiled/stream calls
// them.

#include <optional>
#include <string>

#include "binding/tensors.h"

namespace tiled {

// Writes activation(a b + bias) to c, which has the product's shape. hi_lo and inverse_scales are
// what prepare(b) returned, or empty.
void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                    const std::string& activation, const std::string& algorithm,
                    const std::string& precision);

// Adds the sums of one chunk of K to `sums`: after all chunks, in order, these are the sums of the
// whole product, to the bit. They are float32 or float64, and of float16 and bfloat16 operands
// float32. A flagged element becomes NaN, and is left to the caller, who has all of K.
void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision);

// Applies an activation to finished sums, as a kernel's epilogue does.
void activate_(const Tensor& x, const std::string& activation);

}  // namespace tiled
