// fp16x3_wgmma: both operands are split beforehand, and tensor cores multiply the fp16 parts.
//
// Idea: two fp16 parts hold a float32 (core/order_fp16x3.h), so three fp16 products make one
// float32 product, and tensor cores have many times the throughput of the float32 units. A first
// kernel splits both operands and writes them in the order in which wgmma reads shared memory
// (split_sm90.cu). This kernel is persistent and warp-specialized: one producer thread loads steps
// of K by bulk copies, and two consumer warpgroups multiply them by wgmma. Tensor cores truncate,
// so the main product is taken out of them every kPromote of K and added to the total by rounded
// additions, while they compute the two small products. If there are too few tiles for all SMs,
// blocks share the chunks of K (split-K), and a third kernel adds the chunk sums in order.
//
// Limit: the power that the GPU may draw; for small problems wave quantization and three launches.
//
// Next: the split of an operand fused into the kernel that multiplies it (fused_sm90.cu); clusters
// that share tiles by multicast.
//
//   producer    wait empty[s]       load A and B of a step into stage s      -> full[s]
//   consumers   wait full[s]        part = hi hi;  low += lo hi + hi lo
//               part is finished    so is the step before                    -> empty[s - 1]
//               total += part       while the tensor cores compute low
//   end of a chunk                  the total is descaled and added to that of the chunks before,
//                                   which waits in shared memory, or is stored for the reduction

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/stored_batch.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/sub_problems.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/common/workspace.h"
#include "kernels/complex/passes.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace fp16x3_wgmma {

namespace wgmma = ptx::wgmma;

// --- The tile of a block, its shared memory, and the kernel's parameters -------------------------

struct Tile {
  static constexpr int kM = 128, kN = 128, kK = Presplit::kK;
  static constexpr int kStages = 5;
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = 2;  // warpgroups, each of 64 rows of the tile
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kElements = 64;   // accumulators a thread
  static constexpr int kRasterRows = 8;  // rows of tiles that are rasterized together

  static_assert(kM == Presplit::kRows && kN == Presplit::kRows, "a step of a tile is one copy");
  static_assert(kM == h200::Fp16x3::kWgmmaTile && kN == h200::Fp16x3::kWgmmaTile);
};

// The accumulators of a consumer warpgroup: elements 4i .. 4i + 3 of a thread are at [i][thread].
using Accumulators = float4[Tile::kElements / 4][Tile::kWarpgroup];

struct Smem {
  struct Stage {
    uint8_t a[2 * Presplit::plane_bytes(Tile::kM)];  // the hi plane, then the lo plane
    uint8_t b[2 * Presplit::plane_bytes(Tile::kN)];
  };
  alignas(1024) Stage stage[Tile::kStages];
  Accumulators totals[Tile::kConsumers];  // of the chunks before
  float bias[Tile::kConsumers][Tile::kN];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct SplitOperand {
  Presplit presplit;
  Matrix matrix;  // batch_stride counts stored matrices
};

struct Params {
  TileScheduler scheduler;
  int64_t tiles;
  Problem p;
  SplitOperand a, b;
  RecomputeList recompute;
  bool bias_relu_at_most;  // is all that the epilogue has
  bool allows_x2_store;    // C takes pairs of a row at once
  // With split-K, the sums of chunks: (tiles, chunks, consumers).
  Accumulators* partial_sums;
};

// The chunks that a block accumulates: all of them, or those of its K split, the grid's y.
struct KSplit {
  int first, end;
  __device__ explicit KSplit(const Problem& p) {
    const auto all = static_cast<unsigned>(ceil_div(p.k, kChunk));
    first = static_cast<int>(blockIdx.y * all / gridDim.y);
    end = static_cast<int>((blockIdx.y + 1) * all / gridDim.y);
  }
};

// The position of a thread's elements in C: element i is in row `row + i / 2 % 2 * 8` and column
// `col + i / 4 * 8 + i % 2`.
struct ThreadCoord {
  int64_t batch, row, col;
  int64_t tile_col;  // the first column of the tile
  __device__ ThreadCoord(const TileCoord& tile, int warpgroup, int thread)
      : batch(tile.batch),
        row(tile.row + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4),
        col(tile.col + thread % 4 * 2),
        tile_col(tile.col) {}
};

// --- Epilogues of a chunk and of a tile ----------------------------------------------------------

// The sums of a chunk are descaled and added to those of the chunks before, or stored for the
// split-K reduction. The totals are stored to C, and flagged if they are NaN. The split-K reduction
// ends in the same stores.

// The inverse scales of a chunk, for a thread's rows and columns.
struct InverseScales {
  float row[2];
  float2 col[Tile::kElements / 4];

