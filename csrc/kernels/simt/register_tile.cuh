#pragma once
// The part of a tile that a thread holds in registers: fragments of A and B, and sums of C.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/complex.h"
#include "core/element.h"
#include "core/order_chunked.h"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// --- The lanes of a warp -------------------------------------------------------------------------

// The row and the column of a lane among the kRows x kCols lanes of a warp.
//
// Shared memory serves a warp's 128-bit load in fewer wavefronts if every lane reads the address
// of lane ^ 1, or every lane that of lane ^ 2: it then merges the requests of such pairs. In the
// paired order, bit 0 of the lane counts columns and bit 1 counts rows. So lane ^ 1 has the same
// row and reads the same elements of A, and lane ^ 2 has the same column and reads the same of B.
template <int kRows, int kCols, bool kPaired = true>
struct LaneCoord {
  int row, col;
  __device__ explicit LaneCoord(int lane) {
    static_assert(kRows * kCols <= 32);
    lane = swap_bits(lane);
    row = lane / kCols, col = lane % kCols;
  }
  __device__ static int lane(int row, int col) { return swap_bits(row * kCols + col); }

 private:
  // Exchanges bit 1 with the lowest bit of the row: from a lane to row * kCols + col, and back.
  __device__ static int swap_bits(int lane) {
    if constexpr (kPaired && kRows > 1 && kCols > 2) {
      lane = lane % 2 + lane / kCols % 2 * 2 + lane % kCols / 4 * 4 + lane / 2 % 2 * kCols +
             lane / (2 * kCols) * (2 * kCols);
    }
    return lane;
  }
};

// --- The numbers of a complex B, in registers ----------------------------------------------------

// Returns the element of B' with k % 2 == odd_k in a column, of the numbers (x, y) of a row of B
// whose parts are z[0], z[1] and so on: those of column `col` and of the one beside it. An FMA
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

// --- A thread's part of a tile -------------------------------------------------------------------

// A (kM, kN) tile of C, shared by threads that compute kThreadM x kThreadN elements each. The lanes
// of a warp are kLanesM x kLanesN; a warp has adjacent elements, kWarpM x kWarpN. A thread's rows
// and columns come in groups of 4, groups of rows kLanesM * 4 apart and groups of columns
// kLanesN * 4. kComplex_: B is complex, read in place; its numbers stand for two columns and
// two k (core/complex.h).
template <int kM_, int kN_, int kThreadM_, int kThreadN_, int kLanesM_, bool kComplex_ = false>
struct RegisterTile {
  static constexpr bool kComplex = kComplex_;
  static constexpr int kParts = kComplex ? 2 : 1;  // of an element of B
  static constexpr int kM = kM_, kN = kN_;
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;
  static constexpr int kConsumers = kM / kThreadM * (kN / kThreadN);  // threads
  static constexpr int kLanesM = kLanesM_, kLanesN = std::min(kConsumers, 32) / kLanesM;
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  static constexpr int kQuads = kThreadM * kThreadN / 4;  // of a thread

  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kThreadM % 4 == 0 && kThreadN % 4 == 0);
};

// If a thread has at most 32 elements, shared-memory bandwidth bounds the main loop, and lanes
// are paired. Larger register tiles are bound by FMA issue.
template <class Tile>
using TileLaneCoord =
    LaneCoord<Tile::kLanesM, Tile::kLanesN, (Tile::kThreadM * Tile::kThreadN <= 32)>;

// Four adjacent sums of a row of C, with the two of each pair exchanged. The register file has an
// even and an odd bank, and vectors of registers begin in the even one. So the sum of a column and
// the element of B of that column are in different banks, and an FMA reads both in one cycle.
struct Quad {
  float4 swapped;
  __device__ static Quad identity() {
    constexpr float kIdentity = kAddIdentity<float>;
    return {make_float4(kIdentity, kIdentity, kIdentity, kIdentity)};
  }
  __device__ static Quad of(const float* acc) {
    return {make_float4(acc[1], acc[0], acc[3], acc[2])};
  }
  __device__ void add(const float* acc) {
    swapped.x += acc[1], swapped.y += acc[0], swapped.z += acc[3], swapped.w += acc[2];
  }
  __device__ void add(const Quad& other) {
    swapped.x += other.swapped.x, swapped.y += other.swapped.y;
    swapped.z += other.swapped.z, swapped.w += other.swapped.w;
  }
};

// All sums of a tile, as (quad of a thread, thread), so that threads access adjacent vectors.
template <class Tile>
using TileSums = Quad[Tile::kQuads][Tile::kConsumers];

// Adds a thread's sums of a chunk to its quads of a TileSums, from `sums` on.
template <class Tile>
__device__ void add_to_totals(bool is_first, const float (&acc)[Tile::kThreadM][Tile::kThreadN],
                              Quad* sums) {
  UNROLL
  for (int quad = 0; quad < Tile::kQuads; ++quad) {
    const int i = quad / (Tile::kThreadN / 4), j = quad % (Tile::kThreadN / 4) * 4;
    Quad total = is_first ? Quad::identity() : sums[quad * Tile::kConsumers];
    total.add(&acc[i][j]);
    sums[quad * Tile::kConsumers] = total;
  }
}

