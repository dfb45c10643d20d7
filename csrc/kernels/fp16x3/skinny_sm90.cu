// fp16x3_skinny: the long operand is split on the fly, in the registers that feed mma.sync.
//
// Idea: if one side of C is short, the other side's operand is nearly all that there is to read,
// and splitting it beforehand would triple the memory traffic. Here it is read once. A warpgroup
// loads a work tile's columns to shared memory as they are, stage by stage; each of its warps takes
// eight columns, splits them in registers by a running scale (running_scale.cuh), and multiplies
// them by mma.sync. Each block splits the short operand for itself in shared memory, a panel of 16
// or 32 rows by a chunk of K.
//
// A complex B is read in place: its numbers are the elements of a stage, and a lane takes from
// each the two that its column of B' has (core/complex.h). A 16-bit operand is read in place, too,
// and widened in registers: a stage of it has half the bytes, and a panel of it is multiplied by
// its hi parts alone if no row is wide.
//
// Limit: memory bandwidth, up to 16 rows. With 32 rows each warp reads the whole panel for eight
// columns. With few tiles, the panel, which is loaded and split before the first product.
//
// Next: wgmma, which reads the panel once for all columns (fused_sm90.cu).
//
//   all warps     panel: cp.async -> __syncthreads -> split in place -> __syncthreads
//   a warpgroup   wait for its cp.async of stage s
//                 named barrier: stage s has come, and all warps have read stage s - 1
//                 cp.async to stage s - 1;  split and multiply stage s
//   end of tile   named barrier: all warps agree whether a scale failed;  store the sums

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/running_scale.cuh"
#include "kernels/fp16x3/skinny_tile.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace fp16x3_skinny {

// --- Splitting and multiplying -------------------------------------------------------------------

// Loads four adjacent elements from shared memory.
template <class Element>
__device__ void load_x4(const uint8_t* from, float (&x)[4]) {
  if constexpr (sizeof(Element) == 2) {
    const uint2 x4 = *reinterpret_cast<const uint2*>(from);
    UNROLL
    for (int i = 0; i < 4; ++i) x[i] = widen(reinterpret_cast<const Element*>(&x4)[i]);
  } else {
    const float4 x4 = *reinterpret_cast<const float4*>(from);
    x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
  }
}