  __device__ InverseScales(const Presplit& a, int64_t a_matrix, const Presplit& b, int64_t b_matrix,
                           int chunk, const ThreadCoord& coord) {
    const float* of_a = a.inverse_scales + a_matrix * a.matrix_groups() + chunk * a.padded_rows();
    const float* of_b = b.inverse_scales + b_matrix * b.matrix_groups() + chunk * b.padded_rows();
    UNROLL
    for (int i = 0; i < 2; ++i) {
      row[i] = coord.row + i * 8 < a.padded_rows() ? of_a[coord.row + i * 8] : 1.0f;
    }
    UNROLL
    for (int j = 0; j < Tile::kElements / 4; ++j) {
      const int64_t first = coord.col + j * 8;
      col[j] =
          first < b.padded_rows() ? *reinterpret_cast<const float2*>(of_b + first) : float2{1, 1};
    }
  }
};

// Adds the totals of the chunks before, if there are any, and keeps the new totals for the chunks
// that follow, if there are any.
__device__ inline void add_to_totals(Accumulators& totals, int thread, bool has_previous,
                                     bool has_next, float (&sum)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    float4& total = totals[i / 4][thread];
    if (has_previous) {
      sum[i] += total.x, sum[i + 1] += total.y;
      sum[i + 2] += total.z, sum[i + 3] += total.w;
    }
    if (has_next) total = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
}

// The sums of a chunk in the workspace of the split-K reduction.
__device__ inline Accumulators& partial_sums(const Params& params, int64_t tile, int chunk,
                                             int warpgroup) {
  const int64_t index = tile * ceil_div(params.p.k, kChunk) + chunk;
  return params.partial_sums[index * Tile::kConsumers + warpgroup];
}

// Stores a chunk's sums for the split-K reduction.
__device__ inline void store_chunk(Accumulators& sums, int thread,
                                   const float (&sum)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    __stcg(&sums[i / 4][thread], float4{sum[i], sum[i + 1], sum[i + 2], sum[i + 3]});
  }
}

// Stores the totals from registers, after a bias and ReLU at most: in pairs if C allows it and
// all elements of the warp are inside. Returns false, with nothing done, if the epilogue is
// another, or an element is flagged.
__device__ inline bool try_store(const Params& params, const ThreadCoord& coord,
                                 float (&sum)[Tile::kElements], const float (&bias)[Tile::kN]) {
  const Problem& p = params.p;
  bool possible = params.bias_relu_at_most;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) possible &= !isnan(sum[i]);
  if (!__all_sync(~0u, possible)) return false;
  if (p.epilogue.bias != nullptr) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 4) {
      const float2 x2 = *reinterpret_cast<const float2*>(&bias[threadIdx.x % 4 * 2 + i * 2]);
      sum[i] += x2.x, sum[i + 1] += x2.y, sum[i + 2] += x2.x, sum[i + 3] += x2.y;
    }
  }
  if (p.epilogue.activation == Activation::kRelu) {
    UNROLL
    for (float& each : sum) each = activate(Activation::kRelu, each);
  }
  const OutMatrix& c = p.c;
  float* data = static_cast<float*>(c.data) + batch_offset(p.batch, c, coord.batch) +
                coord.row * c.row_stride + coord.col * c.col_stride;
  const int64_t down = 8 * c.row_stride;
  const bool inside = coord.row + 8 < p.m && coord.col + Tile::kN - 8 + 1 < p.n;
  if (__all_sync(~0u, inside) && params.allows_x2_store) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 2) {
      *reinterpret_cast<float2*>(data + i / 2 % 2 * down + i / 4 * 8) = {sum[i], sum[i + 1]};
    }
    return true;
  }
  const bool has_row[2] = {coord.row < p.m, coord.row + 8 < p.m};
  const int cols_left = static_cast<int>(min(p.n - coord.col, int64_t{Tile::kN}));
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, data += 8 * c.col_stride) {
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (has_row[j / 2] && i * 2 + j % 2 < cols_left) {
        data[j / 2 * down + j % 2 * c.col_stride] = sum[i + j];
      }
    }
  }
  return true;
}

