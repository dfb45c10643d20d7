#pragma once
// f64_mma: stages of K in shared memory, and the fragments that a warp reads from them.

#include <cstdint>
#include <type_traits>

#include "core/complex.h"
#include "kernels/common/launch.h"

namespace tiled::cuda::f64_mma {

// Both operands, MN-major. Rows are padded, so that the lanes that read at once meet no bank
// conflict: of A, eight lanes read 16 bytes of four k each; of B, sixteen lanes read 8 bytes. The
// elements of a complex B are its numbers, and each stands for two columns and two k
// (core/complex.h).
template <class Tile>
struct Stage {
  static constexpr int kParts = Tile::kComplex ? 2 : 1;
  static constexpr int kPitchA = Tile::kM + 2;
  static constexpr int kPitchB = Tile::kN / kParts + (Tile::kComplex ? 2 : 4);
  using ElementOfB = std::conditional_t<Tile::kComplex, double2, double>;
  alignas(16) double a[Tile::kK][kPitchA];
  alignas(16) ElementOfB b[Tile::kK / kParts][kPitchB];
};

// The part that a lane reads of each number of a complex B, and the sign that it has in B'
// (core/complex.h): always the same, since the lane's columns and its k are all even or all odd.
class ComplexPart {
 public:
  __device__ explicit ComplexPart(const SignsOfB& negated) {
    const int lane = threadIdx.x % 32;
    const bool odd_k = lane % 2 != 0, odd_col = lane / 4 % 2 != 0;
    const bool sign = odd_k ? (odd_col ? negated.x_odd : negated.y_odd)
                            : (odd_col ? negated.y_even : negated.x_even);
    sign_ = sign ? kSign : 0;
    offset_ = odd_k != odd_col;
  }
  __device__ int offset() const { return offset_; }  // 0: the real part, 1: the imaginary one
  __device__ int sign() const { return sign_; }      // in the upper word of a double
  __device__ double with_sign(double part) const {
    return __hiloint2double(__double2hiint(part) ^ sign_, __double2loint(part));
  }

  static constexpr int kSign = static_cast<int>(1u << 31);

 private:
  int sign_, offset_;
};

// The numbers of B' that a lane reads of a complex B.
template <int kPitch>
class ComplexLane {
 public:
  __device__ explicit ComplexLane(const SignsOfB& negated) {
    const int lane = threadIdx.x % 32;
    const ComplexPart part(negated);
    sign_ = part.sign();
    offset_ = (lane % 4 / 2 * kPitch + lane / 8) * 2 + part.offset();
  }

  // Reads B's fragment of a product of 8 columns and 8 of K. From k_left on it is -0.
  __device__ void read_fragment(const double2* stage, int k_left, double (&x)[2]) const {
    const double* from = reinterpret_cast<const double*>(stage) + offset_;
    UNROLL
    for (int step = 0; step < 2; ++step) {
      const double part = from[step * 4 * kPitch];
      const int padding =
          step * 4 + static_cast<int>(threadIdx.x) % 4 < k_left ? 0 : ComplexPart::kSign;
      x[step] = __hiloint2double((__double2hiint(part) ^ sign_) | padding, __double2loint(part));
    }
  }

 private:
  int sign_, offset_;  // of the upper word; in doubles, from the fragment's first number
};

// The row of 16 that is row `row` of a product; the next one is row + 8 of the product. So a lane
// reads its two rows at once, and lanes of adjacent rows read four vectors apart.
__device__ constexpr int row_of_pair(int row) { return (row % 2 * 4 + row / 2) * 2; }

// Reads A's fragment of a product of 16 rows and 8 of K. A lane has every fourth k of two
// rows.
template <int kPitch>
__device__ void read_fragment_a(const double (*stage)[kPitch], int row, double (&x)[2][2]) {
  const int lane = threadIdx.x % 32;
  UNROLL
  for (int step = 0; step < 2; ++step) {
    const double* at = &stage[step * 4 + lane % 4][row + row_of_pair(lane / 4)];
    const double2 pair = *reinterpret_cast<const double2*>(at);
    x[0][step] = pair.x, x[1][step] = pair.y;
  }
}

// Reads B's fragment of a product of 8 columns and 8 of K. A lane has every fourth k of a column.
template <int kPitch>
__device__ void read_fragment_b(const double (*stage)[kPitch], int col, double (&x)[2]) {
  const int lane = threadIdx.x % 32;
  UNROLL
  for (int step = 0; step < 2; ++step) x[step] = stage[step * 4 + lane % 4][col + lane / 4];
}

}  // namespace tiled::cuda::f64_mma
