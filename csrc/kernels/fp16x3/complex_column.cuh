#pragma once
// Columns of the real operand B' that a complex B stands for (core/complex.h), on the GPU.

#include <cstdint>

#include "core/complex.h"
#include "core/element.h"
#include "kernels/common/launch.h"

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

// The two columns of B' that a column of B stands for, by pairs of 16-bit floats, which are the
// parts hi or lo of a number's x and y. Both columns have the same magnitudes, so that a column of
// B is split once. Column 0 is that of real parts, or of imaginary parts if `swapped`.
class ComplexColumns {
 public:
  __device__ ComplexColumns(const SignsOfB& negated, bool swapped) {
    const uint32_t real = pair_of(negated.x_even, negated.y_odd);
    const uint32_t imaginary = pair_of(negated.y_even, negated.x_odd);
    signs_[0] = swapped ? imaginary : real, signs_[1] = swapped ? real : imaginary;
    order_[0] = swapped ? kSwap : kKeep, order_[1] = swapped ? kKeep : kSwap;
  }

  // The pair of a column in place of (x, y).
  __device__ uint32_t pair(uint32_t xy, int column) const {
    return __byte_perm(xy, 0, order_[column]) ^ signs_[column];
  }
  __device__ uint4 pair(const uint4& xy, int column) const {
    return {pair(xy.x, column), pair(xy.y, column), pair(xy.z, column), pair(xy.w, column)};
  }

 private:
  static constexpr uint32_t kKeep = 0x3210, kSwap = 0x1032;  // of the four bytes
  static __device__ uint32_t pair_of(bool first, bool second) {
    return (first ? 1u << 15 : 0) | (second ? 1u << 31 : 0);
  }
  uint32_t signs_[2], order_[2];
};

// Stores parts of an operand row, one or more pairs along K: in that row, or in the two of a column
// of a complex B, which are `pitch` apart. The odd one is first if `swapped`.
template <bool kComplex>
struct PairStore {
  __device__ PairStore(const SignsOfB&, int, bool) {}
  template <typename Pairs>
  __device__ void operator()(uint8_t* to, const Pairs& pairs) const {
    *reinterpret_cast<Pairs*>(to) = pairs;
  }
};
template <>
struct PairStore<true> {
  ComplexColumns columns;
  int offset[2];

  __device__ PairStore(const SignsOfB& signs, int pitch, bool swapped)
      : columns(signs, swapped), offset{swapped ? pitch : 0, swapped ? 0 : pitch} {}
  template <typename Pairs>
  __device__ void operator()(uint8_t* to, const Pairs& pairs) const {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<Pairs*>(to + offset[i]) = columns.pair(pairs, i);
    }
  }
};

}  // namespace tiled::cuda
