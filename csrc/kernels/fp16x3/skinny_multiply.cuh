#pragma once
// fp16x3_skinny: splits the short operand in shared memory, splits and multiplies a stage of the
// long operand, and stores the sums of a work tile.

#include "core/order_fp16x3.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/running_scale.cuh"
#include "kernels/fp16x3/skinny_load.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::fp16x3_skinny {

// Splits the panel chunk in place. All threads of the block call it, when all of it has come.
template <int kRowTiles>
__device__ void split_short(Smem<kRowTiles>& smem) {
  constexpr int kWarps = Tile::kThreads / 32;
  constexpr int kFragments = kChunk / 16 * kRowTiles / kWarps;  // a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % kRowTiles * 16 + lane / 4;  // and row + 8
  ShortFragment* fragments = smem.short_operand[0] + warp;
  auto read = [&](int i, float(&x)[2][4]) {
    UNROLL
    for (int down = 0; down < 2; ++down) {
      const float4 x4 =
          reinterpret_cast<const float4*>(fragments[i * kWarps].bytes)[lane + down * 32];
      x[down][0] = x4.x, x[down][1] = x4.y, x[down][2] = x4.z, x[down][3] = x4.w;
    }
  };
  Range range[2];
  UNROLL
  for (int i = 0; i < kFragments; ++i) {
    float x[2][4];
    read(i, x);
    UNROLL
    for (int j = 0; j < 8; ++j) range[j / 4].add(x[j / 4][j % 4]);
  }
  UNROLL
  for (int down = 0; down < 2; ++down) {
    range[down].add_lane(1), range[down].add_lane(2);
    atomicMax(&smem.largest[row + down * 8], range[down].largest);
    atomicMin(&smem.smallest[row + down * 8], range[down].smallest);
  }
  __syncthreads();
  if (threadIdx.x < kRowTiles * 16) {
    store_inverse_scale(&smem.inverse_scale[threadIdx.x], smem.largest[threadIdx.x]);
  }
  float scale[2];
  bool wide[2];
  UNROLL
  for (int down = 0; down < 2; ++down) {
    const Range all{smem.largest[row + down * 8], smem.smallest[row + down * 8]};
    scale[down] = fp16x3::scale(all.largest);
    wide[down] = all.is_wide(scale[down]);
  }
  UNROLL
  for (int i = 0; i < kFragments; ++i) {
    float x[2][4];
    read(i, x);
    UNROLL
    for (int down = 0; down < 2; ++down) {
      if (!wide[down]) continue;
      add_small_numbers(&smem.inverse_scale[row + down * 8],
                        count_small_numbers(x[down], scale[down]));
    }
    uint32_t hi[4], lo[4];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float* pair = &x[j % 2][j / 2 * 2];
      ptx::split_x2(pair[0] * scale[j % 2], pair[1] * scale[j % 2], hi[j], lo[j]);
    }
    __syncwarp();  // every lane has read
    uint4* to = reinterpret_cast<uint4*>(fragments[i * kWarps].bytes) + lane;
    to[0] = {hi[0], hi[1], hi[2], hi[3]};
    to[32] = {lo[0], lo[1], lo[2], lo[3]};
  }
}

// The accumulators of a warp: a panel's rows by eight columns of a work tile.
template <int kRowTiles>
struct Accumulators {
  float total[kRowTiles][4], low[kRowTiles][4];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < kRowTiles * 4; ++i) total[i / 4][i % 4] = low[i / 4][i % 4] = 0;
  }
  // Multiplies each column by the factor that its lanes hold.
  __device__ void scale(float factor) {
    const int q = threadIdx.x % 4;
    const float of_col[2] = {__shfl_sync(~0u, factor, q * 8), __shfl_sync(~0u, factor, q * 8 + 4)};
    UNROLL
    for (int i = 0; i < kRowTiles * 4; ++i) {
      total[i / 4][i % 4] *= of_col[i % 2], low[i / 4][i % 4] *= of_col[i % 2];
    }
  }
};

// Loads a lane's elements of a column in a stage. A lane takes four adjacent ones of each 16 along
// K, where mma.sync takes two and two: a tensor-core sum of 16 products does not depend on their
// order, and the fragments of the short operand have the same one.
template <bool kKMajor>
__device__ void load_fragment(const uint8_t* stage, int col, Float32X4<kK16s>& x) {
  using Stage = LongStage<kKMajor, false>;
  const int q = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < kK16s; ++i) {
    if constexpr (kKMajor) {
      const float4 x4 =
          *reinterpret_cast<const float4*>(stage + Stage::offset(col, i * 16 + q * 4));
      x[i][0] = x4.x, x[i][1] = x4.y, x[i][2] = x4.z, x[i][3] = x4.w;
    } else {
      const uint8_t* from = stage + Stage::offset(col, q * 4) + Stage::offset(0, i * 16);
      UNROLL
      for (int j = 0; j < 4; ++j) {
        x[i][j] = *reinterpret_cast<const float*>(from + j * (Stage::kCols * 4));
      }
    }
  }
}

