// fp16x3_cluster: one launch, a chunk for each block, and a cluster for all chunks of a tile.
//
// Idea: a product whose operands fit in the shared memory of all blocks together is latency-bound:
// it waits for memory, and for the chain of low products along a chunk. Here it waits for each of
// them once, everywhere at the same time. A block holds a tile's operand rows for one chunk: rows
// of A, and columns of B. A row comes by one bulk copy, or by elements where it is not K-major or
// not aligned; a warp finds its largest magnitude and splits it in place. Some warps multiply by
// mma.sync and send their sums to the first block of the cluster, which adds those of all chunks in
// order.
//
// Limit: the chain of 128 dependent mma.sync, while nothing is read. Every block that needs a row
// reads and splits it.
//
// Next: blocks that share what one of them has split.
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
  int64_t k;
  int promotion, pitch;
  int cluster, chunks;
  int64_t batch;                   // the first matrix of this launch
  bool identity_epilogue;          // C is the sums unchanged
  unsigned long long* recomputed;  // counts recomputed elements, or null
  Problem p;
};

// A block's shared memory before its operand rows, and after them the sums of warp tiles that the
// blocks of the cluster send to the first one.
struct alignas(128) Smem {
  uint64_t row_full[kFp16x3ClusterRows], sums_full;  // row_full: of rows that come by bulk copies
  float inverse_scale[kFp16x3ClusterRows];
};

namespace {

// batch_offset(), compiled once for all matrices.
__device__ __noinline__ int64_t offset(const Problem& p,
                                       const int64_t (&batch_stride)[kMaxBatchRank],
                                       int64_t index) {
  return batch_offset(p.batch, batch_stride, index);
}

// The first row and column of the block's tile.
__device__ int64_t first_row(const Params& params) {
  return params.operands[0].first + int64_t{blockIdx.y} * params.operands[0].tile;
}
__device__ int64_t first_col(const Params& params) {
  return params.operands[1].first + int64_t{ptx::cluster_index()} * params.operands[1].tile;
}

// Stores a tile of rows x cols, whose sums are `totals` in the order in which warps have them.
__device__ void store_tile(const Params& params, int rows, int cols, const float* totals) {
  const Problem& p = params.p;
  const int64_t matrix = params.batch + blockIdx.z;
  const int tiles_down = (rows + 15) / 16;
  const int sums_count = tiles_down * ((cols + 7) / 8) * kWarpTileElements;
  const int64_t c_offset = p.batch.rank != 0 ? offset(p, p.c.batch_stride, matrix) : 0;
  NO_UNROLL
  for (int first = 0; first < sums_count; first += static_cast<int>(blockDim.x)) {
    // Where an element lies in its warp tile follows from how mma.sync spreads accumulators over
    // lanes.
    const int element = first + static_cast<int>(threadIdx.x);
    const int warp_tile = element / kWarpTileElements, index = element % kWarpTileElements;
    const int row = warp_tile % tiles_down * 16 + index / 16 + index % 4 / 2 * 8;
    const int col = warp_tile / tiles_down * 8 + index % 16 / 4 * 2 + index % 2;
    const bool exists = row < rows && col < cols;
    float sum = exists ? totals[element] : 0;
    const int64_t c_row = first_row(params) + row, c_col = first_col(params) + col;
    const bool flagged = exists && isnan(sum);
    if (__any_sync(~0u, flagged)) {
      const float recomputed =
          recompute_if_flagged(p, flagged, matrix, c_row, c_col, params.recomputed);
      if (flagged) sum = recomputed;
    }
    if (!exists) continue;
    if (params.identity_epilogue) {
      static_cast<float*>(p.c.data)[c_offset + c_row * p.c.row_stride + c_col * p.c.col_stride] =
          sum;
    } else {
      store_noinline(p, c_offset, c_row, c_col, sum);
    }
  }
}

}  // namespace

