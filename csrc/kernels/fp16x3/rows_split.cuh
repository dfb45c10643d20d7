#pragma once
// fp16x3_rows: its tile, and how a warpgroup loads and splits rows of the long operand.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/ld_global.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda {
namespace fp16x3_rows {

// --- The tile, its shared memory and the kernel's parameters -------------------------------------

// Rows belong to the long operand, and columns are rows of the short one: C's, or its transpose's.

template <int kIndex, bool kGrouped_ = false>
struct Tile {
  static constexpr bool kGrouped = kGrouped_;  // row tiles come from a list of groups' tiles
  static constexpr h200::Fp16x3RowsTile kTile = h200::kFp16x3RowsTiles[kIndex];
  static constexpr int kRows = h200::kFp16x3RowsOfTile, kCols = kTile.cols;
  static constexpr int kMostSteps = kTile.k / 16;        // steps of 16 of K
  static constexpr int kFullSteps = fp16x3::kMinK / 16;  // that every K has
  static constexpr int kWarpgroup = 128, kWarpgroups = kTile.warpgroups;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kElements = kCols / 2;  // accumulators a thread
  static constexpr int kPromotion = fp16x3::promotion(kTile.k);
  static_assert(kPromotion == 16);
};

// Which two adjacent elements a thread loads or stores at once, if any. Pairs are aligned, and none
// is cut by the end of the matrix.
enum class Pairs { kNone, kOfRow, kOfColumn };

struct Params {
  Problem p;
  Matrix long_operand;                  // row_stride: between rows; col_stride: along K
  Pairs loads, stores;                  // of the long operand and of C
  Presplit presplit;                    // of the short operand
  int64_t short_stride[kMaxBatchRank];  // counts its stored matrices
  bool splits;                          // the previous kernel is the split of the short operand
  bool one_weight;                      // all matrices have the same short operand
  GroupTiles groups;                    // of a grouped product
  Fp16x3RowsGrid grid;
  int64_t c_row_stride, c_col_stride;
  bool bias_relu_at_most;          // is all that the epilogue has
  unsigned long long* recomputed;  // counts recomputed elements, or null
};

template <class Tile>
struct Smem {
  float sums[Tile::kWarpgroups][Tile::kElements][Tile::kWarpgroup];  // before rare epilogues
  float inverse_scales[kFp16x3RowsMostCols];                         // of the block's columns
  uint64_t full;
  int parity;    // of the phase of `full` that ends with the block's columns
  unsigned end;  // of the block's row tiles; both are here because registers are short
  alignas(1024) uint8_t parts[];  // of the block's columns, as in Presplit
};

// Up to 64 rows of a matrix, or of a group.
template <class Tile>
struct RowTile {
  unsigned matrix;
  int rows;
  int64_t row;

