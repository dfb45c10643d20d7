#pragma once
// The epilogue of simt_cp_async, simt_tma and simt_small: from a tile's sums to C.

#include "core/epilogue.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/simt/register_tile.cuh"

namespace tiled::cuda {

// The biases of a quad's columns, as far as they are inside. They are loaded before the quad's sums
// are there: the latency of a load at each quad would exceed the rest of the epilogue.
struct BiasX4 {
  float x[4] = {};
  __device__ BiasX4(const Problem& p, int64_t col) {
    if (p.epilogue.bias == nullptr) return;
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (col + j >= p.n) break;
      x[j] = static_cast<const float*>(p.epilogue.bias)[(col + j) * p.epilogue.bias_stride];
    }
  }
};

// Applies the epilogue to a quad and stores it at (row, col) of C's matrix that begins at c_offset,
// as far as it is inside.
__device__ inline void store_quad(const Problem& p, bool vectorized, int64_t c_offset, int64_t row,
                                  int64_t col, const Quad& quad, const BiasX4& bias) {
  if (row >= p.m) return;
  const Epilogue& epilogue = p.epilogue;
  float* c = static_cast<float*>(p.c.data) + c_offset + row * p.c.row_stride + col * p.c.col_stride;
  float value[] = {quad.swapped.y, quad.swapped.x, quad.swapped.w, quad.swapped.z};
  vectorized &= col + 4 <= p.n;
  if (!epilogue.is_identity()) {
    float old[4] = {};
    if (epilogue.beta != 0 && vectorized) {
      *reinterpret_cast<float4*>(old) = *reinterpret_cast<const float4*>(c);
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (epilogue.beta != 0 && !vectorized && col + j < p.n) old[j] = c[j * p.c.col_stride];
      value[j] = combine(epilogue, value[j], bias.x[j], old[j]);
    }
    activate_each(epilogue.activation, value);
  }
  if (vectorized) {
    *reinterpret_cast<float4*>(c) = make_float4(value[0], value[1], value[2], value[3]);
  } else {
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (col + j < p.n) c[j * p.c.col_stride] = value[j];
    }
  }
}

// Stores a tile's sums unchanged and element by element, adjacent lanes to adjacent columns, so
// that stores are coalesced. `c` points at the tile's first element, and `rows` and `cols` from
// there on are inside. Each warp stores its own sums, which its lanes wrote to shared memory.
//
// The function is not inlined, because ptxas would schedule the main loop worse beside its code.
template <class Tile>
__device__ __noinline__ void store_quads_coalesced(float* c, int64_t row_stride, int64_t col_stride,
                                                   int rows, int cols, int thread,
                                                   const TileSums<Tile>& sums) {
  // The lanes of a warp are kRowGroups x kLanesN; each has four rows of a column at a time.
  constexpr int kLanesN = Tile::kWarpN < 32 ? Tile::kWarpN : 32, kRowGroups = 32 / kLanesN;
  constexpr int kQuadsN = Tile::kThreadN / 4;
  __syncwarp();
  const int warp = thread / 32, lane = thread % 32;
  const QuadCoord<Tile> first(warp * 32, 0);
  NO_UNROLL
  for (int col = lane % kLanesN; col < Tile::kWarpN; col += kLanesN) {
    const int rows_left = first.col + col < cols ? rows - first.row : 0;
    float* to = c + first.row * row_stride + (first.col + col) * col_stride;
    NO_UNROLL
    for (int group = lane / kLanesN; group < Tile::kWarpM / 4; group += kRowGroups) {
      const int owner = TileLaneCoord<Tile>::lane(group % Tile::kLanesM, col / 4 % Tile::kLanesN);
      const int quad = group / Tile::kLanesM * 4 * kQuadsN + col / 4 / Tile::kLanesN;
      float sum[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const Quad& from = sums[quad + i * kQuadsN][warp * 32 + owner];
        sum[i] = reinterpret_cast<const float*>(&from)[col % 4 ^ 1];
      }
      UNROLL
      for (int i = 0; i < 4; ++i) {
        if (group * 4 + i < rows_left) to[(group * 4 + i) * row_stride] = sum[i];
      }
    }
  }
}

// Applies the epilogue to a tile's sums in shared memory and stores them. The tile begins at
// (row, col) of C's matrix at c_offset. Each thread stores its own quads, or its warp's: `thread`
// is that among those that summed the tile.
template <class Tile>
__device__ void store_quads(const Problem& p, bool vectorized, int64_t c_offset, int64_t row,
                            int64_t col, int thread, const TileSums<Tile>& sums) {
  if (!vectorized && p.epilogue.is_identity() && p.c.col_stride < p.c.row_stride) {
    float* c =
        static_cast<float*>(p.c.data) + c_offset + row * p.c.row_stride + col * p.c.col_stride;
    const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
    return store_quads_coalesced<Tile>(c, p.c.row_stride, p.c.col_stride, rows, cols, thread, sums);
  }
  constexpr int kQuadsN = Tile::kThreadN / 4;
  NO_UNROLL
  for (int j = 0; j < kQuadsN; ++j) {
    const BiasX4 bias(p, col + QuadCoord<Tile>(thread, j).col);
    NO_UNROLL
    for (int quad = j; quad < Tile::kQuads; quad += kQuadsN) {
      const QuadCoord<Tile> at(thread, quad);
      store_quad(p, vectorized, c_offset, row + at.row, col + at.col, sums[quad][thread], bias);
    }
  }
}

}  // namespace tiled::cuda
