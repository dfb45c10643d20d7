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
// A 16-bit operand beside a float32 one has no lo parts, except in wide groups, which are rare. So
// a chunk of a tile that has none is multiplied without the lo plane of this operand: two products.
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

#include "core/mixed.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/stored_batch.h"
#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/common/workspace.h"
#include "kernels/complex/passes.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/fp16x3/split.h"
#include "kernels/fp16x3/wgmma_mainloop.cuh"
#include "kernels/fp16x3/wgmma_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace fp16x3_wgmma {

// --- The main loop -------------------------------------------------------------------------------

// Returns whether a chunk of a tile of a 16-bit operand may have lo parts that are not 0.
__device__ inline bool has_lo(const uint8_t* flags) {
  static_assert(LoFlags::kOfTile == sizeof(uint4));
  const uint4 bytes = __ldcg(reinterpret_cast<const uint4*>(flags));
  return (bytes.x | bytes.y | bytes.z | bytes.w) != 0;
}

// The steps of a chunk.
__device__ inline int steps_of(const Problem& p, int chunk) {
  return static_cast<int>(ceil_div(min(p.k - int64_t{chunk} * kChunk, int64_t{kChunk}), Tile::kK));
}

// Loads the steps of all of the block's tiles; one thread. A step of an operand is contiguous.
template <NarrowSide kNarrow>
__device__ inline void produce(const Params& params, Smem& smem) {
  constexpr int64_t kStepsPerChunk = kChunk / Tile::kK;
  const KSplit split(params.p);
  const int64_t first = split.first * kStepsPerChunk;
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
    const uint8_t* flags = kNarrow == NarrowSide::kNone ? nullptr
                           : kNarrow == NarrowSide::kA
                               ? params.a.flags.of(a_presplit, a_matrix, split.first, a_tile)
                               : params.b.flags.of(b_presplit, b_matrix, split.first, b_tile);
    if (index == blockIdx.x) ptx::pdl_wait();
    const int flags_pitch = static_cast<int>(
        LoFlags::bytes_of_chunk(kNarrow == NarrowSide::kA ? a_presplit : b_presplit));
    for (int chunk = split.first; chunk < split.end; ++chunk) {
      const bool lo = kNarrow == NarrowSide::kNone || has_lo(flags);
      flags += flags_pitch;
      const int a_loaded = kNarrow == NarrowSide::kA && !lo ? a_bytes / 2 : a_bytes;
      const int b_loaded = kNarrow == NarrowSide::kB && !lo ? b_bytes / 2 : b_bytes;
      const int steps = steps_of(params.p, chunk);
      for (int step = 0; step < steps; ++step, pipe.advance()) {
        Smem::Stage& stage = smem.stage[pipe.stage];
        uint64_t* full = &smem.full[pipe.stage];
        ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
        if (kNarrow != NarrowSide::kNone) smem.has_lo[pipe.stage] = lo;
        ptx::arrive_expect_tx(full, a_loaded + b_loaded);
        ptx::bulk_load(stage.a, a, a_loaded, full);
        ptx::bulk_load(stage.b, b, b_loaded, full);
        a += a_bytes, b += b_bytes;
      }
    }
  }
}

// Returns whether the chunk that begins with the next stage has the lo plane of a 16-bit operand.
// Of a warp only the lane that releases the stage reads what the stage says.
__device__ inline bool chunk_has_lo(const Smem& smem, const ptx::PipelineState& pipe) {
  ptx::mbarrier_wait(const_cast<uint64_t*>(&smem.full[pipe.stage]), pipe.parity);
  return __any_sync(~0u, threadIdx.x % 32 == 0 && smem.has_lo[pipe.stage]);
}

// --- The kernel ----------------------------------------------------------------------------------

template <int kPromote, NarrowSide kNarrow>
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
      const int steps = steps_of(params.p, chunk);
      int last;
      if (kNarrow == NarrowSide::kNone || chunk_has_lo(smem, pipe)) {
        last = multiply_chunk<kPromote, true, true>(smem, pipe, steps, lo_planes, me, low, total);
      } else {
        constexpr bool kALo = kNarrow != NarrowSide::kA, kBLo = kNarrow != NarrowSide::kB;
        last = multiply_chunk<kPromote, kALo, kBLo>(smem, pipe, steps, lo_planes, me, low, total);
      }
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

template <int kPromote, NarrowSide kNarrow>
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
    consume<kPromote, kNarrow>(params, smem);
  } else {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce<kNarrow>(params, smem);
  }
}

// --- Split-K
// ----------------------------------------------------------------------------------------

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

namespace {

// The operand with the place of its split. Also gives its `index`: which of its stored matrices
// each one of the batch is, by strides that count stored matrices.
OperandToSplit operand(const Problem& p, const Matrix& matrix, const Presplit& presplit,
                       Matrix& index) {
  const StoredBatch stored = stored_batch(p.batch, matrix, 1, index);
  return {.matrix = stored.from, .batch = stored.batch, .presplit = presplit};
}

// The buffers of a product with a 16-bit operand. float32: the operand, for flagged elements.
struct Buffers : Fp16x3WgmmaBuffers {
  LoFlags flags;
  float* float32;

