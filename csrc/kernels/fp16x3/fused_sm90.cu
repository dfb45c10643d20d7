// fp16x3_fused: the split of the long operand is fused into the kernel that multiplies by wgmma.
//
// Idea: a warp of fp16x3_skinny reads the whole panel of the short operand for eight columns, and
// with more rows shared memory cannot deliver that. So the split and the product go to different
// warps. Two splitter warpgroups split the long operand from shared memory to shared memory, and
// two multiplier warpgroups multiply it by a panel of up to 128 rows by wgmma, which reads the
// panel there once for all columns. The short operand is split beforehand (split_sm90.cu). Both
// come by TMA. When a column's scale falls (running_scale.cuh), the splitters pass on the factor,
// and the multipliers scale their sums by it.
//
// Limit: the latency of the splitters' instructions; then the bandwidth of shared memory, which
// wgmma alone uses for a large part of the time.
//
// Next: scales that fall without a second look at the stage; fewer instructions for an element.
//
//   one splitter   wait long_empty[l]   TMA of the long operand          -> long_full[l]
//   another        wait empty[s]        bulk copy of the short operand   -> full[s]
//   splitters      wait long_full[l], empty[s]
//                  split stage l into stage s                            -> full[s], long_empty[l]
//   multipliers    wait full[s]         scale sums, multiply stage s     -> empty[s]
//   end of tile    named barrier 1: all threads agree whether a scale failed

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/mixed.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/fused_tile.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/running_scale.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace fp16x3_fused {

// Loads the next stage of the long operand, as soon as one is empty; one thread.
template <bool kKMajor, int kPanelRows>
__device__ void load_long(const OnTheFlyParams& params, const CUtensorMap& map,
                          Smem<kPanelRows>& smem) {
  using Box = LongBox<kKMajor>;
  auto& next = smem.long_loader;
  if (next.stages_left == 0) return;
  const StageCounter pipe = next.pipe;
  uint64_t* full = &smem.long_full[pipe.stage()];
  ptx::mbarrier_wait(&smem.long_empty[pipe.stage()], pipe.parity() ^ 1);
  ptx::arrive_expect_tx(full, sizeof smem.long_operand[pipe.stage()]);
  // With several panels, the long operand is read once more for the next one.
  const bool once = params.panels == 1;
  const uint64_t policy = ptx::policy_evict_first();
  UNROLL
  for (int i = 0; i < Box::kCount; ++i) {
    const int col = next.col + (kKMajor ? 0 : i * Box::kCols);
    const int k = next.k + (kKMajor ? i * Box::kK : 0);
    const int coords[] = {kKMajor ? k : col, kKMajor ? col : k, next.matrix[0], next.matrix[1],
                          next.matrix[2]};
    ptx::tma_load_policy_if(once, smem.long_operand[pipe.stage()] + i * Box::kBytes, &map, coords,
                            full, policy);
  }
  next.pipe.advance();
  next.k += kStageK;
  if (--next.stages_left == 0) next.begin(params, next.tile + 1);
}

// Loads the next stage of the short operand; one thread. If only one step of a stage is left, it is
// loaded twice, and meets zeros of the long operand.
template <int kPanelRows>
__device__ void load_short(Smem<kPanelRows>& smem, int stage) {
  ShortLoader& next = smem.short_loader;
  ptx::arrive_expect_tx(&smem.full[stage], Tile::kSteps * next.step_bytes);
  UNROLL
  for (int i = 0; i < Tile::kSteps; ++i) {
    const uint8_t* from = next.from + (i < next.steps_left ? i * next.step_bytes : 0);
    ptx::bulk_load(smem.short_parts[stage] + i * next.step_bytes, from, next.step_bytes,
                   &smem.full[stage]);
  }
  next.from += Tile::kSteps * next.step_bytes;
  next.steps_left -= Tile::kSteps;
}

// --- Splitters -----------------------------------------------------------------------------------

// The addresses of a splitter's elements in a stage. Two adjacent lanes have a column: one has the
// first four of each eight of K, the other one the last four. No two lanes that access shared
// memory together share a bank. Swizzled offsets differ from each other in a few bits only, so each
// is computed from one register by an exclusive or.
template <bool kKMajor>
struct SplitterLayout {
  static constexpr int kVectors = Tile::kCols * kStageK / 4 / Tile::kSplitters;  // of four elements
  uint32_t from, to;  // the first vector's offsets in a float32 stage, and in a stage of parts

  __device__ SplitterLayout() {
    const int pair = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const int col = threadIdx.x / 32 * 16 + pair / 8 * 8 + pair % 4 * 2 + pair / 4 % 2;
    to = Presplit::swizzle(col, 0) + half * 8;
    from = kKMajor ? col * 128 + (half ^ col % 8) * 16
                   : col / 32 * LongBox<false>::kBytes + half * 4 * 128 +
                         (col % 32 / 4 ^ half * 4) * 16 + col % 4 * 4;
  }
  __device__ int col() const { return static_cast<int>(to / Presplit::plane_bytes(1)); }
  // Reads vector i of the stage at an offset from `smem`.
  __device__ void read(const uint8_t* smem, uint32_t stage, int i, float (&x)[4]) const {
    const uint32_t offset = stage + from;
    if constexpr (kKMajor) {
      constexpr int kPerRow = 128 / 32;  // one of each eight elements
      const float4 x4 = *reinterpret_cast<const float4*>(smem + (offset ^ i % kPerRow * 32) +
                                                         i / kPerRow * LongBox<true>::kBytes);
      x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
    } else {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        x[j] = *reinterpret_cast<const float*>(smem + (offset ^ j * 16) + (i * 8 + j) * 128);
      }
    }
  }
  __device__ void write(uint8_t* smem, uint32_t stage, int i, const uint32_t (&hi)[2],
                        const uint32_t (&lo)[2]) const {
    constexpr int kPerStep = Presplit::kK / 8;
    uint8_t* plane = smem + ((stage + to) ^ i % kPerStep * 16) + i / kPerStep * (2 * Tile::kPlane);
    *reinterpret_cast<uint2*>(plane) = {hi[0], hi[1]};
    *reinterpret_cast<uint2*>(plane + Tile::kPlane) = {lo[0], lo[1]};
  }
};