// Stores the totals one by one, after any epilogue, except flagged ones, which are listed. Totals
// go through shared memory so that the loop need not be unrolled: it would hold the code of every
// activation 64 times.
__device__ inline void store_each(const Params& params, const ThreadCoord& coord,
                                  const float (&sum)[Tile::kElements],
                                  const float (&bias)[Tile::kN], Accumulators& staging) {
  const Problem& p = params.p;
  const Epilogue& epilogue = p.epilogue;
  const int thread = threadIdx.x % Tile::kWarpgroup;
  const int64_t down = 8 * p.c.row_stride, right = p.c.col_stride;
  const bool inside[2] = {coord.row < p.m, coord.row + 8 < p.m};
  const int cols_left = static_cast<int>(min(p.n - coord.col, int64_t{Tile::kN}));
  uint64_t flags = 0;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const bool exists = inside[i / 2 % 2] && i / 4 * 8 + i % 2 < cols_left;
    if (exists && isnan(sum[i])) flags |= uint64_t{1} << i;
  }
  append_flagged(params.recompute, coord.batch, coord.row, coord.col, flags);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    staging[i / 4][thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
  float* c = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, coord.batch) +
             coord.row * p.c.row_stride + coord.col * p.c.col_stride;
  NO_UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, c += 8 * right) {
    const float4 x4 = staging[i / 4][thread];
    const float each[] = {x4.x, x4.y, x4.z, x4.w};
    const float2 bias_x2 = *reinterpret_cast<const float2*>(&bias[thread % 4 * 2 + i * 2]);
    bool stored[4];
    float old[4] = {};
    UNROLL
    for (int j = 0; j < 4; ++j) {
      stored[j] = inside[j / 2] && i * 2 + j % 2 < cols_left && !isnan(each[j]);
      if (epilogue.beta != 0 && stored[j]) old[j] = c[j / 2 * down + j % 2 * right];
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float value = combine(epilogue, each[j], j % 2 == 0 ? bias_x2.x : bias_x2.y, old[j]);
      if (stored[j]) c[j / 2 * down + j % 2 * right] = activate(epilogue.activation, value);
    }
  }
}

// Stores a warpgroup's totals. `barrier` is the warpgroup's own; `staging` is shared memory that
// the totals may overwrite.
__device__ inline void store_tile(const Params& params, const ThreadCoord& coord, int barrier,
                                  float (&sum)[Tile::kElements], float (&bias)[Tile::kN],
                                  Accumulators& staging) {
  if (params.p.epilogue.bias != nullptr) {
    load_bias<float>(params.p, coord.tile_col, barrier, bias);
  }
  if (!try_store(params, coord, sum, bias)) store_each(params, coord, sum, bias, staging);
}

// The split-K reduction adds the sums of chunks in order and stores the totals. A block reduces the
// part of a tile that one consumer warpgroup accumulated. Each of its warpgroups adds some elements
// of each thread, and the first one stores them all.
inline constexpr int kReduceWarpgroups = 4, kReduceThreads = kReduceWarpgroups * Tile::kWarpgroup;

