#pragma once
// The numbers of the real operand B' that a complex B stands for (core/complex.h), in registers.

#include <cstdint>

#include "core/complex.h"
#include "core/element.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// Returns the element of B' with k % 2 == odd_k in a column, of the numbers (x, y) of a row of B
// with parts z[0], z[1] and so on: of column `col` and of the one beside it. An FMA
// negates a factor at no cost.
__device__ inline float complex_number(const float* z, bool odd_k, int col) {
  return !odd_k ? z[col] : col % 2 == 0 ? -z[col + 1] : z[col - 1];
}

// The signs of B' as signs of x, of y and of the elements of A with an odd k, beside the one of -y.
// These suffice: in B' of x + iy, an odd number of the four is negative.
class ComplexSigns {
 public:
  __device__ explicit ComplexSigns(const SignsOfB& negated)
      : x_(sign(negated.x_even)),
        y_(sign(negated.y_even)),
        odd_a_(sign(negated.x_even != negated.x_odd)) {}

  // Applies them to kParts parts of a row of B, which begin with an x.
  template <int kParts>
  __device__ void apply_to_b(float (&z)[kParts]) const {
    UNROLL
    for (int j = 0; j < kParts; ++j) flip(z[j], j % 2 == 0 ? x_ : y_);
  }
  __device__ void apply_to_odd_a(float& a) const { flip(a, odd_a_); }

 private:
  __device__ static uint32_t sign(bool negative) { return negative ? 1u << 31 : 0; }
  __device__ static void flip(float& x, uint32_t sign) { x = float_of(bits_of(x) ^ sign); }

  uint32_t x_, y_, odd_a_;
};

}  // namespace tiled::cuda