// Splits a float32 stage to a stage of parts, both given as offsets from `smem`. Sets `factor` to
// what the column's sums so far must be multiplied by, and returns whether that is not 1 for a
// column of the warp.
template <int kAtOnce, bool kKMajor>
__device__ bool split_stage(uint8_t* smem, uint32_t long_operand, uint32_t long_parts,
                            const SplitterLayout<kKMajor>& layout, RunningScale<2>& column,
                            float& factor) {
  constexpr int kVectors = SplitterLayout<kKMajor>::kVectors;
  // If there are registers for it, vectors are read before the parts of earlier ones are written.
  // The compiler does not do so by itself, since it cannot know that the writes do not overlap
  // them.
  constexpr bool kPrefetches = kKMajor || kAtOnce > 1;
  Float32X4<kAtOnce> x;
  Fp16X4<kAtOnce> hi, lo;
  auto read = [&](int first, float(&to)[kAtOnce][4]) {
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) layout.read(smem, long_operand, first + i, to[i]);
  };
  factor = 1;
  bool scaled = false;
  StageRange range;
  NO_UNROLL
  for (;;) {
    Float32X4<kAtOnce> next;
    if (kPrefetches) read(0, next);
    UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      if (!kPrefetches) read(first, next);
      UNROLL
      for (int i = 0; i < kAtOnce * 4; ++i) x[i / 4][i % 4] = next[i / 4][i % 4];
      if (kPrefetches && first + kAtOnce < kVectors) read(first + kAtOnce, next);
      split_x4(x, column.scale(), hi, lo);
      range.add(hi, lo);
      column.add_bits(x);
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) layout.write(smem, long_parts, first + i, hi[i], lo[i]);
    }
    if (!__any_sync(~0u, range.overflows())) break;
    uint32_t largest = 0;
    NO_UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      read(first, x);
      largest = max(largest, largest_magnitude(x));
    }
    const float by = column.lower(largest);
    if (__all_sync(~0u, by == 1)) break;
    factor = by;
    scaled = true;
    range = {};
  }
  if (column.add(range)) {
    NO_UNROLL
    for (int first = 0; first < kVectors; first += kAtOnce) {
      read(first, x);
      column.add(x);
    }
  }
  return scaled;
}