__global__ void __launch_bounds__(kReduceThreads)
    fp16x3_split_k_reduce_kernel(const __grid_constant__ Params params) {
  constexpr int kVectors = Tile::kElements / 4 / kReduceWarpgroups;
  __shared__ Accumulators sums;
  __shared__ float bias[Tile::kN];
  ptx::pdl_launch_dependents();
  const int64_t tile = blockIdx.x / Tile::kConsumers;
  const int consumer = blockIdx.x % Tile::kConsumers;
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, thread = threadIdx.x % Tile::kWarpgroup;
  const int chunks = static_cast<int>(ceil_div(params.p.k, kChunk));
  ptx::pdl_wait();
  constexpr float kEmpty = kAddIdentity<float>;
  float4 sum[kVectors];
  UNROLL
  for (float4& each : sum) each = {kEmpty, kEmpty, kEmpty, kEmpty};
  _Pragma("unroll 4") for (int chunk = 0; chunk < chunks; ++chunk) {
    const Accumulators& from = partial_sums(params, tile, chunk, consumer);
    UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const float4 x4 = __ldcg(&from[warpgroup * kVectors + i][thread]);
      sum[i].x += x4.x, sum[i].y += x4.y, sum[i].z += x4.z, sum[i].w += x4.w;
    }
  }
  UNROLL
  for (int i = 0; i < kVectors; ++i) sums[warpgroup * kVectors + i][thread] = sum[i];
  __syncthreads();
  if (warpgroup > 0) return;

  float total[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    const auto [x, y, z, w] = sums[i / 4][thread];
    total[i] = x, total[i + 1] = y, total[i + 2] = z, total[i + 3] = w;
  }
  const ThreadCoord coord(locate<Tile>(params.scheduler, tile), consumer, thread);
  store_tile(params, coord, 1, total, bias, sums);
}

// --- The main loop -------------------------------------------------------------------------------

// Loads the steps of all of the block's tiles; one thread. A step of an operand is contiguous.
__device__ inline void produce(const Params& params, Smem& smem) {
  constexpr int64_t kStepsPerChunk = kChunk / Tile::kK;
  const KSplit split(params.p);
  const int64_t first = split.first * kStepsPerChunk;
  const int64_t end = min(split.end * kStepsPerChunk, ceil_div(params.p.k, Tile::kK));
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const TileCoord tile = locate<Tile>(params.scheduler, index);
    const int64_t a_tile = tile.row / Tile::kM, b_tile = tile.col / Tile::kN;
    const int64_t a_matrix = batch_offset(params.p.batch, params.a.matrix, tile.batch);
    const int64_t b_matrix = batch_offset(params.p.batch, params.b.matrix, tile.batch);
    const Presplit &a_presplit = params.a.presplit, &b_presplit = params.b.presplit;
    const uint8_t* a = a_presplit.hi_lo + a_presplit.step_offset(a_matrix, a_tile, first);
    const uint8_t* b = b_presplit.hi_lo + b_presplit.step_offset(b_matrix, b_tile, first);
    const int a_bytes = 2 * Presplit::plane_bytes(a_presplit.tile_rows(a_tile));
    const int b_bytes = 2 * Presplit::plane_bytes(b_presplit.tile_rows(b_tile));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int64_t step = first; step < end; ++step, pipe.advance()) {
      Smem::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, a_bytes + b_bytes);
      ptx::bulk_load(stage.a, a, a_bytes, full);
      ptx::bulk_load(stage.b, b, b_bytes, full);
      a += a_bytes, b += b_bytes;
    }
  }
}

