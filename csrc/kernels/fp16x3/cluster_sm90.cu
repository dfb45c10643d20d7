// fp16x3_cluster: one launch, a chunk for each block, and a cluster for all chunks of a tile.
//
// Idea: a product whose operands fit in the shared memory of all blocks together is latency-bound:
// it waits for memory, and for the chain of low products along a chunk. Here it waits for each of
// them once, everywhere at the same time. A block holds a tile's operand rows for one chunk: rows
// of A, and columns of B. A row comes by one bulk copy, or by elements where it is not K-major or
// not aligned; a warp finds its largest magnitude, splits it from registers, and leaves the parts
// in place. Some warps multiply by mma.sync and send their sums to the first block of the cluster,
// which adds those of all chunks in order.
//
// Limit: the chain of 128 dependent mma.sync, while nothing is read. Every block that needs a row
// reads and splits it.
//
// Next: blocks that share what one of them has split; more than eight chunks.
//
// The instructions come from memory, too, so there are few: the kernel is no template, and a loop
// is unrolled only where that gains more.
//
//   lane 0 of a warp    bulk copies of the warp's rows                      -> row_full[i]
//   or all warps        cp.async of elements, __syncthreads
//   a warp              wait row_full[i]   split row i in place
//   all warps           __syncthreads: all rows are split;  cluster_wait: all blocks have started
//   multiplying warps   multiply, descale, st.async to the first block      -> sums_full
//   the first block     wait sums_full     add the chunks' sums, store

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "core/epilogue.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/cluster_load.cuh"
#include "kernels/fp16x3/cluster_multiply.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/recomputed_counter.h"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace fp16x3_cluster {

struct Params {
  OperandParams operands[2];  // A, B
  int k, promotion;
  unsigned chunks;
  int64_t batch;                   // the first matrix of this launch
  bool identity_epilogue;          // C is the sums unchanged
  unsigned long long* recomputed;  // counts recomputed elements, or null
  Problem p;
};

namespace {

// batch_offset(), compiled once for all matrices.
__device__ __noinline__ int64_t offset(const Problem& p,
                                       const int64_t (&batch_stride)[kMaxBatchRank],
                                       int64_t index) {
  return batch_offset(p.batch, batch_stride, index);
}

}  // namespace