// At the end of a work tile, returns whether the scale of any column failed, so that the tile must
// be multiplied once more. All threads of the block call it: splitters and multipliers.
__device__ inline bool any_failed(bool failed) {
  return ptx::named_barrier_sync_or(1, Tile::kThreads, failed);
}

template <bool kKMajor, int kPanelRows>
__device__ void split_tiles(const OnTheFlyParams& params, const CUtensorMap& map,
                            Smem<kPanelRows>& smem) {
  using S = Smem<kPanelRows>;
  const bool loads_long = threadIdx.x == 0, loads_short = threadIdx.x == Tile::kWarpgroup;
  const SplitterLayout<kKMajor> layout;
  StageCounter<S::kLongStages> long_pipe;
  StageCounter<S::kStages> pipe;
  auto begin_long = [&](unsigned tile) {
    if (!loads_long) return;
    smem.long_loader.begin(params, tile);
    NO_UNROLL
    for (int i = 0; i < S::kLongStages - 1; ++i) load_long<kKMajor>(params, map, smem);
  };
  begin_long(BlockTiles(params).first);
  // Only the short operand depends on the previous kernel, which splits it.
  if (loads_short) ptx::pdl_wait();
  RunningScale<2> column;
  NO_UNROLL
  for (unsigned tile = BlockTiles(params).first; tile < smem.long_loader.end;) {
    if (loads_short) smem.short_loader.begin(params, tile);
    NO_UNROLL
    for (int left = count_stages(params, tile); left > 0; --left) {
      ptx::mbarrier_wait(&smem.empty[pipe.stage()], pipe.parity() ^ 1);
      if (loads_short) load_short(smem, pipe.stage());
      ptx::mbarrier_wait(&smem.long_full[long_pipe.stage()], long_pipe.parity());
      __syncwarp();
      const auto long_operand = static_cast<uint32_t>(
          offsetof(S, long_operand) + long_pipe.stage() * sizeof smem.long_operand[0]);
      const auto long_parts =
          static_cast<uint32_t>(offsetof(S, long_parts) + pipe.stage() * sizeof smem.long_parts[0]);
      const bool scaled = split_stage<Panel<kPanelRows>::kVectorsAtOnce>(
          reinterpret_cast<uint8_t*>(&smem), long_operand, long_parts, layout, column,
          smem.factor[pipe.stage()][layout.col()]);
      ptx::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        smem.scaled[pipe.stage()][threadIdx.x / 32] = scaled;
        ptx::mbarrier_arrive(&smem.full[pipe.stage()]);
        ptx::mbarrier_arrive(&smem.long_empty[long_pipe.stage()]);
      }
      if (loads_long) load_long<kKMajor>(params, map, smem);
      long_pipe.advance(), pipe.advance();
    }
    __syncwarp();
    smem.inverse_scale[tile % 2][layout.col()] = column.inverse_scale();
    if (any_failed(column.failed())) {
      column.restart();
      // The stages of the tiles that follow, which are already loaded, are dropped.
      int loaded = 0;
      for (unsigned next = tile + 1; next < smem.long_loader.end && loaded < S::kLongStages - 1;
           ++next) {
        loaded += count_stages(params, next);
      }
      for (int i = min(loaded, S::kLongStages - 1); i > 0; --i, long_pipe.advance()) {
        ptx::mbarrier_wait(&smem.long_full[long_pipe.stage()], long_pipe.parity());
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.long_empty[long_pipe.stage()]);
      }
      begin_long(tile);
    } else {
      column = {};
      ++tile;
    }
  }
}