// The row and the first column, in its tile, of a quad of a thread.
template <class Tile>
struct QuadCoord {
  int row, col;
  __device__ QuadCoord(int thread, int quad) {
    constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
    const int warp = thread / 32;
    const int i = quad / (Tile::kThreadN / 4), j = quad % (Tile::kThreadN / 4);
    const TileLaneCoord<Tile> at(thread % 32);
    row = warp % kWarpsM * Tile::kWarpM + (i / 4 * Tile::kLanesM + at.row) * 4 + i % 4;
    col = warp / kWarpsM * Tile::kWarpN + (j * Tile::kLanesN + at.col) * 4;
  }
};

// A thread's elements of A and B for one k, in two buffers: one is loaded from shared memory for
// the next k while the other is multiplied. Of a complex B, buffers have the numbers for two k.
template <class Tile>
struct Fragments {
  static constexpr int kParts = Tile::kParts;
  float a_frag[2][Tile::kThreadM], b_frag[2][Tile::kThreadN];
  ComplexSigns signs;

  __device__ explicit Fragments(const SignsOfB& signs_of_b = {}) : signs(signs_of_b) {}

  // Loads the elements for k. Only k % (2 * kParts) counts, since it decides the buffers.
  // a_smem and b_smem point at the thread's first row of A and first column of B for that k.
  __device__ void load(int k, const float* a_smem, const float* b_smem) {
    UNROLL
    for (int i = 0; i < Tile::kThreadM; i += 4) {
      *reinterpret_cast<float4*>(&a_frag[k % 2][i]) =
          *reinterpret_cast<const float4*>(a_smem + i * Tile::kLanesM);
    }
    if constexpr (Tile::kComplex) {
      if (k % 2 != 0) {
        UNROLL
        for (float& a : a_frag[1]) signs.apply_to_odd_a(a);
        return;
      }
    }
    float(&b)[Tile::kThreadN] = b_frag[k / kParts % 2];
    UNROLL
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      *reinterpret_cast<float4*>(&b[j]) =
          *reinterpret_cast<const float4*>(b_smem + j * Tile::kLanesN);
    }
    if constexpr (Tile::kComplex) signs.apply_to_b(b);
  }

  // Odd rows are multiplied from right to left. The first FMA of a row then takes the same element
  // of B as the last one of the row before, from the operand reuse cache.
  __device__ void multiply(int k, float (&acc)[Tile::kThreadM][Tile::kThreadN]) const {
    const float(&b)[Tile::kThreadN] = b_frag[k / kParts % 2];
    UNROLL
    for (int i = 0; i < Tile::kThreadM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kThreadN; ++j) {
        const int col = i % 2 == 0 ? j : Tile::kThreadN - 1 - j;
        const float number = Tile::kComplex ? complex_number(b, k % 2 != 0, col) : b[col];
        acc[i][col] = fused_multiply_add(a_frag[k % 2][i], number, acc[i][col]);
      }
    }
  }
};

// The tiles of A and B for one step of K, both MN-major: a (kK, kM), b (kK, kN). Rows are padded
// against bank conflicts: elements that are adjacent along K are in different banks. The elements
// of a complex B are its numbers.
template <class Tile>
struct PaddedStage {
  static constexpr int kParts = Tile::kParts;
  static constexpr int kPitchA = Tile::kM + 4, kPitchB = (Tile::kN + 4) / kParts;
  using ElementOfB = std::conditional_t<Tile::kComplex, float2, float>;
  alignas(16) float a[Tile::kK][kPitchA];
  alignas(16) ElementOfB b[Tile::kK / kParts][kPitchB];

  // The elements of A for k from a row on, and of B from a column on, which is even.
  __device__ const float* a_at(int k, int row) const { return &a[k][row]; }
  __device__ const float* b_at(int k, int col) const {
    return reinterpret_cast<const float*>(b[k / kParts]) + col;
  }
};

// Loads a tile's part of B, stage by stage. `data` points at its first element, from which elements
// of the problem's B are counted; `left` of its columns are in the matrix. A complex B is stored as
// in_place_b() describes it, so that strides count its numbers.
template <class Tile, int kThreads>
class LoaderOfB {
  using Stage = PaddedStage<Tile>;
  using Element = typename Stage::ElementOfB;

 public:
  __device__ LoaderOfB(const Matrix& b, const float* data, bool vectorized, int64_t left,
                       int thread)
      : loader_(reinterpret_cast<const Element*>(data), b.col_stride, b.row_stride, vectorized,
                left / Tile::kParts, thread) {}
  __device__ void load(Stage& stage, int64_t k_left) {
    loader_.load(stage.b, k_left / Tile::kParts);
  }
  __device__ void load_whole(Stage& stage) { loader_.load_whole(stage.b); }

 private:
  CpAsyncLoader<Element, Tile::kN / Tile::kParts, Stage::kPitchB, Tile::kK / Tile::kParts, kThreads>
      loader_;
};

}  // namespace tiled::cuda