// Splits the panel chunk in place. All threads of the block call it, when all of it has come.
template <class Element, int kRowTiles>
__device__ void split_short(Smem<kRowTiles>& smem) {
  constexpr int kWarps = Tile::kThreads / 32;
  constexpr int kFragments = kChunk / 16 * kRowTiles / kWarps;  // a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % kRowTiles * 16 + lane / 4;  // and row + 8
  ShortFragment* fragments = smem.short_operand[0] + warp;
  auto read = [&](int i, float(&x)[2][4]) {
    UNROLL
    for (int down = 0; down < 2; ++down) {
      const int offset = ShortFragment::offset<Element>(lane / 4 + down * 8, lane % 4 * 4);
      load_x4<Element>(fragments[i * kWarps].bytes + offset, x[down]);
    }
  };
  Range range[2];
  _Pragma("unroll 2") for (int i = 0; i < kFragments; ++i) {
    float x[2][4];
    read(i, x);
    UNROLL
    for (int down = 0; down < 2; ++down) range[down].add_all(x[down]);
  }
  UNROLL
  for (int down = 0; down < 2; ++down) {
    range[down].add_lane(1), range[down].add_lane(2);
    atomicMax(&smem.largest[row + down * 8], range[down].largest);
    atomicMin(&smem.smallest[row + down * 8], range[down].smallest);
    atomicOr(&smem.bits[row + down * 8], range[down].largest & 0xffffu);
  }
  __syncthreads();
  const auto range_of_row = [&](int of_row) {
    return Range{smem.largest[of_row] | smem.bits[of_row], smem.smallest[of_row]};
  };
  if (threadIdx.x < kRowTiles * 16) {
    const Range all = range_of_row(threadIdx.x);
    store_inverse_scale(&smem.inverse_scale[threadIdx.x], all.largest,
                        all.is_coarse(fp16x3::scale(all.largest)));
  }
  float scale[2];
  bool wide[2];
  UNROLL
  for (int down = 0; down < 2; ++down) {
    const Range all = range_of_row(row + down * 8);
    scale[down] = fp16x3::scale(all.largest);
    wide[down] = all.is_wide(scale[down]);
  }
  _Pragma("unroll 2") for (int i = 0; i < kFragments; ++i) {
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

// Returns whether lo parts of a 16-bit panel may not be 0: a row of `rows` is wide. The whole warp
// calls it.
template <int kRowTiles>
__device__ bool has_lo(const Smem<kRowTiles>& smem, int rows) {
  const int lane = threadIdx.x % 32;
  static_assert(Tile::kMaxRows == 32);
  return __any_sync(~0u, lane < rows && fp16x3::small_numbers(smem.inverse_scale[lane]) != 0);
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
// K, and mma.sync takes two and two: a tensor-core sum of 16 products does not depend on their
// order, and the fragments of the short operand have the same one.
template <bool kKMajor, class Element>
__device__ void load_fragment(const uint8_t* stage, int col, Float32X4<kK16s>& x) {
  using Stage = LongStage<kKMajor, Element>;
  const int q = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < kK16s; ++i) {
    if constexpr (kKMajor) {
      load_x4<Element>(stage + Stage::offset(col, i * 16 + q * 4), x[i]);
    } else {
      const uint8_t* from = stage + Stage::offset(col, q * 4) + Stage::offset(0, i * 16);
      UNROLL
      for (int j = 0; j < 4; ++j) {
        constexpr int kRowBytes = Stage::kCols * int{sizeof(Element)};
        x[i][j] = widen(*reinterpret_cast<const Element*>(from + j * kRowBytes));
      }
    }
  }
}

// The same of a complex operand B: the two numbers of B' that its column has of each complex one.
template <bool kKMajor>
__device__ void load_complex_fragment(const uint8_t* stage, int col, const ComplexColumn& column,
                                      Float32X4<kK16s>& x) {
  using Stage = LongStage<kKMajor, float2>;
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

// Multiplies a stage of the long operand. Lo parts that an operand does not have are 0.
template <bool kLongIsA, bool kLongHasLo, bool kShortHasLo, int kRowTiles>
__device__ void multiply_parts(const ShortFragment* short_operand, const Fp16X4<kK16s>& long_hi,
                               const Fp16X4<kK16s>& long_lo, Accumulators<kRowTiles>& acc) {
  constexpr int kPromote = fp16x3::promotion(kChunk) / 16;  // in steps of 16
  const int lane = threadIdx.x % 32;
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
      const uint4 hi = from[0], lo = kShortHasLo ? from[32] : uint4{};
      short_hi[t][0] = hi.x, short_hi[t][1] = hi.y, short_hi[t][2] = hi.z, short_hi[t][3] = hi.w;
      short_lo[t][0] = lo.x, short_lo[t][1] = lo.y, short_lo[t][2] = lo.z, short_lo[t][3] = lo.w;
    }
    // The order has lo_a hi_b first, whichever operand A is.
    UNROLL
    for (int t = 0; t < kRowTiles && (kLongIsA ? kLongHasLo : kShortHasLo); ++t) {
      ptx::mma_m16n8k16(acc.low[t], kLongIsA ? short_hi[t] : short_lo[t],
                        kLongIsA ? long_lo[k16] : long_hi[k16]);
    }
    UNROLL
    for (int t = 0; t < kRowTiles; ++t) ptx::mma_m16n8k16(part[t], short_hi[t], long_hi[k16]);
    UNROLL
    for (int t = 0; t < kRowTiles && (kLongIsA ? kShortHasLo : kLongHasLo); ++t) {
      ptx::mma_m16n8k16(acc.low[t], kLongIsA ? short_lo[t] : short_hi[t],
                        kLongIsA ? long_hi[k16] : long_lo[k16]);
    }
    if ((k16 + 1) % kPromote == 0) {
      UNROLL
      for (int i = 0; i < kRowTiles * 4; ++i) acc.total[i / 4][i % 4] += part[i / 4][i % 4];
    }
  }
}

// A stage of the long operand, split: a lane's part.
struct LongParts {
  Fp16X4<kK16s> hi, lo;
  bool has_lo;  // of 16-bit elements, in any lane
};

// Splits a stage of the long operand in registers.
template <bool kKMajor, class Long, int kRowTiles>
__device__ void split_long(const uint8_t* stage, const ComplexColumn& complex,
                           RunningScale<4>& column, Accumulators<kRowTiles>& acc,
                           LongParts& parts) {
  Float32X4<kK16s> x;
  const int col = threadIdx.x % Tile::kWarpgroup / 4;
  if constexpr (std::is_same_v<Long, float2>) {
    load_complex_fragment<kKMajor>(stage, col, complex, x);
  } else {
    load_fragment<kKMajor, Long>(stage, col, x);
  }
  split_x4(x, column.scale(), parts.hi, parts.lo);
  StageRange range;
  range.add(parts.hi, parts.lo);
  if (__any_sync(~0u, range.overflows())) {
    acc.scale(column.lower(largest_magnitude(x)));
    split_x4(x, column.scale(), parts.hi, parts.lo);
    range = {};
    range.add(parts.hi, parts.lo);
  }
  column.add_bits(x);
  if (column.add(range)) column.add(x);
  parts.has_lo = sizeof(Long) != 2 || __any_sync(~0u, range.has_lo());
}

// Multiplies a stage. The short operand's lo parts are 0 unless short_has_lo.
template <bool kLongIsA, class Long, class Short, int kRowTiles>
__device__ void multiply(const ShortFragment* short_operand, bool short_has_lo,
                         const LongParts& parts, Accumulators<kRowTiles>& acc) {
  constexpr bool kLongIsNarrow = sizeof(Long) == 2, kShortIsNarrow = sizeof(Short) == 2;
  if (kLongIsNarrow && !parts.has_lo) {
    multiply_parts<kLongIsA, !kLongIsNarrow, true>(short_operand, parts.hi, parts.lo, acc);
  } else if (kShortIsNarrow && !short_has_lo) {
    multiply_parts<kLongIsA, true, !kShortIsNarrow>(short_operand, parts.hi, parts.lo, acc);
  } else {
    multiply_parts<kLongIsA, true, true>(short_operand, parts.hi, parts.lo, acc);
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

// --- The kernel ----------------------------------------------------------------------------------

// Long and Short: the types of the operands' elements, float2 for a complex B.
template <int kRowTiles, bool kKMajor, bool kLongIsA, class Long, class Short>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ OnTheFlyParams params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kRowTiles>*>(smem_bytes);
  using Stage = LongStage<kKMajor, Long>;
  constexpr int kStages = sizeof(smem.long_operand[0]) / Stage::kBytes;
  ptx::pdl_launch_dependents();
  const auto [first, end] = BlockTiles(params);
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, barrier = warpgroup + 1;
  ptx::pdl_wait();
  const uint8_t* stages = smem.long_operand[warpgroup];
  LongLoader<kKMajor, Long> loader(params, stages);
  const ComplexColumn complex(params.signs_of_b, threadIdx.x / 4);
  RunningScale<4> column;
  int stage = 0;
  bool starts = true;  // the pipeline is empty
  unsigned next_panel_chunk = first / params.col_tiles;
  NO_UNROLL
  for (unsigned tile = first + warpgroup;;) {
    const unsigned panel_chunk = min(tile, end - 1) / params.col_tiles;
    // All warpgroups of the block take part in every panel chunk, also in those in which they have
    // no tile.
    NO_UNROLL
    for (bool begins = starts; begins || next_panel_chunk <= panel_chunk; begins = false) {
      const bool loads_panel = next_panel_chunk <= panel_chunk;
      if (loads_panel) {
        __syncthreads();  // nobody reads the one before
        load_short<Short>(params, smem, PanelChunk(params, next_panel_chunk++));
        __pipeline_commit();
      }
      if (begins) {
        loader.begin(params, tile, end);
        stage = 0;
        NO_UNROLL
        for (int i = 0; i < kStages - 1; ++i) {
          loader.load(params, end, i);
          __pipeline_commit();
        }
      }
      if (!loads_panel) break;
      // The panel's copies were committed before the long operand's, so that this does not wait for
      // the long operand.
      __pipeline_wait_prior(begins ? kStages - 1 : 0);
      __syncthreads();
      split_short<Short>(smem);
      __syncthreads();
    }
    if (tile >= end) break;
    Accumulators<kRowTiles> acc;
    acc.clear();
    const ShortFragment* short_operand = smem.short_operand[0];
    const PanelChunk chunk(params, panel_chunk);
    const bool short_has_lo = sizeof(Short) == 4 || has_lo(smem, chunk.rows);
    NO_UNROLL
    for (int left = chunk.length; left > 0; left -= kStageK) {
      __pipeline_wait_prior(kStages - 2);
      // This stage has come, and all warps have read the last one, which is filled next.
      ptx::named_barrier_sync(barrier, Tile::kWarpgroup);
      loader.load(params, end, (stage == 0 ? kStages : stage) - 1);
      __pipeline_commit();
      LongParts parts;
      split_long<kKMajor, Long>(stages + stage * Stage::kBytes, complex, column, acc, parts);
      multiply<kLongIsA, Long, Short>(short_operand, short_has_lo, parts, acc);
      stage = stage == kStages - 1 ? 0 : stage + 1;
      short_operand += kK16s * kRowTiles;
    }
    starts = ptx::named_barrier_sync_or(barrier, Tile::kWarpgroup, column.failed());
    if (starts) {  // the tile is multiplied a second time, from its first stage
      column.restart();
      __pipeline_wait_prior(0);
      ptx::named_barrier_sync(barrier, Tile::kWarpgroup);
      continue;
    }
    store_sums(params, smem, tile, column, acc);
    column = {};
    tile += Tile::kWarpgroups;
  }
}

namespace {

template <int kRowTiles, class Long, class Short>
auto kernel_for(const OnTheFlyParams& params) {
  if (params.long_k_major) {
    return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, true, true, Long, Short>
                            : fp16x3_skinny_kernel<kRowTiles, true, false, Long, Short>;
  }
  return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, false, true, Long, Short>
                          : fp16x3_skinny_kernel<kRowTiles, false, false, Long, Short>;
}

template <int kRowTiles>
auto choose_kernel(const OnTheFlyParams& params) {
  if (params.stored == Stored::kComplexB) {
    return params.long_k_major ? fp16x3_skinny_kernel<kRowTiles, true, false, float2, float>
                               : fp16x3_skinny_kernel<kRowTiles, false, false, float2, float>;
  }
  if (!params.is_mixed()) return kernel_for<kRowTiles, float, float>(params);
  const bool half = params.narrow.dtype == DType::kFloat16;
  if (params.long_is_narrow()) {
    return half ? kernel_for<kRowTiles, Half, float>(params)
                : kernel_for<kRowTiles, BFloat16, float>(params);
  }
  return half ? kernel_for<kRowTiles, float, Half>(params)
              : kernel_for<kRowTiles, float, BFloat16>(params);
}

void run(OnTheFlyParams& params, const Context& context) {
  const bool one_row_tile = params.panel_rows == 16;
  const auto kernel = one_row_tile ? choose_kernel<1>(params) : choose_kernel<2>(params);
  const size_t smem_bytes = one_row_tile ? sizeof(Smem<1>) : sizeof(Smem<2>);
  allow_shared_memory(kernel, smem_bytes);
  run_on_the_fly(params, Tile::kWarpgroups, context, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, params);
  });
}

// `complex` is null for a real product, and `narrow` if no operand is a 16-bit one.
bool launch(const Problem& p, const Plan& plan, const ComplexB* complex, const Narrow* narrow,
            const Context& context) {
  const auto run_part = [&](const Problem& part, float* sums, unsigned long long* recomputed) {
    OnTheFlyParams params =
        on_the_fly_params(part, long_and_short(part), Tile::kCols, plan.m, narrow);
    params.partial_sums = sums, params.recomputed = recomputed;
    if (complex != nullptr) {
      params.stored = Stored::kComplexB, params.signs_of_b = complex->signs;
      const auto [inner, outer] = std::minmax(part.b.row_stride, part.b.col_stride);
      params.long_vectorized = is_vector_aligned(part.batch, part.b, inner, 2 * outer, 4);
    }
    run(params, context);
  };
  return run_with_sums(p, plan, narrow, context, fp16x3_skinny_workspace, run_part);
}

}  // namespace
}  // namespace fp16x3_skinny

bool launch_fp16x3_skinny(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_skinny::launch(p, plan, nullptr, nullptr, context);
}

bool launch_fp16x3_skinny_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context) {
  return fp16x3_skinny::launch(p, plan, &b, nullptr, context);
}

bool launch_fp16x3_skinny_mixed(const Problem& p, const Plan& plan, const Narrow& narrow,
                                const Context& context) {
  return fp16x3_skinny::launch(p, plan, nullptr, &narrow, context);
}

}  // namespace tiled::cuda
