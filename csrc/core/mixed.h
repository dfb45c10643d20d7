#pragma once

#include "core/problem.h"

namespace tiled {

// The 16-bit operand of a float32 problem with mixed operands, for a kernel that reads it in place:
// its strides count its own elements. A row of its numbers has lo parts only if it is wide
// (core/order_fp16x3.h): others are exact in float16 once they are scaled.
struct Narrow {
  bool is_a;
  DType dtype;
};

}  // namespace tiled
