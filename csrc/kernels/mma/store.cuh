#pragma once
// From a warp's accumulators, as wgmma leaves them (ptx/wgmma.cuh), to C by way of shared memory:
// any epilogue, output dtype and strides.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "ptx/pack.cuh"

namespace tiled::cuda {

// A warp's 16 rows by the columns that it stores at a time. The padding lets lanes write eight rows
// without bank conflicts.
constexpr int kStagedCols = 32;
using RowStaging = float[16][kStagedCols + 8];

// Stores four adjacent elements of a row, vectorized.
template <class Out>
__device__ void store_x4(Out* c, const float (&x)[4]) {
  if constexpr (std::is_same_v<Out, float>) {
    __stcg(reinterpret_cast<float4*>(c), make_float4(x[0], x[1], x[2], x[3]));
  } else {
    constexpr bool kBFloat16 = std::is_same_v<Out, BFloat16>;
    __stcg(reinterpret_cast<uint2*>(c),
           make_uint2(ptx::pack_x2<kBFloat16>(x[0], x[1]), ptx::pack_x2<kBFloat16>(x[2], x[3])));
  }
}

// combine() of an element inside the matrix; `bias` is that of its column.
template <class Out>
__device__ float combine_with(const Problem& p, const Out* c, float acc, float bias) {
  return combine(p.epilogue, acc, bias, p.epilogue.beta == 0 ? 0.0f : widen(*c));
}

// Applies the epilogue to `count` elements of a thread and stores them: acc_stride apart in shared
// memory, c_stride in C. kAtOnce at a time hide the latency of activations; as many as make the
// last group full are read beyond `count`, though not stored. kSkipsNan: nor are NaNs stored.
template <bool kSkipsNan, int kAtOnce, class Out>
__device__ void store_strided(const Epilogue& epilogue, const float* acc, int acc_stride,
                              float bias, Out* c, int64_t c_stride, int count) {
  NO_UNROLL
  for (int first = 0; first < count;
       first += kAtOnce, acc += kAtOnce * acc_stride, c += kAtOnce * c_stride) {
    float x[kAtOnce];
    bool stores[kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = acc[i * acc_stride];
      stores[i] = first + i < count && !(kSkipsNan && isnan(x[i]));
      const float old = stores[i] && epilogue.beta != 0 ? widen(c[i * c_stride]) : 0;
      x[i] = combine(epilogue, x[i], bias, old);
    }
    activate_each(epilogue.activation, x);
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (stores[i]) c[i * c_stride] = narrow<Out>(x[i]);
    }
  }
}

// Stores a warp's 16 rows of a tile, from (row, col) on, kStagedCols columns at a time: a lane four
// adjacent elements where vectorized_x4, or else one column. kSkipsNan: NaNs are not stored. In the
// loop, accumulators move down to the registers that are staged, so that it is not unrolled. `bias`
// are those of the tile's columns, if the problem has one. bias_relu_at_most: is what the epilogue
// is. column_in_tile(i) is the column in the tile of accumulators i to i + 31 of a row.
template <bool kSkipsNan, class Out, int kElements, class ColumnInTile>
__device__ void store_rows(const Problem& p, bool vectorized_x4, bool bias_relu_at_most, Out* c,
                           int64_t row, int64_t col, float (&acc)[kElements], RowStaging& staging,
                           const float (&bias)[kElements * 2], const ColumnInTile& column_in_tile) {
  static_assert(kStagedCols == 32, "a lane has a column");
  // Accumulators that a thread stages at a time.
  constexpr int kStaged = kElements < kStagedCols / 2 ? kElements : kStagedCols / 2;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const int64_t end = min(p.n, col + kElements * 2);
  c += row * p.c.row_stride;
  NO_UNROLL
  for (int first = 0; first < kElements * 2; first += kStagedCols) {
    const int own_in_tile = column_in_tile(first) + (vectorized_x4 ? lane % 8 * 4 : lane);
    const int64_t own = col + own_in_tile;
    UNROLL
    for (int i = 0; i < kStaged; i += 2) {
      *reinterpret_cast<float2*>(&staging[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
          acc[i], acc[i + 1]};
    }
    __syncwarp();
    Out* to = c + own * p.c.col_stride;
    if (own < end && vectorized_x4) {
      // Two rows at a time hide the latency of activations.
      _Pragma("unroll 2") for (int down = lane / 8; down < rows; down += 4) {
        const float4 x4 = *reinterpret_cast<const float4*>(&staging[down][lane % 8 * 4]);
        float x[4] = {x4.x, x4.y, x4.z, x4.w};
        Out* at = to + down * p.c.row_stride;
        bool skip[4];
        UNROLL
        for (int j = 0; j < 4; ++j) {
          skip[j] = kSkipsNan && isnan(x[j]);
          if (!skip[j]) x[j] = combine_with(p, at + j, x[j], bias[own_in_tile + j]);
        }
        activate_each(p.epilogue.activation, x);
        if (skip[0] || skip[1] || skip[2] || skip[3]) {
          UNROLL
          for (int j = 0; j < 4; ++j) {
            if (!skip[j]) at[j] = narrow<Out>(x[j]);
          }
        } else {
          store_x4(at, x);
        }
      }
    } else if (own < end && bias_relu_at_most) {
      const bool has_bias = p.epilogue.bias != nullptr;
      const bool relu = p.epilogue.activation == Activation::kRelu;
      UNROLL
      for (int down = 0; down < 16; ++down, to += p.c.row_stride) {
        float x = staging[down][lane];
        const bool stores = down < rows && !(kSkipsNan && isnan(x));
        if (has_bias) x += bias[own_in_tile];
        if (relu) x = activate(Activation::kRelu, x);
        if (stores) *to = narrow<Out>(x);
      }
    } else if (own < end) {
      store_strided<kSkipsNan, 4>(p.epilogue, &staging[0][lane], kStagedCols + 8, bias[own_in_tile],
                                  to, p.c.row_stride, rows);
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i + kStaged < kElements; ++i) acc[i] = acc[i + kStaged];
  }
}

}  // namespace tiled::cuda