  Buffers(const Problem& p, const Narrow* narrow, int64_t k_splits, Workspace& workspace)
      : Fp16x3WgmmaBuffers(p, k_splits, workspace) {
    if (narrow == nullptr) return;
    const Presplit& presplit = narrow->is_a ? a : b;
    const int64_t matrices = stored_matrices(p.batch, narrow->is_a ? p.a : p.b);
    flags.bytes = workspace.take<uint8_t>(LoFlags::bytes_of_matrix(presplit) * matrices).data();
    float32 = workspace.take<float>(matrices * presplit.rows * presplit.k).data();
  }
};

using KernelPointer = void (*)(Params);

template <NarrowSide kNarrow>
KernelPointer kernel_for(int promotion) {
  return promotion == 16 ? fp16x3_wgmma_kernel<16, kNarrow> : fp16x3_wgmma_kernel<32, kNarrow>;
}

// `complex` is null for a real product, and `narrow` if both operands are float32.
void run(const Problem& p, const ComplexB* complex, const Narrow* narrow, int64_t k_splits,
         void* memory, const Context& context) {
  Workspace workspace(memory);
  const Buffers buffers(p, narrow, k_splits, workspace);
  const Matrix b = transposed(complex != nullptr ? complex->in_place : p.b);
  Matrix a_index, b_index;
  OperandToSplit operands[] = {operand(p, p.a, buffers.a, a_index),
                               operand(p, b, buffers.b, b_index)};
  if (complex != nullptr) operands[1].is_complex = true, operands[1].signs_of_b = complex->signs;
  const bool narrow_a = narrow != nullptr && narrow->is_a;
  OperandToSplit& of_narrow = operands[narrow_a ? 0 : 1];
  if (narrow != nullptr) of_narrow.dtype = narrow->dtype, of_narrow.has_lo = buffers.flags;
  const bool splits_b = p.b_presplit.hi_lo == nullptr;
  launch_split({operands, splits_b ? 2u : 1u}, buffers.recompute.zeroed(p), context);

  const Params params{
      .scheduler = TileScheduler::of<Tile>(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .p = p,
      .a = {buffers.a, a_index, buffers.flags},
      .b = {splits_b ? buffers.b : p.b_presplit, b_index, buffers.flags},
      .recompute = buffers.recompute,
      .bias_relu_at_most = p.epilogue.is_bias_relu_at_most(),
      .allows_x2_store = is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride),
      .partial_sums = reinterpret_cast<Accumulators*>(buffers.partial_sums),
  };
  const int promotion = fp16x3::promotion(p.k);
  const auto kernel = narrow == nullptr ? kernel_for<NarrowSide::kNone>(promotion)
                      : narrow_a        ? kernel_for<NarrowSide::kA>(promotion)
                                        : kernel_for<NarrowSide::kB>(promotion);
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
  Problem recomputed = p;
  if (narrow != nullptr) {
    launch_upcast(of_narrow, buffers.float32, buffers.recompute.count, context);
    Matrix& rows = narrow_a ? a_index : b_index;  // by strides that count matrices
    for (int64_t& stride : rows.batch_stride) stride *= of_narrow.presplit.rows * p.k;
    rows.data = buffers.float32, rows.row_stride = p.k, rows.col_stride = 1;
    (narrow_a ? recomputed.a : recomputed.b) = narrow_a ? rows : transposed(rows);
  }
  launch_recompute(recomputed, buffers.recompute, context);
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
      run(p, nullptr, nullptr, plan.k_splits, memory, context);
      return true;
    }
  }
  return run_sub_problems(
      p, context, kSmallWorkspace, [](const Problem& part) { return fp16x3_wgmma_bytes(part, 1); },
      [&](const Problem& part, void* memory) { run(part, nullptr, nullptr, 1, memory, context); });
}

bool launch_fp16x3_wgmma_complex(const Problem& in_place, const Plan& plan, const ComplexB& b,
                                 const Context& context) {
  using namespace fp16x3_wgmma;
  Problem p = in_place;
  p.b = b.packed;  // by which flagged elements are recomputed
  for (const int64_t k_splits : {plan.k_splits, int64_t{1}}) {
    void* memory = context.allocate(fp16x3_wgmma_bytes(p, k_splits));
    if (memory == nullptr) continue;
    run(p, &b, nullptr, k_splits, memory, context);
    return true;
  }
  return false;
}

bool launch_fp16x3_wgmma_mixed(const Problem& p, const Plan& plan, const Narrow& narrow,
                               const Context& context) {
  using namespace fp16x3_wgmma;
  for (const int64_t k_splits : {plan.k_splits, int64_t{1}}) {
    const int64_t bytes =
        workspace_bytes([&](Workspace& workspace) { Buffers(p, &narrow, k_splits, workspace); });
    void* memory = fits_in_free_memory(bytes) ? context.allocate(bytes) : nullptr;
    if (memory == nullptr) continue;
    run(p, nullptr, &narrow, k_splits, memory, context);
    return true;
  }
  return false;
}

}  // namespace tiled::cuda
