#pragma once
// From a warp's sums, as wgmma leaves them (device/wgmma.cuh), to C, whatever is to be done to
// them.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "ptx/pack.cuh"

namespace tiled::cuda {

// What a warp stores at a time: its rows, and so many columns. Lanes that write eight rows meet no
// bank twice.
constexpr int kStored = 32;
using SumsOfRows = float[16][kStored + 8];

// Stores four neighbours of a row at once.
template <class Out>
__device__ void store_vector(Out* c, const float (&x)[4]) {
  if constexpr (std::is_same_v<Out, float>) {
    __stcg(reinterpret_cast<float4*>(c), make_float4(x[0], x[1], x[2], x[3]));
  } else {
    constexpr bool kBFloat16 = std::is_same_v<Out, BFloat16>;
    __stcg(reinterpret_cast<uint2*>(c),
           make_uint2(ptx::pack_x2<kBFloat16>(x[0], x[1]), ptx::pack_x2<kBFloat16>(x[2], x[3])));
  }
}

// Ends a sum that is inside, but for its activation. `bias` is that of its column.
template <class Out>
__device__ float combined(const Problem& p, const Out* c, float sum, float bias) {
  return combine(p.epilogue, sum, bias, p.epilogue.beta == 0 ? 0.0f : widen(*c));
}

// Ends `count` sums of a thread and stores them: `apart` from each other they lie, and `stride` in
// C. kEach at a time, since an activation waits for its own last instruction: as many as that are
// read at the end, too, though not stored; nor are sums that are NaN, where kSkipsNan.
template <bool kSkipsNan, int kEach, class Out>
__device__ void end_each(const Epilogue& epilogue, const float* sums, int apart, float bias, Out* c,
                         int64_t stride, int count) {
  NO_UNROLL
  for (int first = 0; first < count; first += kEach, sums += kEach * apart, c += kEach * stride) {
    float x[kEach];
    bool stores[kEach];
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      x[i] = sums[i * apart];
      stores[i] = first + i < count && !(kSkipsNan && isnan(x[i]));
      const float old = stores[i] && epilogue.beta != 0 ? widen(c[i * stride]) : 0;
      x[i] = combine(epilogue, x[i], bias, old);
    }
    activate_each(epilogue.activation, x);
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (stores[i]) c[i * stride] = narrow<Out>(x[i]);
    }
  }
}

// Stores a warp's rows of a tile that begins at (row, col), kStored columns at a time: four a lane
// where C is written so, or one; but for sums that are NaN, where kSkipsNan. Sums move up to the
// registers that are stored, so that the loop stays one. `bias` are the columns', if there are
// some. simple: a bias and ReLU are all that is done to sums. in_tile(i) is where in the tile the
// sums of a row from sum i on lie.
template <bool kSkipsNan, class Out, int kElements, class InTile>
__device__ void store_rows(const Problem& p, bool by_fours, bool simple, Out* c, int64_t row,
                           int64_t col, float (&sums)[kElements], SumsOfRows& leaving,
                           const float (&bias)[kElements * 2], const InTile& in_tile) {
  static_assert(kStored == 32, "a lane has a column");
  constexpr int kEach = kElements < kStored / 2 ? kElements : kStored / 2;  // sums of a thread
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const int64_t end = min(p.n, col + kElements * 2);
  c += row * p.c.row_stride;
  NO_UNROLL
  for (int first = 0; first < kElements * 2; first += kStored) {
    const int own_in_tile = in_tile(first) + (by_fours ? lane % 8 * 4 : lane);
    const int64_t own = col + own_in_tile;
    UNROLL
    for (int i = 0; i < kEach; i += 2) {
      *reinterpret_cast<float2*>(&leaving[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
          sums[i], sums[i + 1]};
    }
    __syncwarp();
    Out* to = c + own * p.c.col_stride;
    if (own < end && by_fours) {
      // Two rows, since an activation waits for its own last instruction.
      _Pragma("unroll 2") for (int down = lane / 8; down < rows; down += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&leaving[down][lane % 8 * 4]);
        float x[4] = {four.x, four.y, four.z, four.w};
        Out* at = to + down * p.c.row_stride;
        bool skip[4];
        UNROLL
        for (int j = 0; j < 4; ++j) {
          skip[j] = kSkipsNan && isnan(x[j]);
          if (!skip[j]) x[j] = combined(p, at + j, x[j], bias[own_in_tile + j]);
        }
        activate_each(p.epilogue.activation, x);
        if (skip[0] || skip[1] || skip[2] || skip[3]) {
          UNROLL
          for (int j = 0; j < 4; ++j) {
            if (!skip[j]) at[j] = narrow<Out>(x[j]);
          }
        } else {
          store_vector(at, x);
        }
      }
    } else if (own < end && simple) {
      const bool has_bias = p.epilogue.bias != nullptr;
      const bool relu = p.epilogue.activation == Activation::kRelu;
      UNROLL
      for (int down = 0; down < 16; ++down, to += p.c.row_stride) {
        float x = leaving[down][lane];
        const bool stores = down < rows && !(kSkipsNan && isnan(x));
        if (has_bias) x += bias[own_in_tile];
        if (relu) x = activate(Activation::kRelu, x);
        if (stores) *to = narrow<Out>(x);
      }
    } else if (own < end) {
      end_each<kSkipsNan, 4>(p.epilogue, &leaving[0][lane], kStored + 8, bias[own_in_tile], to,
                             p.c.row_stride, rows);
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i + kEach < kElements; ++i) sums[i] = sums[i + kEach];
  }
}

}  // namespace tiled::cuda