__global__ void __launch_bounds__(kFp16x3ClusterMostThreads)
    fp16x3_cluster_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  ptx::pdl_launch_dependents();
  const auto& [a, b] = params.operands;
  const int pitch = params.pitch, cluster = params.cluster, chunks = params.chunks;
  const int lane = threadIdx.x % 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32), warps = static_cast<int>(blockDim.x) / 32;
  const auto rank = static_cast<int>(ptx::cluster_rank());
  const bool elements =
      a.copy != RowCopy::kBulk || b.copy != RowCopy::kBulk;  // not all rows by bulk
  const int64_t matrix = params.batch + blockIdx.z;
  const int rows = static_cast<int>(min(a.count - first_row(params), int64_t{a.tile}));
  const int cols = static_cast<int>(min(b.count - first_col(params), int64_t{b.tile}));
  float* const rows_smem = reinterpret_cast<float*>(smem_bytes + sizeof(Smem));
  float* const cols_smem = rows_smem + rows * pitch;
  const int tiles_down = (rows + 15) / 16, warp_tiles = tiles_down * ((cols + 7) / 8);
  const int sums_count = warp_tiles * kWarpTileElements;
  float* const totals = cols_smem + cols * pitch;  // then the sums of the cluster's chunks

  if (lane == 0) {
    for (int i = warp; i < rows + cols; i += warps) ptx::mbarrier_init(&smem.row_full[i], 1);
    if (warp == 0) ptx::mbarrier_init(&smem.sums_full, 1);
    ptx::fence_mbarrier_init();
  }
  // The first element of an operand's first row.
  const auto first_element = [&](bool is_b) {
    const OperandParams& operand = params.operands[is_b];
    const float* from =
        operand.data + (is_b ? first_col(params) : first_row(params)) * operand.row_stride;
    if (params.p.batch.rank != 0) {
      from += offset(params.p, (is_b ? params.p.b : params.p.a).batch_stride, matrix);
    }
    return from;
  };
  const float *const from_a = first_element(false), *const from_b = first_element(true);
  ptx::pdl_wait();
  NO_UNROLL
  for (int first = 0, parity = 0; first < chunks; first += cluster, parity ^= 1) {
    const int64_t k = int64_t{first + rank} * kChunk;
    const int length = static_cast<int>(max(min(params.k - k, int64_t{kChunk}), int64_t{0}));
    const int padded = (length + kSplitStep - 1) / kSplitStep * kSplitStep;
    const int in_round = min(chunks - first, cluster);
    if (lane == 0) {
      NO_UNROLL
      for (int i = warp; i < rows + cols && length > 0; i += warps) {
        const bool is_b = i >= rows;
        const OperandParams& operand = params.operands[is_b];
        if (operand.copy != RowCopy::kBulk) continue;
        const int row = is_b ? i - rows : i;
        ptx::arrive_expect_tx(&smem.row_full[i], length * 4);
        ptx::bulk_load(rows_smem + i * pitch,
                       (is_b ? from_b : from_a) + k + row * operand.row_stride, length * 4,
                       &smem.row_full[i]);
      }
      if (warp == 0 && rank == 0 && cluster > 1) {
        ptx::arrive_expect_tx(&smem.sums_full, in_round * sums_count * 4);
      }
    }
    __syncwarp();
    if (first == 0) ptx::cluster_arrive();
    NO_UNROLL
    for (int is_b = 0; elements && is_b < 2; ++is_b) {
      const OperandParams& operand = params.operands[is_b];
      if (operand.copy == RowCopy::kBulk) continue;
      copy_elements(operand, (is_b ? from_b : from_a) + k * operand.k_stride, is_b ? cols : rows,
                    length, is_b ? cols_smem : rows_smem, pitch);
    }
    if (elements) {
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
    }
    NO_UNROLL
    for (int i = warp; i < rows + cols && length > 0; i += warps) {
      const bool is_b = i >= rows;
      const RowCopy copy = params.operands[is_b].copy;
      const int swizzled = swizzle(copy, is_b ? i - rows : i);
      float* row = rows_smem + i * pitch;
      NO_UNROLL
      for (int at = length + lane; at < padded; at += 32) row[at ^ swizzled] = 0;
      if (copy == RowCopy::kBulk) ptx::mbarrier_wait(&smem.row_full[i], parity);
      __syncwarp();  // the zeros are there, too
      smem.inverse_scale[i] = split_row(row, length, swizzled / 4);
    }
    __syncthreads();
    if (first == 0) ptx::cluster_wait();

    if (warp < warp_tiles && length > 0) {
      const int row = warp % tiles_down * 16, col = warp / tiles_down * 8;
      const int rows_left = rows - row, cols_left = cols - col;
      Accumulators acc = multiply(rows_smem + row * pitch, rows_left, cols_smem + col * pitch,
                                  cols_left, pitch, length, params.promotion);
      const float* row_scales = &smem.inverse_scale[row];
      const float* col_scales = &smem.inverse_scale[rows + col];
      const int g = lane / 4, q = lane % 4 * 2;
      descale_chunk<4>(
          acc.total, acc.low,
          {row_scales[min(g, rows_left - 1)], row_scales[min(g + 8, rows_left - 1)]},
          {float2{col_scales[min(q, cols_left - 1)], col_scales[min(q + 1, cols_left - 1)]}},
          params.promotion);
      float* to = totals + (1 + rank) * sums_count + threadIdx.x * 4;
      const auto& [x, y, z, w] = acc.total;
      if (cluster > 1) {
        ptx::st_async(to, acc.total, &smem.sums_full, 0);
      } else {
        *reinterpret_cast<float4*>(to) = {x, y, z, w};
      }
    }
    if (cluster == 1) __syncthreads();
    if (rank == 0) {
      if (cluster > 1) ptx::mbarrier_wait_cluster(&smem.sums_full, parity);
      NO_UNROLL
      for (int e = threadIdx.x; e < sums_count; e += static_cast<int>(blockDim.x)) {
        float total = first == 0 ? kAddIdentity<float> : totals[e];
        NO_UNROLL
        for (int i = 1; i <= in_round; ++i) total += totals[i * sums_count + e];
        totals[e] = total;
      }
    }
    if (first + cluster < chunks) {
      // The next round overwrites the operand rows, by bulk copies, and the sums in the first
      // block.
      ptx::fence_proxy_async();
      ptx::cluster_sync();
    }
  }
  if (rank == 0) store_tile(params, rows, cols, totals);
}