// A thread of a consumer warpgroup.
struct Consumer {
  int warpgroup, thread;  // which consumer, and the thread in it
  __device__ Consumer()
      : warpgroup(threadIdx.x / Tile::kWarpgroup - 1), thread(threadIdx.x % Tile::kWarpgroup) {}
  // Tells the producer that this warp has read a stage.
  __device__ void release(Smem& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

// The offsets of the lo planes in Stage::a and Stage::b. They depend on the tile, since the last
// tile of an operand may have fewer rows.
struct LoPlanes {
  int a, b;
};

inline constexpr int kNoStage = -1;

// Multiplies a step of K. `part` accumulates hi_a hi_b over kPromote of K and is then added to
// `total`; `low` accumulates the two small products, and the last ones are still running on return.
// The stage of the step before, `to_release`, is released as soon as its products are finished.
template <int kPromote>
__device__ void multiply_step(Smem& smem, int stage_index, int to_release, LoPlanes lo_planes,
                              const Consumer& me, float (&part)[Tile::kElements],
                              float (&low)[Tile::kElements], float (&total)[Tile::kElements]) {
  const Smem::Stage& stage = smem.stage[stage_index];
  const int first_row = me.warpgroup * Presplit::plane_bytes(64);
  const uint64_t a_hi_smem = wgmma::descriptor(stage.a + first_row);
  const uint64_t a_lo_smem = wgmma::descriptor(stage.a + lo_planes.a + first_row);
  const uint64_t b_hi_smem = wgmma::descriptor(stage.b);
  const uint64_t b_lo_smem = wgmma::descriptor(stage.b + lo_planes.b);
  // When this loop is unrolled, ptxas gives each part registers of its own, runs out of them, and
  // lets no two products overlap.
  _Pragma("unroll 1") for (int k = 0; k < Tile::kK; k += kPromote) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int k_offset = (k / 16 + k16) * 2;
      wgmma::mma(part, a_hi_smem + k_offset, b_hi_smem + k_offset, k16 > 0);
    }
    wgmma::commit_group();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int k_offset = (k / 16 + k16) * 2;
      wgmma::mma(low, a_lo_smem + k_offset, b_hi_smem + k_offset, true);
      wgmma::mma(low, a_hi_smem + k_offset, b_lo_smem + k_offset, true);
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    if (k == 0 && to_release != kNoStage) me.release(smem, to_release);
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] += part[i];
  }
}

// Multiplies the steps of a chunk, from zero. Returns the stage of the last step, which is not yet
// released: its small products, which `low` accumulates, are still running.
template <int kPromote>
__device__ int multiply_chunk(Smem& smem, ptx::PipelineState& pipe, int steps, LoPlanes lo_planes,
                              const Consumer& me, float (&low)[Tile::kElements],
                              float (&total)[Tile::kElements]) {
  float part[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    multiply_step<kPromote>(smem, pipe.stage, to_release, lo_planes, me, part, low, total);
    to_release = pipe.stage;
  }
  return to_release;
}

// --- The kernel ----------------------------------------------------------------------------------

template <int kPromote>
__device__ void consume(const Params& params, Smem& smem) {
  const Consumer me;
  ptx::PipelineState pipe{.stages = Tile::kStages};
  const KSplit split(params.p);
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const TileCoord tile = locate<Tile>(params.scheduler, index);
    const Presplit &a = params.a.presplit, &b = params.b.presplit;
    const int64_t a_matrix = batch_offset(params.p.batch, params.a.matrix, tile.batch);
    const int64_t b_matrix = batch_offset(params.p.batch, params.b.matrix, tile.batch);
    const LoPlanes lo_planes{Presplit::plane_bytes(a.tile_rows(tile.row / Tile::kM)),
                             Presplit::plane_bytes(b.tile_rows(tile.col / Tile::kN))};
    const ThreadCoord coord(tile, me.warpgroup, me.thread);

    float low[Tile::kElements], total[Tile::kElements];
    for (int chunk = split.first; chunk < split.end; ++chunk) {
      const int steps = static_cast<int>(
          ceil_div(min(params.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}), Tile::kK));
      const int last = multiply_chunk<kPromote>(smem, pipe, steps, lo_planes, me, low, total);
      const InverseScales inverse_scales(a, a_matrix, b, b_matrix, chunk, coord);
      wgmma::wait_group<0>();
      wgmma::fence_operand(low);
      me.release(smem, last);
      descale_chunk(total, low, inverse_scales.row, inverse_scales.col, kPromote);
      if (gridDim.y > 1) {
        store_chunk(partial_sums(params, index, chunk, me.warpgroup), me.thread, total);
      } else {
        add_to_totals(smem.totals[me.warpgroup], me.thread, chunk > 0, chunk < split.end - 1,
                      total);
      }
    }
    if (gridDim.y > 1) continue;
    store_tile(params, coord, 1 + me.warpgroup, total, smem.bias[me.warpgroup],
               smem.totals[me.warpgroup]);
  }
}

template <int kPromote>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_wgmma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty,
                              Tile::kConsumers * Tile::kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  // nvcc lays out the else branch first, so the producer, which must not be late, is the else.
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<240>();
    consume<kPromote>(params, smem);
  } else {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce(params, smem);
  }
}

