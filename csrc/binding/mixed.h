#pragma once
// Products of mixed operands, one float16 or bfloat16 and one float32. They are the float32 product
// of both operands in float32, to the bit, rounded once if the result is not float32. A kernel may
// read the 16-bit operand in place (run_in_place() of binding/run.h); others read an upcast copy.

#include "binding/tensors.h"
#include "core/mixed.h"

namespace tiled {

// Returns which of the operands of a mixed product is the 16-bit one.
Narrow narrow_of(ScalarType a, ScalarType b);

// Returns how upcast() stores a copy of x: dimensions are in the order of x's strides, those of
// stride 0 keep it, and rows begin at multiples of 16 bytes. The data are never to be read.
Strided upcast_layout(const Strided& x);

// Returns x if it is float32, or else a float32 copy.
Tensor upcast(const char* op, const Tensor& x);

// Returns x if it has this dtype, or else a copy that has.
Tensor rounded(const char* op, const Tensor& x, ScalarType dtype);

}  // namespace tiled
