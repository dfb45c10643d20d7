#pragma once
// f64_mma: stages of K in shared memory, and the fragments that a warp reads from them.

#include "kernels/common/launch.h"

namespace tiled::cuda::f64_mma {

// Both operands, MN-major. Rows are padded, so that the lanes that read at once meet no bank
// conflict: of A, eight lanes read 16 bytes of four k each; of B, sixteen lanes read 8 bytes.
template <class Tile>
struct Stage {
  static constexpr int kPitchA = Tile::kM + 2, kPitchB = Tile::kN + 4;
  alignas(16) double a[Tile::kK][kPitchA];
  alignas(16) double b[Tile::kK][kPitchB];
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
