#pragma once
// The operators that products larger than the GPU need beside matmul: torch_tiled/stream calls
// them.

#include <string>

#include "binding/tensors.h"

namespace tiled {

// Writes the product to c, which has its shape, as matmul(out=) does. hi_lo and inverse_scales are
// what prepare(b) returned, or empty.
void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::string& algorithm,
                    const std::string& precision);

// Adds the sums of one chunk of K to `sums`: after all chunks, in order, these are the sums of the
// whole product, to the bit. They are float32 or float64, and of float16 and bfloat16 operands
// float32. A flagged element becomes NaN, and is left to the caller, who has all of K.
void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision);

// Copies a matrix between the host and a GPU, on its current stream, if elements of its rows or
// those of its columns are adjacent on both sides. Pinned memory is read or written later, in the
// stream's order. On the CPU both are the host's.
void copy_rows_(const Tensor& to, const Tensor& from);

}  // namespace tiled