  __device__ RowTile(const Params& params, unsigned tile) {
    if constexpr (Tile::kGrouped) {
      const GroupTile of_group = params.groups.tiles[tile];
      matrix = static_cast<unsigned>(of_group.group), row = of_group.first, rows = of_group.count;
      return;
    }
    matrix = tile / params.grid.tiles_of_matrix;
    row = int64_t{tile - matrix * params.grid.tiles_of_matrix} * h200::kFp16x3RowsOfTile;
    const int64_t left = params.grid.rows - row;
    rows = static_cast<int>(min(left, int64_t{h200::kFp16x3RowsOfTile}));
  }
};

// batch_offset() of a matrix, without the last division.
__device__ inline int64_t offset_of(const Batch& batch, const int64_t (&stride)[kMaxBatchRank],
                                    unsigned matrix) {
  int64_t offset = 0;
  NO_UNROLL
  for (int d = batch.rank - 1; d > 0; --d) {
    const auto size = static_cast<unsigned>(batch.size[d]);
    offset += matrix % size * stride[d];
    matrix /= size;
  }
  return offset + matrix * stride[0];
}

// --- The long operand ----------------------------------------------------------------------------

// A thread has two adjacent rows of a row tile: accumulators i are in row i / 2 % 2 of them. It has
// elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of every 16 of K, for q = lane % 4.
__device__ inline int first_row() {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 * 2;
}
__device__ inline int first_of_four() { return static_cast<int>(threadIdx.x) % 4 * 2; }

// Loads a thread's elements of a row tile, and zeros beyond K. Rows beyond the last one are the
// last ones again.
template <class Tile>
__device__ void load(const Params& params, const RowTile<Tile>& tile,
                     float (&x)[2][Tile::kMostSteps * 4]) {
  const Matrix& from = params.long_operand;
  const int64_t row_stride = from.row_stride, k_stride = from.col_stride;
  const int row = min(first_row(), (tile.rows - 1) / 2 * 2), next = min(row + 1, tile.rows - 1);
  const int left = static_cast<int>(params.p.k) - first_of_four();
  const float* first = static_cast<const float*>(from.data) +
                       offset_of(params.p.batch, from.batch_stride, tile.matrix) +
                       first_of_four() * k_stride + tile.row * row_stride;
  const float* at[] = {first + row * row_stride, first + next * row_stride};
  const auto exists = [&](int e) {
    return e < Tile::kFullSteps * 4 || e / 4 * 16 + e / 2 % 2 * 8 + e % 2 < left;
  };
  UNROLL
  for (int e = Tile::kFullSteps * 4; e < Tile::kMostSteps * 4; ++e) x[0][e] = x[1][e] = 0;
  const auto load_strided = [&]<bool kPairs>() {
    UNROLL
    for (int e = 0; e < Tile::kMostSteps * 4; ++e) {
      if (kPairs && exists(e)) {
        const float2 x2 = __ldg(reinterpret_cast<const float2*>(at[0]));
        x[0][e] = x2.x, x[1][e] = x2.y;
      } else if (exists(e)) {
        x[0][e] = __ldg(at[0]), x[1][e] = __ldg(at[1]);
      }
      // Without this the compiler would keep a multiple of the stride for each element.
      UNROLL
      for (const float*& each : at) {
        each += e % 2 == 0 ? k_stride : 7 * k_stride;
        asm volatile("" : "+l"(each));
      }
    }
  };
  if (params.loads == Pairs::kOfRow) {
    UNROLL
    for (int e = 0; e < Tile::kMostSteps * 4; e += 2) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        if (!exists(e)) continue;
        const float2 x2 = __ldg(reinterpret_cast<const float2*>(at[i] + e * 4));
        x[i][e] = x2.x, x[i][e + 1] = x2.y;
      }
    }
  } else if (params.loads == Pairs::kOfColumn) {
    load_strided.template operator()<true>();
  } else {
    load_strided.template operator()<false>();
  }
}

// Loads a row tile into L2, if it is contiguous along one side. A warpgroup calls it.
template <class Tile>
__device__ void prefetch(const Params& params, const RowTile<Tile>& tile) {
  constexpr int kLine = kCacheLineBytes / sizeof(float);
  const Matrix& from = params.long_operand;
  const bool k_major = from.col_stride == 1;
  if (!k_major && from.row_stride != 1) return;
  const int k = static_cast<int>(params.p.k);
  const int inner = k_major ? k : tile.rows, outer = k_major ? tile.rows : k;
  const int64_t stride = k_major ? from.row_stride : from.col_stride;
  const float* first = static_cast<const float*>(from.data) +
                       offset_of(params.p.batch, from.batch_stride, tile.matrix) +
                       tile.row * from.row_stride;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kWarpgroup;
  NO_UNROLL
  for (int i = thread / 2; i < outer; i += Tile::kWarpgroup / 2) {
    NO_UNROLL
    for (int j = thread % 2 * kLine; j < inner; j += 2 * kLine) {
      ptx::prefetch_l2(first + i * stride + j);
    }
  }
}

// The fragments of a thread's rows: A of wgmma, for each 16 of K.
template <class Tile>
struct Parts {
  uint32_t hi[Tile::kMostSteps][4], lo[Tile::kMostSteps][4];
  float inverse_scales[2];

  // Splits the rows. Four lanes have a row.
  __device__ void split(const float (&x)[2][Tile::kMostSteps * 4]) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      Range range;
      range.add_all(x[i]);
      range.add_lane(1);
      range.add_lane(2);
      const float scale = fp16x3::scale(range.largest);
      uint32_t small_numbers = 0;
      if (__any_sync(~0u, range.is_wide(scale))) {
        small_numbers = count_small_numbers(x[i], scale);
        small_numbers += __shfl_xor_sync(~0u, small_numbers, 1);
        small_numbers += __shfl_xor_sync(~0u, small_numbers, 2);
      }
      inverse_scales[i] =
          fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale));
      UNROLL
      for (int e = 0; e < Tile::kMostSteps * 4; e += 2) {
        const int at = i + e / 2 % 2 * 2;
        ptx::split_x2(x[i][e] * scale, x[i][e + 1] * scale, hi[e / 4][at], lo[e / 4][at]);
      }
    }
  }
};

}  // namespace fp16x3_rows
}  // namespace tiled::cuda
