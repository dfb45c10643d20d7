#pragma once
// How the rungs on CUDA cores multiply, hold sums between chunks, and store them.

#include "core/epilogue.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/simt/lane_layout.cuh"

namespace tiled::cuda {

// Four sums that are neighbours in a row of C, in pairs the other way around. Registers have two
// banks, of even and of odd numbers, and quads begin at even ones: so a sum of column j gets a
// register of the other bank than the quad that holds B's element of that column, and a
// multiply-add finds both at once.
struct Quad {
  float4 swapped;
  __device__ static Quad empty() {
    constexpr float kEmpty = kAddIdentity<float>;
    return {make_float4(kEmpty, kEmpty, kEmpty, kEmpty)};
  }
  __device__ static Quad of(const float* sums) {
    return {make_float4(sums[1], sums[0], sums[3], sums[2])};
  }
  __device__ void add(const float* sums) {
    swapped.x += sums[1], swapped.y += sums[0], swapped.z += sums[3], swapped.w += sums[2];
  }
  __device__ void add(const Quad& other) {
    swapped.x += other.swapped.x, swapped.y += other.swapped.y;
    swapped.z += other.swapped.z, swapped.w += other.swapped.w;
  }
};

// Whether C is read and written by four neighbours of a row, where so many are inside.
inline bool stores_fours(const Problem& p) {
  return is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride, 4);
}

// Where threads of a warp have their elements. Where a thread has more of them, shared memory is
// not what counts, and pairs of lanes are slower.
template <class Tile>
using Lanes = LanePlace<Tile::kLanesM, Tile::kLanesN, (Tile::kThreadM * Tile::kThreadN <= 32)>;

// Where a quad of a thread is in its tile.
template <class Tile>
struct Place {
  int row, col;
  __device__ Place(int thread, int quad) {
    constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
    const int warp = thread / 32;
    const int i = quad / (Tile::kThreadN / 4), j = quad % (Tile::kThreadN / 4);
    const Lanes<Tile> at(thread % 32);
    row = warp % kWarpsM * Tile::kWarpM + (i / 4 * Tile::kLanesM + at.row) * 4 + i % 4;
    col = warp / kWarpsM * Tile::kWarpN + (j * Tile::kLanesN + at.col) * 4;
  }
};

// What a thread multiplies in a step of K, its rows of A and its columns of B, and what it will in
// the next: each is read from shared memory while the other is multiplied.
template <class Tile>
struct Fragments {
  float a[2][Tile::kThreadM], b[2][Tile::kThreadN];

  // From the thread's first row and column of the tile (Place) in that step.
  __device__ void read(int buffer, const float* a_from, const float* b_from) {
    UNROLL
    for (int i = 0; i < Tile::kThreadM; i += 4) {
      *reinterpret_cast<float4*>(&a[buffer][i]) =
          *reinterpret_cast<const float4*>(a_from + i * Tile::kLanesM);
    }
    UNROLL
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      *reinterpret_cast<float4*>(&b[buffer][j]) =
          *reinterpret_cast<const float4*>(b_from + j * Tile::kLanesN);
    }
  }

  __device__ void multiply(int buffer, float (&acc)[Tile::kThreadM][Tile::kThreadN]) const {
    UNROLL
    for (int i = 0; i < Tile::kThreadM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kThreadN; ++j) {  // to and fro: the last of B is the next's first
        const int to = i % 2 == 0 ? j : Tile::kThreadN - 1 - j;
        acc[i][to] = fused_multiply_add(a[buffer][i], b[buffer][to], acc[i][to]);
      }
    }
  }
};

// The bias of four columns, as far as they are inside. It is asked for before its sums are there:
// one that is waited for at each quad costs more than the rest of the epilogue.
struct Bias {
  float of[4] = {};
  __device__ Bias(const Problem& p, int64_t col) {
    if (p.epilogue.bias == nullptr) return;
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (col + j >= p.n) break;
      of[j] = static_cast<const float*>(p.epilogue.bias)[(col + j) * p.epilogue.bias_stride];
    }
  }
};