// --- Multipliers ---------------------------------------------------------------------------------

namespace wgmma = ptx::wgmma;

// A thread's accumulators of a work tile: element i is in row i / 2 % 2 of the thread's two, and in
// column i / 4 * 8 + i % 2 from its first.
template <int kElements>
struct Accumulators {
  float total[kElements], low[kElements], part[kElements];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] = low[i] = part[i] = 0;
  }
  // Multiplies the sums so far by the columns' factors, if scales fell. `scaled` has a byte for
  // each splitter warp, which says whether it has such a column.
  __device__ void scale(const float* factor, const uint8_t* scaled) {
    constexpr int kWarps = kElements * 2 / Tile::kSplitterCols, kOfWarp = kElements / kWarps;
    using Flags = std::conditional_t<kWarps == 8, uint64_t, uint32_t>;
    static_assert(sizeof(Flags) == kWarps);
    const auto flags = *reinterpret_cast<const Flags*>(scaled);
    if (flags == 0) return;
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      if ((flags >> warp * 8 & 0xff) == 0) continue;
      UNROLL
      for (int i = warp * kOfWarp; i < (warp + 1) * kOfWarp; i += 4) {
        const float2 x2 = *reinterpret_cast<const float2*>(&factor[i * 2 + threadIdx.x % 4 * 2]);
        UNROLL
        for (int j = i; j < i + 4; ++j) {
          total[j] *= j % 2 == 0 ? x2.x : x2.y, low[j] *= j % 2 == 0 ? x2.x : x2.y;
        }
      }
    }
  }
  // Multiplies a step. Its operands are given as low words of descriptors. On return the small
  // products of this step are still running, and all products before them are finished.
  template <bool kLongIsA>
  __device__ void multiply(uint32_t short_hi, uint32_t short_lo, uint32_t long_hi,
                           uint32_t long_lo) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    constexpr int kNext = 2, kEnd = Presplit::kK / 16 * kNext;  // kNext: from 16 of K to the next
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      wgmma::mma(part, wgmma::descriptor(short_hi + k), wgmma::descriptor(long_hi + k), k > 0);
    }
    wgmma::commit_group();
    // The order has lo_a hi_b first, whichever operand A is.
    const uint32_t rows[] = {kLongIsA ? short_hi : short_lo, kLongIsA ? short_lo : short_hi};
    const uint32_t cols[] = {kLongIsA ? long_lo : long_hi, kLongIsA ? long_hi : long_lo};
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        wgmma::mma(low, wgmma::descriptor(rows[i] + k), wgmma::descriptor(cols[i] + k), true);
      }
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] += part[i];
  }
  __device__ void finish() {
    wgmma::wait_group<0>();
    wgmma::fence_operand(low);
  }
};

// Descales and stores the sums of a work tile.
template <int kPanelRows>
__device__ void store_sums(const OnTheFlyParams& params, unsigned tile,
                           const float* long_inverse_scale,
                           Accumulators<Panel<kPanelRows>::kElements>& acc) {
  using P = Panel<kPanelRows>;
  constexpr int kElements = P::kElements;
  const PanelChunk panel_chunk(params, tile / params.col_tiles);
  const int col = P::first_col() + threadIdx.x % 4 * 2;
  const int row = P::first_row() + threadIdx.x % Tile::kWarpgroup / 32 * 16 +
                  threadIdx.x % 32 / 4;  // and row + 8
  const int64_t matrix = params.first_matrix + panel_chunk.matrix;
  const Presplit& presplit = params.short_presplit;
  const float* short_inverse_scale =
      presplit.inverse_scales + panel_chunk.first_row +
      (matrix * params.chunks + panel_chunk.chunk) * presplit.padded_rows();
  float row_scales[2];
  UNROLL
  for (int i = 0; i < 2; ++i) {
    row_scales[i] = row + i * 8 < panel_chunk.rows ? short_inverse_scale[row + i * 8] : 1.0f;
  }
  float2 col_scales[kElements / 4];
  UNROLL
  for (int i = 0; i < kElements / 4; ++i) {
    col_scales[i] = *reinterpret_cast<const float2*>(&long_inverse_scale[col + i * 8]);
  }
  descale_chunk(acc.total, acc.low, row_scales, col_scales, fp16x3::promotion(kChunk));
  float* to = partial_sums(params, panel_chunk) + row * params.sums_pitch() +
              int64_t{tile % params.col_tiles} * Tile::kCols + col;
  UNROLL
  for (int down = 0; down < 2; ++down, to += 8 * params.sums_pitch()) {
    if (row + down * 8 >= panel_chunk.rows) break;
    UNROLL
    for (int i = down * 2; i < kElements; i += 4) {
      __stcg(reinterpret_cast<float2*>(to + i / 4 * 8), float2{acc.total[i], acc.total[i + 1]});
    }
  }
}

