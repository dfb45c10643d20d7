// fp16x3_skinny: the long operand is split on the fly, in the registers that feed mma.sync.
//
// Idea: if one side of C is short, the other side's operand is nearly all that there is to read,
// and splitting it beforehand would triple the memory traffic. Here it is read once. A warpgroup
// loads a work tile's columns to shared memory as they are, stage by stage; each of its warps takes
// eight columns, splits them in registers by a running scale (running_scale.cuh), and multiplies
// them by mma.sync. Each block splits the short operand for itself in shared memory, a panel of up
// to 32 rows by a chunk of K.
//
// A complex B is read in place: its numbers are the elements of a stage, and a lane takes from
// each the two that its column of B' has (core/complex.h).
//
// Limit: memory bandwidth, up to 16 rows. With 32 rows shared memory has room for three stages
// only, and each warp reads the whole panel for eight columns.
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
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace fp16x3_skinny {

// --- The tile and its shared memory --------------------------------------------------------------

// Each warpgroup of a block has work tiles and stages of its own.
struct Tile {
  static constexpr int kMaxRows = 32;  // of a panel
  static constexpr int kCols = 32;     // of a work tile
  static constexpr int kWarpgroups = 4, kWarpgroup = 128, kThreads = kWarpgroups * kWarpgroup;
};

// A stage of the long operand in shared memory, K-major or MN-major as in global memory. Vectors of
// 16 bytes are permuted so that no two lanes of load_fragment() share a bank. The elements of a
// complex operand are its numbers. Each stands for two columns and two of K (core/complex.h).
template <bool kKMajor_, bool kComplex_>
struct LongStage {
  static constexpr bool kKMajor = kKMajor_, kComplex = kComplex_;
  using Element = std::conditional_t<kComplex, float2, float>;
  static constexpr int kParts = kComplex ? 2 : 1, kVector = 4 / kParts;
  static constexpr int kCols = Tile::kCols / kParts, kK = kStageK / kParts;  // in elements
  static constexpr int kBytes = kCols * kK * int{sizeof(Element)};

  // The offset of an element, in bytes.
  static __device__ constexpr int offset(int col, int k) {
    if (kComplex) return (kKMajor ? col * kK + k : k * kCols + (col ^ k / 2 % 4 * 4)) * 8;
    return kKMajor ? (col * kStageK + (k / 4 ^ col % 2 * 4) * 4 + k % 4) * 4
                   : (k * kCols + (col / 4 ^ k / 4 % 4 * 2) * 4 + col % 4) * 4;
  }
};

// 16 rows by 16 of K of the short operand. It holds float32 elements, row by row, until it is split
// in place; then the hi parts, 16 bytes a lane as mma.sync takes them, and after them the lo parts.
struct ShortFragment {
  uint8_t bytes[1024];
};

// A panel has kRowTiles times 16 rows.
template <int kRowTiles>
struct Smem {
  static constexpr int kStages = kRowTiles == 1 ? 4 : 3;  // of real elements
  alignas(1024) ShortFragment short_operand[kChunk / 16][kRowTiles];
  uint8_t long_operand[Tile::kWarpgroups][kStages * LongStage<true, false>::kBytes];
  // Range of the panel's rows; `bits` has the last 16 bits of `largest`.
  uint32_t largest[Tile::kMaxRows], smallest[Tile::kMaxRows], bits[Tile::kMaxRows];
  float inverse_scale[Tile::kMaxRows];
};
static_assert(sizeof(Smem<1>) <= kMaxSharedMemory && sizeof(Smem<2>) <= kMaxSharedMemory);

// --- Loading -------------------------------------------------------------------------------------

// Loads a thread's part of the work tiles of its warpgroup, stage by stage, with zeros beyond the
// operand's end. The caller commits each stage.
template <bool kKMajor, bool kComplex>
class LongLoader {
  using Stage = LongStage<kKMajor, kComplex>;
  using Element = typename Stage::Element;
  static constexpr int kCols = Stage::kCols, kK = Stage::kK, kThreads = Tile::kWarpgroup;

 public:
  __device__ LongLoader(const OnTheFlyParams& params, const uint8_t* stages)
      : stages_(ptx::shared_address(stages)) {
    const int width = params.long_vectorized ? Stage::kVector : 1;  // elements of a copy
    constexpr int kInner = kKMajor ? kK : kCols;
    const int thread = threadIdx.x % kThreads;
    const int inner = thread * width % kInner, outer = thread * width / kInner;
    col_ = kKMajor ? outer : inner, k_ = kKMajor ? inner : outer;
    first_ = Stage::offset(col_, k_);
    // With several panels, the long operand is read once more for the next one.
    policy_ = params.panels == 1 ? ptx::policy_evict_first() : ptx::policy_evict_normal();
    step_ = (kKMajor ? params.long_operand.row_stride : params.long_operand.col_stride) *
            (kThreads * width / kInner);
  }

  // Begins with a work tile; load() goes on to every kWarpgroups-th one after it, up to `end`.
  __device__ void begin(const OnTheFlyParams& params, unsigned tile, unsigned end) {
    tile_ = tile, left_ = 0;
    if (tile >= end) return;
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    const int64_t first_col = (params.first_col_tile + tile % params.col_tiles) * Tile::kCols;
    const Matrix& matrix = params.long_operand;
    const float* first =
        static_cast<const float*>(matrix.data) +
        batch_offset(params.p.batch, matrix, params.first_matrix + panel_chunk.matrix) +
        first_col * matrix.row_stride + int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride;
    from_ =
        reinterpret_cast<const Element*>(first) + col_ * matrix.row_stride + k_ * matrix.col_stride;
    cols_ =
        static_cast<int>(min(params.long_count - first_col, int64_t{Tile::kCols})) / Stage::kParts;
    left_ = panel_chunk.length / Stage::kParts;
  }

  // Loads the next stage, if there is one left.
  __device__ void load(const OnTheFlyParams& params, unsigned end, int stage) {
    if (left_ <= 0) return;
    const uint32_t to = stages_ + stage * Stage::kBytes;
    const Element* from = from_;
    if (params.long_vectorized) {
      constexpr int kVectors = Stage::kBytes / 16 / kThreads;
      constexpr int kBytesApart = Stage::kBytes / kVectors;
      constexpr int kOuterApart = (kKMajor ? kCols : kK) / kVectors;
      // True if the permutation leaves a thread's vectors at equal distances.
      constexpr bool kEven =
          kBytesApart == Stage::offset(kKMajor ? kOuterApart : 0, kKMajor ? 0 : kOuterApart);
      auto to_vector = [&](int i) {
        return to + (kEven ? first_ + i * kBytesApart
                           : Stage::offset(col_ + (kKMajor ? i * kOuterApart : 0),
                                           k_ + (kKMajor ? 0 : i * kOuterApart)));
      };
      if (cols_ == kCols && left_ >= kK) {
        UNROLL
        for (int i = 0; i < kVectors; ++i, from += step_) {
          ptx::cp_async_16(to_vector(i), from, policy_);
        }
      } else {
        const int inner_left = kKMajor ? left_ - k_ : cols_ - col_;
        const int bytes = max(min(inner_left, Stage::kVector), 0) * int{sizeof(Element)};
        const int outer_left = kKMajor ? cols_ - col_ : left_ - k_;
        UNROLL
        for (int i = 0; i < kVectors; ++i, from += step_) {
          ptx::cp_async_x4_zfill(to_vector(i), reinterpret_cast<const float*>(from),
                                 i * kOuterApart < outer_left ? bytes : 0);
        }
      }
    } else {
      constexpr int kElementBytes = sizeof(Element);
      constexpr int kElements = Stage::kBytes / kElementBytes / kThreads;
      constexpr int kOuterApart = (kKMajor ? kCols : kK) / kElements;
      NO_UNROLL
      for (int i = 0; i < kElements; ++i, from += step_) {
        const int col = col_ + (kKMajor ? i * kOuterApart : 0);
        const int k = k_ + (kKMajor ? 0 : i * kOuterApart);
        ptx::cp_async_zfill<kElementBytes>(to + Stage::offset(col, k), from,
                                           col < cols_ && k < left_ ? kElementBytes : 0);
      }
    }
    from_ += kK * params.long_operand.col_stride;
    left_ -= kK;
    if (left_ <= 0) begin(params, tile_ + Tile::kWarpgroups, end);
  }

 private:
  uint32_t stages_;
  int col_, k_, first_;  // the thread's first element of a stage, and its offset
  int64_t step_;         // in global memory, from there to the thread's next element
  uint64_t policy_;
  const Element* from_ = nullptr;
  int cols_ = 0, left_ = 0;  // of the work tile; along K; in elements
  unsigned tile_ = 0;
};

// Loads a panel chunk of the short operand. All threads of the block call it; none may still read
// the one before.
template <int kRowTiles>
__device__ void load_short(const OnTheFlyParams& params, Smem<kRowTiles>& smem,
                           const PanelChunk& panel_chunk) {
  if (threadIdx.x < Tile::kMaxRows) {
    smem.largest[threadIdx.x] = 0, smem.smallest[threadIdx.x] = ~0u, smem.bits[threadIdx.x] = 0;
    smem.inverse_scale[threadIdx.x] = 0;
  }
  const Matrix& matrix = params.short_operand;
  const float* data =
      static_cast<const float*>(matrix.data) +
      batch_offset(params.p.batch, matrix, params.first_matrix + panel_chunk.matrix) +
      panel_chunk.first_row * matrix.row_stride +
      int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride;
  auto to = [&](int row, int k) {
    return smem.short_operand[k / 16][row / 16].bytes + (row % 16 * 16 + k % 16) * 4;
  };
  auto from = [&](int row, int k) {
    return data + row * matrix.row_stride + k * matrix.col_stride;
  };
  constexpr int kRows = kRowTiles * 16;
  const bool k_major = params.short_vectorized || matrix.col_stride < matrix.row_stride;
  const int count = (k_major ? panel_chunk.rows : kRows) * kChunk;
  if (params.short_vectorized) {
    NO_UNROLL
    for (int i = threadIdx.x * 4; i < count; i += Tile::kThreads * 4) {
      const int row = i / kChunk, k = i % kChunk;
      ptx::cp_async_16_zfill(to(row, k), from(row, k), k < panel_chunk.length ? 16 : 0);
    }
  } else {
    NO_UNROLL
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
      const int row = k_major ? i / kChunk : i % kRows, k = k_major ? i % kChunk : i / kRows;
      if (row >= panel_chunk.rows) continue;
      ptx::cp_async_4_zfill(to(row, k), from(row, k), k < panel_chunk.length ? 4 : 0);
    }
  }
}

