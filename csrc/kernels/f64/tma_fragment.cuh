#pragma once
// f64_tma: which elements of a stage a lane reads, and which elements of C it has. k keeps its
// order, but any row of the tile may be any row of a product; so the rows of a product are chosen
// such that lanes read the swizzled stage without bank conflicts.
//
// Below, g = lane / 4 and q = lane % 4. In a stage, the 16-byte vectors of a 128-byte row are
// swizzled by the row's number modulo 8. A row is a row of the operand, and a lane's vector that of
// k; or it is a k, and the vector that of the lane's row. Each group of eight rows begins at a
// multiple of 1024 bytes, so a lane has one offset, in which a k or a row of the operand that is
// known when compiling flips bits 4 to 6.

#include <cstdint>

#include "core/complex.h"
#include "kernels/common/launch.h"
#include "kernels/f64/fragment.cuh"

namespace tiled::cuda::f64_tma {

inline constexpr int kBox = 16;                    // doubles in a row of a box: 128 bytes
inline constexpr int kBoxBytes = kBox * kBox * 8;  // of 16 rows and 16 k

__device__ inline int lane_q() { return static_cast<int>(threadIdx.x) % 4; }
__device__ inline int lane_g() { return static_cast<int>(threadIdx.x) % 32 / 4; }

// How a lane reads A: rows 2x and 2x + 1 of 16 are rows g and g + 8 of a product, with x =
// row_pair(). An MN-major stage is read by vectors of both, eight lanes at once. If it has complex
// numbers, with two parts at adjacent k, a vector is a number, and 16 lanes read the parts of two
// numbers of four even or four odd rows. `offset` is the lane's first one.
template <bool kMnMajor, bool kComplex>
class LaneOfA {
 public:
  int offset;
  __device__ LaneOfA() {
    const int x = row_pair(), q = lane_q();
    offset = !kMnMajor ? x * 256 + x % 4 * 32 + q * 8
             : kComplex
                 ? x / 4 * (kBoxBytes / 2) + q / 2 * 128 + (x % 4 * 2 ^ q / 2) * 16 + q % 2 * 8
                 : q * 128 + (x ^ q) * 16;
  }
  __device__ static int row_pair() {
    return kMnMajor && !kComplex ? lane_g() % 2 * 4 + lane_g() / 2 : lane_g();
  }
  // Reads the fragment of a product of 16 rows, the i-th ones, and 8 of K, from k on, of a stage's
  // A at `from`.
  __device__ static void read(const uint8_t* smem, int from, int k, int i, double (&x)[2][2]) {
    UNROLL
    for (int step = 0; step < 2; ++step, k += 4) {
      if constexpr (kMnMajor && !kComplex) {
        const int at = (from ^ (k & 4) * 16) + k * 128 + i * kBoxBytes;
        const double2 pair = *reinterpret_cast<const double2*>(smem + at);
        x[0][step] = pair.x, x[1][step] = pair.y;
      } else {
        UNROLL
        for (int h = 0; h < 2; ++h) {
          const int at = (from ^ k * 8 ^ h * 16) + (kMnMajor ? k * 64 : h * 128) + i * kBoxBytes;
          x[h][step] = *reinterpret_cast<const double*>(smem + at);
        }
      }
    }
  }
};

// Returns 0, 2, 1, 3 for 0, 1, 2, 3.
__device__ inline int swap_bits(int x) { return x % 2 * 2 + x / 2; }

// How a lane reads B, and which columns of C it has: kPairs pairs of adjacent ones. The first
// pair begins at first_col(), and pair p col_of(p) behind it.
//
// Two products share 16 columns. In a K-major stage, column g of the first and of the second
// product are columns 2x and 2x + 1 of B, with x = g or, in each four, 0, 2, 1, 3. In an MN-major
// one, the first product has columns 0, 1, 8, 9, 2, 3, 10, 11, and the second those plus 4.
// `offset` is the lane's first one.
template <bool kMnMajor, bool kComplex>
class LaneOfB {
 public:
  int offset;
  __device__ explicit LaneOfB(const SignsOfB&) {
    const int g = lane_g(), q = lane_q(), pair = g / 4 * 4 + swap_bits(g % 4);
    offset = kMnMajor ? q * 128 + ((g / 2 % 2 * 4 + g / 4) ^ q) * 16 + g % 2 * 8
                      : pair * 256 + pair % 4 * 32 + q * 8;
  }
  __device__ static int first_col() {
    return kMnMajor ? lane_q() % 2 * 8 + lane_q() / 2 * 2 : lane_q() / 2 * 8 + lane_q() % 2 * 2;
  }
  __device__ static constexpr int col_of(int pair) { return pair / 2 * 16 + pair % 2 * 4; }
  // The place of the lane's element of the j-th product at k, in a stage's B at `from`.
  __device__ static int at(int from, int k, int j) {
    return kMnMajor ? (from ^ (k & 4) * 16 ^ j % 2 * 32) + k * 128 + j / 2 * kBoxBytes
                    : (from ^ k * 8 ^ j % 2 * 16) + j % 2 * 128 + j / 2 * kBoxBytes;
  }
  __device__ static int sign() { return 0; }
};

// A product has four complex columns, of which lanes q have the real and the imaginary parts. They
// are in the order 0, 2, 1, 3, so that two of them, with two adjacent k, are in different banks.
template <bool kMnMajor>
class LaneOfB<kMnMajor, true> {
 public:
  int offset;
  __device__ explicit LaneOfB(const SignsOfB& signs) {
    const f64_mma::ComplexPart part(signs);
    const int col = swap_bits(lane_g() / 2), k = lane_q() / 2;
    offset = (kMnMajor ? k : col) * 128 + (col ^ k) * 16 + part.offset() * 8;
    sign_ = part.sign();
  }
  __device__ static int first_col() { return swap_bits(lane_q()) * 2; }
  __device__ static constexpr int col_of(int pair) { return pair * 8; }
  __device__ static int at(int from, int k, int j) {
    return (from ^ k * 8 ^ j % 2 * 64) +
           (kMnMajor ? k * 64 + j / 2 * (kBoxBytes / 2) : j * (kBoxBytes / 4));
  }
  __device__ int sign() const { return sign_; }

 private:
  int sign_;
};

// The row of pair i of a thread behind its first one. Each has kMmasN pairs of columns.
__device__ constexpr int row_of(int i) { return i / 2 * 16 + i % 2; }

}  // namespace tiled::cuda::f64_tma