__global__ void __launch_bounds__(kThreads, 1)
    fp16x3_cluster_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  ptx::pdl_launch_dependents();
  const auto& [a, b] = params.operands;
  const int lane = threadIdx.x % 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  const unsigned chunk = ptx::cluster_rank();
  const int length = min(params.k - static_cast<int>(chunk) * kChunk, kChunk);
  const int padded = (length + OperandRow::kStep - 1) / OperandRow::kStep * OperandRow::kStep;
  const int warp_tiles = a.tile / 16 * (b.tile / 8);
  const bool elements =
      a.copy != RowCopy::kBulk || b.copy != RowCopy::kBulk;  // not all rows by bulk
  const int64_t matrix = params.batch + blockIdx.z;
  const int64_t first_row = a.first + int64_t{blockIdx.y} * a.tile;
  const int64_t first_col = b.first + int64_t{ptx::cluster_index()} * b.tile;

  // Calls f for each of this warp's operand rows, with its index in its operand, or -1 beyond the
  // operand's end.
  auto for_rows = [&](auto&& f) {
    NO_UNROLL
    for (int i = warp; i < a.tile + b.tile; i += kWarps) {
      const bool is_b = i >= a.tile;
      const int64_t row = is_b ? first_col + i - a.tile : first_row + i;
      f(i, is_b, row < params.operands[is_b].count ? row : -1);
    }
  };
  if (lane == 0) {
    UNROLL
    for (int i = 0; i < kMaxRows; i += kWarps) ptx::mbarrier_init(&smem.row_full[warp + i], 1);
    if (warp == 0) ptx::mbarrier_init(&smem.sums_full, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::pdl_wait();
  // The first element of an operand row in this chunk.
  const auto first_element = [&](bool is_b, int64_t row) {
    const OperandParams& operand = params.operands[is_b];
    const float* from =
        operand.data + row * operand.row_stride + int64_t{chunk * kChunk} * operand.k_stride;
    if (params.p.batch.rank != 0) {
      from += offset(params.p, (is_b ? params.p.b : params.p.a).batch_stride, matrix);
    }
    return from;
  };
  if (lane == 0) {
    for_rows([&](int i, bool is_b, int64_t row) {
      if (row < 0 || params.operands[is_b].copy != RowCopy::kBulk) return;
      ptx::arrive_expect_tx(&smem.row_full[i], length * 4);
      ptx::bulk_load(smem.rows[i].x, first_element(is_b, row), length * 4, &smem.row_full[i]);
    });
    if (warp == 0) {
      const int bytes =
          static_cast<int>(params.chunks * warp_tiles * kWarpTileElements * sizeof(float));
      ptx::arrive_expect_tx(&smem.sums_full, bytes);
    }
  }
  __syncwarp();
  ptx::cluster_arrive();
  NO_UNROLL
  for (int is_b = 0; elements && is_b < 2; ++is_b) {
    const OperandParams& operand = params.operands[is_b];
    if (operand.copy == RowCopy::kBulk) continue;
    const int64_t first = is_b ? first_col : first_row;
    const int rows = static_cast<int>(min(operand.count - first, int64_t{operand.tile}));
    copy_elements(operand, first_element(is_b, first), rows, length, &smem.rows[is_b ? a.tile : 0]);
  }
  if (elements) {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  for_rows([&](int i, bool is_b, int64_t row) {
    float inverse_scale = 1;
    if (row >= 0) {
      const RowCopy copy = params.operands[is_b].copy;
      const int swizzled = swizzle(copy, i);
      NO_UNROLL
      for (int k = length + lane; k < padded; k += 32) smem.rows[i].x[k ^ swizzled] = 0;
      if (copy == RowCopy::kBulk) ptx::mbarrier_wait(&smem.row_full[i], 0);
      __syncwarp();  // the zeros are there, too
      inverse_scale = split_row(smem.rows[i], length, swizzled / 4);
    }
    // Rows beyond the end hold anything, which reaches only elements that are not stored.
    smem.inverse_scale[i] = inverse_scale;
  });
  __syncthreads();
  ptx::cluster_wait();

  auto row_of = [&](int warp_tile) { return a.tile == 32 ? warp_tile % 2 * 16 : 0; };
  auto col_of = [&](int warp_tile) { return (a.tile == 32 ? warp_tile / 2 : warp_tile) * 8; };
  if (warp < warp_tiles) {
    const int row = row_of(warp), col = a.tile + col_of(warp);
    Accumulators acc = multiply(&smem.rows[row], &smem.rows[col], length, params.promotion);
    const float* row_scales = &smem.inverse_scale[row + lane / 4];
    const float* col_scales = &smem.inverse_scale[col + lane % 4 * 2];
    descale_chunk<4>(acc.total, acc.low, {row_scales[0], row_scales[8]},
                     {float2{col_scales[0], col_scales[1]}});
    float* to = &smem.partial_sums[chunk][threadIdx.x * 4];
    const auto& [x, y, z, w] = acc.total;
    if (params.chunks > 1) {
      ptx::st_async(to, acc.total, &smem.sums_full, 0);
    } else {
      *reinterpret_cast<float4*>(to) = {x, y, z, w};
    }
  }
  if (params.chunks == 1) __syncthreads();
  if (chunk != 0 || warp >= warp_tiles * (kWarpTileElements / 32)) return;

  if (params.chunks > 1) ptx::mbarrier_wait_cluster(&smem.sums_full, 0);
  // A thread adds the chunks' sums of one element. Where it lies in the warp tile follows from how
  // mma.sync spreads accumulators over lanes.
  const int warp_tile = warp / (kWarpTileElements / 32), index = threadIdx.x % kWarpTileElements;
  const int64_t row = first_row + row_of(warp_tile) + index / 16 + index % 4 / 2 * 8;
  const int64_t col = first_col + col_of(warp_tile) + index % 16 / 4 * 2 + index % 2;
  const bool exists = row < a.count && col < b.count;
  float sum = kAddIdentity<float>;
  NO_UNROLL
  for (unsigned i = 0; exists && i < params.chunks; ++i) sum += smem.partial_sums[i][threadIdx.x];
  const Problem& p = params.p;
  const bool flagged = exists && isnan(sum);
  if (__any_sync(~0u, flagged)) {
    const float recomputed = recompute_if_flagged(p, flagged, matrix, row, col, params.recomputed);
    if (flagged) sum = recomputed;
  }
  if (!exists) return;
  const int64_t c_offset = p.batch.rank != 0 ? offset(p, p.c.batch_stride, matrix) : 0;
  if (params.identity_epilogue) {
    static_cast<float*>(p.c.data)[c_offset + row * p.c.row_stride + col * p.c.col_stride] = sum;
  } else {
    store_noinline(p, c_offset, row, col, sum);
  }
}

namespace {

OperandParams operand_params(const Problem& p, const Matrix& matrix, int64_t count, int tile) {
  return {.data = static_cast<const float*>(matrix.data),
          .row_stride = matrix.row_stride,
          .k_stride = matrix.col_stride,
          .count = count,
          .first = 0,
          .tile = tile,
          .copy = fp16x3_cluster_copy(p, matrix)};
}

}  // namespace
}  // namespace fp16x3_cluster

bool launch_fp16x3_cluster(const Problem& p, const Plan& plan, const Context& context) {
  using namespace fp16x3_cluster;
  const RecomputedCounter counter(context);
  if (counter.lacks_memory()) return false;
  Params params{};
  params.operands[0] = operand_params(p, p.a, p.m, plan.m);
  params.operands[1] = operand_params(p, transposed(p.b), p.n, plan.n);
  params.k = static_cast<int>(p.k);
  params.promotion = fp16x3::promotion(p.k);
  params.chunks = static_cast<unsigned>(ceil_div(p.k, kChunk));
  params.identity_epilogue = p.epilogue.is_identity();
  params.recomputed = counter.on_gpu();
  params.p = p;
  allow_shared_memory(fp16x3_cluster_kernel, sizeof(Smem));

  for_tile_grids(p, plan.m, plan.n, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    params.batch = batch, params.operands[0].first = row, params.operands[1].first = col;
    grid.x *= params.chunks;
    launch_clusters_pdl(fp16x3_cluster_kernel, params.chunks, grid, kThreads,
                        Smem::bytes(plan.m + plan.n), context, params);
  });
  counter.read();
  return true;
}

}  // namespace tiled::cuda