// The same of a complex operand B: the two numbers of B' that its column has of each complex one.
template <bool kKMajor>
__device__ void load_complex_fragment(const uint8_t* stage, int col, const ComplexColumn& column,
                                      Float32X4<kK16s>& x) {
  using Stage = LongStage<kKMajor, true>;
  const int q = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < kK16s; ++i) {
    float2 z[2];
    if constexpr (kKMajor) {
      const float4 x4 =
          *reinterpret_cast<const float4*>(stage + Stage::offset(col / 2, i * 8 + q * 2));
      z[0] = {x4.x, x4.y}, z[1] = {x4.z, x4.w};
    } else {
      const uint8_t* from = stage + Stage::offset(col / 2, q * 2) + i * (8 * Stage::kCols * 8);
      z[0] = *reinterpret_cast<const float2*>(from);
      z[1] = *reinterpret_cast<const float2*>(from + Stage::kCols * 8);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const float2 numbers = column.numbers(z[j]);
      x[i][j * 2] = numbers.x, x[i][j * 2 + 1] = numbers.y;
    }
  }
}

// Splits a stage of the long operand in registers and multiplies it.
template <int kRowTiles, bool kKMajor, bool kLongIsA, bool kComplex>
__device__ void multiply(const uint8_t* stage, const ShortFragment* short_operand,
                         const ComplexColumn& complex, RunningScale<4>& column,
                         Accumulators<kRowTiles>& acc) {
  constexpr int kPromote = fp16x3::promotion(kChunk) / 16;  // in steps of 16
  const int lane = threadIdx.x % 32;
  Float32X4<kK16s> x;
  Fp16X4<kK16s> long_hi, long_lo;
  const int col = threadIdx.x % Tile::kWarpgroup / 4;
  if constexpr (kComplex) {
    load_complex_fragment<kKMajor>(stage, col, complex, x);
  } else {
    load_fragment<kKMajor>(stage, col, x);
  }
  split_x4(x, column.scale(), long_hi, long_lo);
  StageRange range;
  range.add(long_hi, long_lo);
  if (__any_sync(~0u, range.overflows())) {
    acc.scale(column.lower(largest_magnitude(x)));
    split_x4(x, column.scale(), long_hi, long_lo);
    range = {};
    range.add(long_hi, long_lo);
  }
  if (column.add(range)) column.add(x);
  float part[kRowTiles][4];
  UNROLL
  for (int k16 = 0; k16 < kK16s; ++k16) {
    if (k16 % kPromote == 0) {
      UNROLL
      for (int i = 0; i < kRowTiles * 4; ++i) part[i / 4][i % 4] = 0;
    }
    uint32_t short_hi[kRowTiles][4], short_lo[kRowTiles][4];
    UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      const uint4* from =
          reinterpret_cast<const uint4*>(short_operand[k16 * kRowTiles + t].bytes) + lane;
      const uint4 hi = from[0], lo = from[32];
      short_hi[t][0] = hi.x, short_hi[t][1] = hi.y, short_hi[t][2] = hi.z, short_hi[t][3] = hi.w;
      short_lo[t][0] = lo.x, short_lo[t][1] = lo.y, short_lo[t][2] = lo.z, short_lo[t][3] = lo.w;
    }
    // The order has lo_a hi_b first, whichever operand A is.
    UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      ptx::mma_m16n8k16(acc.low[t], kLongIsA ? short_hi[t] : short_lo[t],
                        kLongIsA ? long_lo[k16] : long_hi[k16]);
    }
    UNROLL
    for (int t = 0; t < kRowTiles; ++t) ptx::mma_m16n8k16(part[t], short_hi[t], long_hi[k16]);
    UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      ptx::mma_m16n8k16(acc.low[t], kLongIsA ? short_lo[t] : short_hi[t],
                        kLongIsA ? long_hi[k16] : long_lo[k16]);
    }
    if ((k16 + 1) % kPromote == 0) {
      UNROLL
      for (int i = 0; i < kRowTiles * 4; ++i) acc.total[i / 4][i % 4] += part[i / 4][i % 4];
    }
  }
}

// Descales and stores the sums of a work tile.
template <int kRowTiles>
__device__ void store_sums(const OnTheFlyParams& params, const Smem<kRowTiles>& smem, unsigned tile,
                           const RunningScale<4>& column, Accumulators<kRowTiles>& acc) {
  const PanelChunk panel_chunk(params, tile / params.col_tiles);
  const int64_t first_col =
      int64_t{tile % params.col_tiles} * Tile::kCols + threadIdx.x % Tile::kWarpgroup / 32 * 8;
  const int lane = threadIdx.x % 32, q = lane % 4;
  const float inverse = column.inverse_scale();
  const float2 col_scales{__shfl_sync(~0u, inverse, q * 8), __shfl_sync(~0u, inverse, q * 8 + 4)};
  float* to = partial_sums(params, panel_chunk) + first_col + q * 2;
  UNROLL
  for (int t = 0; t < kRowTiles; ++t) {
    const int row = t * 16 + lane / 4;  // and row + 8
    float row_scales[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
      row_scales[i] = row + i * 8 < panel_chunk.rows ? smem.inverse_scale[row + i * 8] : 1.0f;
    }
    descale_chunk<4>(acc.total[t], acc.low[t], row_scales, {col_scales}, fp16x3::promotion(kChunk));
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if (row + i * 8 >= panel_chunk.rows) continue;
      __stcg(reinterpret_cast<float2*>(to + (row + i * 8) * params.sums_pitch()),
             float2{acc.total[t][i * 2], acc.total[t][i * 2 + 1]});
    }
  }
}

}  // namespace tiled::cuda::fp16x3_skinny