// --- Splitting and multiplying -------------------------------------------------------------------

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
// K, and mma.sync takes two and two: a tensor-core sum of 16 products does not depend on their
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
  column.add_bits(x);
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

// --- The kernel ----------------------------------------------------------------------------------

template <int kRowTiles, bool kKMajor, bool kLongIsA, bool kComplex>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ OnTheFlyParams params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kRowTiles>*>(smem_bytes);
  using Stage = LongStage<kKMajor, kComplex>;
  constexpr int kStages = sizeof(smem.long_operand[0]) / Stage::kBytes;
  ptx::pdl_launch_dependents();
  const auto [first, end] = BlockTiles(params);
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, barrier = warpgroup + 1;
  ptx::pdl_wait();
  const uint8_t* stages = smem.long_operand[warpgroup];
  LongLoader<kKMajor, kComplex> loader(params, stages);
  const ComplexColumn complex(params.signs_of_b, threadIdx.x / 4);
  RunningScale<4> column;
  int stage = 0;
  bool starts = true;  // the pipeline is empty
  unsigned next_panel_chunk = first / params.col_tiles;
  NO_UNROLL
  for (unsigned tile = first + warpgroup;;) {
    const unsigned panel_chunk = min(tile, end - 1) / params.col_tiles;
    auto begin_panel_chunk = [&] {
      __syncthreads();  // nobody reads the one before
      load_short(params, smem, PanelChunk(params, next_panel_chunk));
      __pipeline_commit();
    };
    // The panel's copies are committed before the long operand's, so that waiting for the
    // panel does not wait for the long operand.
    if (next_panel_chunk <= panel_chunk) begin_panel_chunk();
    if (starts) {
      loader.begin(params, tile, end);
      stage = 0;
      NO_UNROLL
      for (int i = 0; i < kStages - 1; ++i) {
        loader.load(params, end, i);
        __pipeline_commit();
      }
    }
    // All warpgroups of the block take part in every panel chunk, also in those in which they have
    // no tile.
    for (int newer = starts ? kStages - 1 : 0; next_panel_chunk <= panel_chunk; newer = 0) {
      __pipeline_wait_prior(newer);
      __syncthreads();
      split_short(smem);
      __syncthreads();
      if (++next_panel_chunk <= panel_chunk) begin_panel_chunk();
    }
    if (tile >= end) break;
    Accumulators<kRowTiles> acc;
    acc.clear();
    const ShortFragment* short_operand = smem.short_operand[0];
    NO_UNROLL
    for (int left = PanelChunk(params, panel_chunk).length; left > 0; left -= kStageK) {
      __pipeline_wait_prior(kStages - 2);
      // This stage has come, and all warps have read the last one, which is filled next.
      ptx::named_barrier_sync(barrier, Tile::kWarpgroup);
      loader.load(params, end, (stage == 0 ? kStages : stage) - 1);
      __pipeline_commit();
      multiply<kRowTiles, kKMajor, kLongIsA, kComplex>(stages + stage * Stage::kBytes,
                                                       short_operand, complex, column, acc);
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

template <int kRowTiles>
auto choose_kernel(const OnTheFlyParams& params) {
  if (params.b_is_complex) {
    return params.long_k_major ? fp16x3_skinny_kernel<kRowTiles, true, false, true>
                               : fp16x3_skinny_kernel<kRowTiles, false, false, true>;
  }
  if (params.long_k_major) {
    return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, true, true, false>
                            : fp16x3_skinny_kernel<kRowTiles, true, false, false>;
  }
  return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, false, true, false>
                          : fp16x3_skinny_kernel<kRowTiles, false, false, false>;
}

void run(OnTheFlyParams& params, const Context& context) {
  const bool one_row_tile = params.short_count <= 16;
  const auto kernel = one_row_tile ? choose_kernel<1>(params) : choose_kernel<2>(params);
  const size_t smem_bytes = one_row_tile ? sizeof(Smem<1>) : sizeof(Smem<2>);
  allow_shared_memory(kernel, smem_bytes);
  run_on_the_fly(params, Tile::kWarpgroups, context, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, params);
  });
}

// `complex` is null for a real product.
bool launch(const Problem& p, const Plan& plan, const ComplexB* complex, const Context& context) {
  const auto run_part = [&](const Problem& part, float* sums, unsigned long long* recomputed) {
    OnTheFlyParams params = on_the_fly_params(part, Tile::kCols, Tile::kMaxRows);
    params.partial_sums = sums, params.recomputed = recomputed;
    if (complex != nullptr) {
      params.b_is_complex = true, params.signs_of_b = complex->signs;
      const auto [inner, outer] = std::minmax(part.b.row_stride, part.b.col_stride);
      params.long_vectorized = is_vector_aligned(part.batch, part.b, inner, 2 * outer, 4);
    }
    run(params, context);
  };
  return run_with_sums(p, plan, context, fp16x3_skinny_workspace, run_part);
}

}  // namespace
}  // namespace fp16x3_skinny

bool launch_fp16x3_skinny(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_skinny::launch(p, plan, nullptr, context);
}

bool launch_fp16x3_skinny_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context) {
  return fp16x3_skinny::launch(p, plan, &b, context);
}

}  // namespace tiled::cuda