// Stores sums of a row that begin at (row, col), which need not be inside; c_offset is where C's
// matrix begins.
__device__ inline void store_quad(const Problem& p, bool by_fours, int64_t c_offset, int64_t row,
                                  int64_t col, const Quad& quad, const Bias& bias) {
  if (row >= p.m) return;
  const Epilogue& epilogue = p.epilogue;
  float* c = static_cast<float*>(p.c.data) + c_offset + row * p.c.row_stride + col * p.c.col_stride;
  float value[] = {quad.swapped.y, quad.swapped.x, quad.swapped.w, quad.swapped.z};
  by_fours &= col + 4 <= p.n;
  if (!epilogue.is_identity()) {
    float old[4] = {};
    if (epilogue.beta != 0 && by_fours) {
      *reinterpret_cast<float4*>(old) = *reinterpret_cast<const float4*>(c);
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (epilogue.beta != 0 && !by_fours && col + j < p.n) old[j] = c[j * p.c.col_stride];
      value[j] = combine(epilogue, value[j], bias.of[j], old[j]);
    }
    activate_each(epilogue.activation, value);
  }
  if (by_fours) {
    *reinterpret_cast<float4*>(c) = make_float4(value[0], value[1], value[2], value[3]);
  } else {
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (col + j < p.n) c[j * p.c.col_stride] = value[j];
    }
  }
}

// Stores sums that threads left in shared memory, to a tile at `c` of which so many rows and
// columns exist: neighbours of a row by neighbouring lanes, a warp what it has itself. It is not
// inlined since ptxas arranges the loop that multiplies worse then: 4 % slower.
template <class Tile, int kThreads>
__device__ __noinline__ void store_rows(float* c, int64_t row_stride, int64_t col_stride, int rows,
                                        int cols, const Quad (&sums)[Tile::kQuads][kThreads]) {
  constexpr int kSpan = Tile::kWarpN < 32 ? Tile::kWarpN : 32, kStack = 32 / kSpan;  // lanes
  constexpr int kQuadsInRow = Tile::kThreadN / 4;
  __syncwarp();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place<Tile> first(warp * 32, 0);
  NO_UNROLL
  for (int right = lane % kSpan; right < Tile::kWarpN; right += kSpan) {
    const int left = first.col + right < cols ? rows - first.row : 0;  // rows
    float* to = c + first.row * row_stride + (first.col + right) * col_stride;
    NO_UNROLL
    for (int four = lane / kSpan; four < Tile::kWarpM / 4; four += kStack) {
      const int owner = Lanes<Tile>::lane(four % Tile::kLanesM, right / 4 % Tile::kLanesN);
      const int quad = four / Tile::kLanesM * 4 * kQuadsInRow + right / 4 / Tile::kLanesN;
      float sum[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const Quad& from = sums[quad + i * kQuadsInRow][warp * 32 + owner];
        sum[i] = reinterpret_cast<const float*>(&from)[right % 4 ^ 1];
      }
      UNROLL
      for (int i = 0; i < 4; ++i) {
        if (four * 4 + i < left) to[(four * 4 + i) * row_stride] = sum[i];
      }
    }
  }
}

// Ends a product's tile that begins at (row, col).
template <class Tile, int kThreads>
__device__ void store_tile(const Problem& p, bool by_fours, int64_t c_offset, int64_t row,
                           int64_t col, const Quad (&sums)[Tile::kQuads][kThreads]) {
  if (!by_fours && p.epilogue.is_identity() && p.c.col_stride < p.c.row_stride) {
    float* c =
        static_cast<float*>(p.c.data) + c_offset + row * p.c.row_stride + col * p.c.col_stride;
    const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
    return store_rows<Tile>(c, p.c.row_stride, p.c.col_stride, rows, cols, sums);
  }
  constexpr int kQuadsInRow = Tile::kThreadN / 4;
  NO_UNROLL
  for (int j = 0; j < kQuadsInRow; ++j) {
    const Bias bias(p, col + Place<Tile>(threadIdx.x, j).col);
    NO_UNROLL
    for (int u = j; u < Tile::kQuads; u += kQuadsInRow) {
      const Place<Tile> at(threadIdx.x, u);
      store_quad(p, by_fours, c_offset, row + at.row, col + at.col, sums[u][threadIdx.x], bias);
    }
  }
}

}  // namespace tiled::cuda
