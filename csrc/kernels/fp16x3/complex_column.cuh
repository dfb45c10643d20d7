#pragma once
// A column of the real operand B' that a complex B stands for (core/complex.h), on the GPU.

#include <cstdint>

#include "core/complex.h"
#include "core/element.h"

namespace tiled::cuda {

// A column has, for each complex number x + iy of B, two numbers along K: x and y in a column of
// real parts, y and x in one of imaginary parts, with signs.
struct ComplexColumn {
  uint32_t first_sign, second_sign;
  bool is_imaginary;

  __device__ ComplexColumn(const SignsOfB& negated, int64_t col)
      : first_sign((col % 2 == 0 ? negated.x_even : negated.y_even) ? 1u << 31 : 0),
        second_sign((col % 2 == 0 ? negated.y_odd : negated.x_odd) ? 1u << 31 : 0),
        is_imaginary(col % 2 != 0) {}

  // The numbers in place of z, the one with the even k first.
  __device__ float2 numbers(float2 z) const {
    const float first = is_imaginary ? z.y : z.x, second = is_imaginary ? z.x : z.y;
    return {float_of(bits_of(first) ^ first_sign), float_of(bits_of(second) ^ second_sign)};
  }
};

}  // namespace tiled::cuda