namespace {

// The operand with the place of its split. Also gives its `index`: which of its stored matrices
// each one of the batch is, by strides that count stored matrices.
OperandToSplit operand(const Problem& p, const Matrix& matrix, const Presplit& presplit,
                       Matrix& index) {
  const StoredBatch stored = stored_batch(p.batch, matrix, 1, index);
  return {.matrix = stored.from, .batch = stored.batch, .presplit = presplit};
}

// `complex` is null for a real product.
void run(const Problem& p, const ComplexB* complex, int64_t k_splits, void* memory,
         const Context& context) {
  Workspace workspace(memory);
  const Fp16x3WgmmaBuffers buffers(p, k_splits, workspace);
  const Matrix b = transposed(complex != nullptr ? complex->in_place : p.b);
  Matrix a_index, b_index;
  OperandToSplit operands[] = {operand(p, p.a, buffers.a, a_index),
                               operand(p, b, buffers.b, b_index)};
  if (complex != nullptr) operands[1].is_complex = true, operands[1].signs_of_b = complex->signs;
  const bool splits_b = p.b_presplit.hi_lo == nullptr;
  launch_split({operands, splits_b ? 2u : 1u}, buffers.recompute.zeroed(p), context);

  const Params params{
      .scheduler = TileScheduler::of<Tile>(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .p = p,
      .a = {buffers.a, a_index},
      .b = {splits_b ? buffers.b : p.b_presplit, b_index},
      .recompute = buffers.recompute,
      .bias_relu_at_most = p.epilogue.is_bias_relu_at_most(),
      .allows_x2_store = is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride),
      .partial_sums = reinterpret_cast<Accumulators*>(buffers.partial_sums),
  };
  const auto kernel =
      fp16x3::promotion(p.k) == 16 ? fp16x3_wgmma_kernel<16> : fp16x3_wgmma_kernel<32>;
  allow_shared_memory(kernel, sizeof(Smem));
  // A block on each SM goes from tile to tile; with split-K each block has one tile.
  const int64_t blocks = k_splits > 1 ? params.tiles : std::min<int64_t>(params.tiles, context.sms);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(k_splits));
  launch_pdl(kernel, grid, Tile::kThreads, sizeof(Smem), context, params);
  if (k_splits > 1) {
    const auto reduce_blocks = static_cast<unsigned>(params.tiles * Tile::kConsumers);
    launch_pdl(fp16x3_split_k_reduce_kernel, reduce_blocks, kReduceThreads, 0, context, params);
  }
  // Elements are recomputed by B', which is written only then.
  if (complex != nullptr) launch_pack(complex->pack, context, buffers.recompute.count);
  launch_recompute(p, buffers.recompute, context);
}

}  // namespace
}  // namespace fp16x3_wgmma

// If memory is short, K is not split. If that does not suffice, sub-problems share a smaller
// workspace.
bool launch_fp16x3_wgmma(const Problem& p, const Plan& plan, const Context& context) {
  using namespace fp16x3_wgmma;
  if (plan.k_splits > 1) {
    const int64_t bytes = fp16x3_wgmma_bytes(p, plan.k_splits);
    void* memory = fits_in_free_memory(bytes) ? context.allocate(bytes) : nullptr;
    if (memory != nullptr) {
      run(p, nullptr, plan.k_splits, memory, context);
      return true;
    }
  }
  return run_sub_problems(
      p, context, kSmallWorkspace, [](const Problem& part) { return fp16x3_wgmma_bytes(part, 1); },
      [&](const Problem& part, void* memory) { run(part, nullptr, 1, memory, context); });
}

bool launch_fp16x3_wgmma_complex(const Problem& in_place, const Plan& plan, const ComplexB& b,
                                 const Context& context) {
  using namespace fp16x3_wgmma;
  Problem p = in_place;
  p.b = b.packed;  // by which flagged elements are recomputed
  for (const int64_t k_splits : {plan.k_splits, int64_t{1}}) {
    void* memory = context.allocate(fp16x3_wgmma_bytes(p, k_splits));
    if (memory == nullptr) continue;
    run(p, &b, k_splits, memory, context);
    return true;
  }
  return false;
}

}  // namespace tiled::cuda
