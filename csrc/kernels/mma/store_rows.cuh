#pragma once
// Stores of a warp's accumulators by way of shared memory: any output dtype and strides.

#include <cstdint>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "kernels/mma/apply_epilogue.cuh"

namespace tiled::cuda {

// Stores a warp's 16 rows of a tile, from (row, col) on, kStagedCols columns at a time, as T or
// float: a lane four adjacent floats where vectorized_x4, or else one column. The loop is not
// unrolled: it takes the first accumulators and moves the others down. column_in_tile(i) is the
// column in the tile of accumulators i to i + 31 of a row.
template <class T, int kElements, class ColumnInTile>
__device__ void store_rows(const Problem& p, bool vectorized_x4, int64_t c_offset, int64_t row,
                           int64_t col, RowStaging& staging, const ColumnInTile& column_in_tile,
                           float (&acc)[kElements]) {
  // Accumulators that a thread stages at a time.
  constexpr int kStaged = kElements < kStagedCols / 2 ? kElements : kStagedCols / 2;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const int64_t end = min(p.n, col + kElements * 2);
  const int64_t offset = c_offset + row * p.c.row_stride;
  NO_UNROLL
  for (int first = 0; first < kElements * 2; first += kStagedCols) {
    const int64_t own = col + column_in_tile(first) + (vectorized_x4 ? lane % 8 * 4 : lane);
    const int64_t at = offset + own * p.c.col_stride;
    UNROLL
    for (int i = 0; i < kStaged; i += 2) {
      *reinterpret_cast<float2*>(&staging[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
          acc[i], acc[i + 1]};
    }
    __syncwarp();
    const auto store_column = [&]<class Out>(Out* c) {
      UNROLL
      for (int down = 0; down < 16; ++down, c += p.c.row_stride) {
        const float x = staging[down][lane];
        if (down < rows) *c = narrow<Out>(x);
      }
    };
    if (own < end && vectorized_x4) {
      float* c = static_cast<float*>(p.c.data) + at;
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8;
        const float4 x4 = *reinterpret_cast<const float4*>(&staging[down][lane % 8 * 4]);
        if (down < rows) __stcg(reinterpret_cast<float4*>(c + down * p.c.row_stride), x4);
      }
    } else if (own < end && p.out_dtype == DType::kFloat32) {
      store_column(static_cast<float*>(p.c.data) + at);
    } else if (own < end) {
      store_column(static_cast<T*>(p.c.data) + at);
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i + kStaged < kElements; ++i) acc[i] = acc[i + kStaged];
  }
}

}  // namespace tiled::cuda