template <bool kLongIsA, int kPanelRows>
__device__ void multiply_tiles(const OnTheFlyParams& params, Smem<kPanelRows>& smem) {
  using P = Panel<kPanelRows>;
  const auto [first, end] = BlockTiles(params);
  const uint32_t first_long = wgmma::descriptor_low_word(smem.long_parts[0][0][0]) +
                              Presplit::plane_bytes(P::first_col()) / 16;
  const uint32_t first_short =
      wgmma::descriptor_low_word(smem.short_parts[0]) + Presplit::plane_bytes(P::first_row()) / 16;
  StageCounter<P::kStages> pipe;
  NO_UNROLL
  for (unsigned tile = first; tile < end;) {
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    const int panel = panel_chunk.first_row / Presplit::kRows;
    const uint32_t short_plane = Presplit::plane_bytes(params.short_presplit.tile_rows(panel)) / 16;
    Accumulators<P::kElements> acc;
    acc.clear();
    NO_UNROLL
    for (int left = panel_chunk.length; left > 0; left -= kStageK, pipe.advance()) {
      const int stage = pipe.stage();
      ptx::mbarrier_wait(&smem.full[stage], pipe.parity());
      acc.scale(smem.factor[stage] + P::first_col(),
                &smem.scaled[stage][P::first_col() / Tile::kSplitterCols]);
      uint32_t short_hi =
          first_short + stage * static_cast<uint32_t>(sizeof smem.short_parts[0] / 16);
      uint32_t long_hi = first_long + stage * static_cast<uint32_t>(sizeof smem.long_parts[0] / 16);
      constexpr uint32_t kLongPlane = Tile::kPlane / 16;
      NO_UNROLL
      for (int step = 0; step < Tile::kSteps;
           ++step, short_hi += 2 * short_plane, long_hi += 2 * kLongPlane) {
        acc.template multiply<kLongIsA>(short_hi, short_hi + short_plane, long_hi,
                                        long_hi + kLongPlane);
      }
      acc.finish();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
    }
    if (any_failed(false)) continue;
    store_sums<kPanelRows>(params, tile, smem.inverse_scale[tile % 2], acc);
    ++tile;
  }
}

// --- The kernel ----------------------------------------------------------------------------------

template <bool kKMajor, bool kLongIsA, int kPanelRows>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_fused_kernel(const __grid_constant__ OnTheFlyParams params,
                        const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kPanelRows>*>(smem_bytes);
  ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) smem.init(params);
  __syncthreads();
  if (threadIdx.x < Tile::kSplitters) {
    ptx::setmaxnreg_dec<Panel<kPanelRows>::kSplitterRegisters>();
    split_tiles<kKMajor>(params, map, smem);
  } else {
    ptx::setmaxnreg_inc<Panel<kPanelRows>::kMultiplierRegisters>();
    ptx::pdl_wait();
    multiply_tiles<kLongIsA>(params, smem);
  }
}