namespace {

OperandParams operand_params(const Problem& p, const Matrix& matrix, int64_t count, int tile) {
  return {.data = static_cast<const float*>(matrix.data),
          .row_stride = matrix.row_stride,
          .k_stride = matrix.col_stride,
          .count = count,
          .first = 0,
          .tile = tile,
          .copy = fp16x3_cluster_copy(p, matrix, std::min<int64_t>(count, tile))};
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
  params.k = p.k;
  params.promotion = fp16x3::promotion(p.k);
  params.pitch = static_cast<int>(fp16x3_cluster_pitch(p.k));
  params.cluster = static_cast<int>(plan.k_splits);
  params.chunks = static_cast<int>(ceil_div(p.k, kChunk));
  params.identity_epilogue = p.epilogue.is_identity();
  params.recomputed = counter.on_gpu();
  params.p = p;
  allow_shared_memory(fp16x3_cluster_kernel, kMaxSharedMemory);
  const int64_t bytes = sizeof(Smem) + fp16x3_cluster_smem(p, plan.m, plan.n, plan.k_splits);

  for_tile_grids(p, plan.m, plan.n, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    params.batch = batch, params.operands[0].first = row, params.operands[1].first = col;
    grid.x *= static_cast<unsigned>(params.cluster);
    launch_clusters_pdl(fp16x3_cluster_kernel, static_cast<unsigned>(params.cluster), grid,
                        fp16x3_cluster_threads(plan.blocks, context.sms),
                        static_cast<size_t>(bytes), context, params);
  });
  counter.read();
  return true;
}

}  // namespace tiled::cuda