namespace {

template <bool kKMajor>
CUtensorMap long_map(const OnTheFlyParams& params) {
  using Box = LongBox<kKMajor>;
  return tensor_map(params.p.batch, params.long_operand, params.long_count, params.p.k, Box::kCols,
                    Box::kK, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int kPanelRows>
void run(OnTheFlyParams& params, const Context& context) {
  const bool long_is_a = params.long_is_a;
  const auto kernel = params.long_k_major
                          ? (long_is_a ? fp16x3_fused_kernel<true, true, kPanelRows>
                                       : fp16x3_fused_kernel<true, false, kPanelRows>)
                          : (long_is_a ? fp16x3_fused_kernel<false, true, kPanelRows>
                                       : fp16x3_fused_kernel<false, false, kPanelRows>);
  constexpr int kSmemBytes = sizeof(Smem<kPanelRows>);
  allow_shared_memory(kernel, kSmemBytes);
  const CUtensorMap map = params.long_k_major ? long_map<true>(params) : long_map<false>(params);
  run_on_the_fly(params, 1, context, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kSmemBytes, context, params, map);
  });
}

// The buffers of a product with a 16-bit short operand. float32: the operand, for flagged elements
// that are listed.
struct Buffers : Fp16x3FusedBuffers {
  float* float32 = nullptr;

  Buffers(const Problem& p, const Plan& plan, const Narrow* narrow, Workspace& workspace)
      : Fp16x3FusedBuffers(p, plan.n, workspace) {
    if (narrow == nullptr || !fp16x3_fused_lists_flagged(p)) return;
    float32 = workspace.take<float>(p.batch.count * std::min(p.m, p.n) * p.k).data();
  }
};

// Returns the problem with such a copy of its short operand.
Problem with_float32(Problem p, const float* copy) {
  Matrix rows{.data = copy, .row_stride = p.k, .col_stride = 1};
  int64_t stride = std::min(p.m, p.n) * p.k;
  for (int d = p.batch.rank - 1; d >= 0; --d)
    rows.batch_stride[d] = stride, stride *= p.batch.size[d];
  const bool short_is_a = p.m <= p.n;
  (short_is_a ? p.a : p.b) = short_is_a ? rows : transposed(rows);
  return p;
}

// `narrow` is null if no operand is a 16-bit one; otherwise that is the short one.
bool launch(const Problem& p, const Plan& plan, const Narrow* narrow, const Context& context) {
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    void* memory = context.allocate(
        workspace_bytes([&](Workspace& workspace) { Buffers(p, plan, narrow, workspace); }));
    if (memory == nullptr) return false;
    Workspace workspace(memory);
    const Buffers buffers(p, plan, narrow, workspace);
    const bool few_rows = std::min(p.m, p.n) <= 64, lists = fp16x3_fused_lists_flagged(p);
    OnTheFlyParams params =
        on_the_fly_params(p, long_and_short(p), Tile::kCols, few_rows ? 64 : 128, narrow);
    params.recomputed = recomputed;
    params.partial_sums = buffers.partial_sums;
    params.recompute = buffers.recompute;
    params.short_presplit = buffers.short_operand;
    OperandToSplit short_operand{params.short_operand, p.batch, buffers.short_operand};
    if (narrow != nullptr) short_operand.dtype = narrow->dtype;
    const auto zeroed = lists ? params.recompute.zeroed_with_flags(p) : std::span<int>{};
    launch_split({&short_operand, 1}, zeroed, context);
    few_rows ? run<64>(params, context) : run<128>(params, context);
    if (!lists) return true;
    if (narrow != nullptr) {
      launch_upcast(short_operand, buffers.float32, params.recompute.count, context);
    }
    launch_recompute(narrow == nullptr ? p : with_float32(p, buffers.float32), params.recompute,
                     context);
    return true;
  });
}

}  // namespace
}  // namespace fp16x3_fused

bool launch_fp16x3_fused(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_fused::launch(p, plan, nullptr, context);
}

bool launch_fp16x3_fused_mixed(const Problem& p, const Plan& plan, const Narrow& narrow,
                               const Context& context) {
  return fp16x3_fused::launch(p, plan, &narrow, context);
}

}  // namespace tiled::cuda
