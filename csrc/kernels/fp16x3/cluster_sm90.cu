// fp16x3_cluster: one launch, a chunk for each block, and a cluster for all chunks of a tile.
//
// Idea: a product is latency-bound if its operands fit in the shared memory of all blocks together:
// it waits for memory, and for the chain of low products along a chunk. Here it waits for each of
// them once, everywhere at the same time. A block holds a tile's operand rows for one chunk: rows
// of A, and columns of B. A row comes by one bulk copy, or by elements if it is not K-major or
// not aligned; a warp finds its largest magnitude and splits it in place. Some warps multiply by
// mma.sync and send their sums to the first block of the cluster, which adds all chunks' sums in
// order.
//
// Limit: the chain of 128 dependent mma.sync, while nothing is read. Every block that needs a row
// reads and splits it.
//
// Next: blocks that share what one of them has split.
//
// The instructions come from memory, too, so there are few: the kernel is no template, and a loop
// is unrolled only if that gains more.
//
//   lane 0 of a warp    bulk copies of the warp's rows                      -> row_full[i]
//   or all warps        cp.async of elements, __syncthreads
//   a warp              wait row_full[i]   split row i in place
//   all warps           __syncthreads: all rows are split;  cluster_wait: all blocks have started
//   multiplying warps   multiply, descale, st.async to the first block      -> sums_full
//   the first block     wait sums_full     add the chunks' sums, store

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/mixed.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace fp16x3_cluster {

// Operand rows are A's rows and B's columns.

// --- Loading -------------------------------------------------------------------------------------

struct OperandParams {
  // The members that every block reads first are adjacent.
  const void* data;
  int64_t row_stride, k_stride, count;  // count: of operand rows
  DType dtype;                          // float32, or a 16-bit one of rows that come by bulk copies
  int64_t first;                        // of this launch
  int tile;                             // operand rows of a tile
  RowCopy copy;
};

// Element k of a row of a tile is stored at k ^ swizzle(row) until it is split. Without the
// swizzle, threads that copy along rows would store four times to each bank.
__device__ inline int swizzle(RowCopy copy, int row) {
  return copy == RowCopy::kMnMajor ? row / 2 % 4 * 4 : 0;
}

// Begins to copy a tile's operand rows by elements, this thread's part. `from` is the first element
// of the first row. Along rows, all of a cache line is requested before the next k.
__device__ inline void copy_elements(const OperandParams& operand, const float* from, int rows,
                                     int length, float* to, int pitch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (operand.copy == RowCopy::kMnMajor) {
    const int row = lane % 8, units = (rows - row + 7) / 8;  // units of eight rows
    const int64_t unit_stride = 8 * operand.row_stride;
    const int first_k = warp * 4 + lane / 8, swizzled = swizzle(operand.copy, row);
    const float* at = from + row * operand.row_stride + first_k * operand.k_stride;
    const auto copy_units = [&]<int kUnits>() {
      _Pragma("unroll 4") for (int k = first_k; k < length; k += warps * 4) {
        UNROLL
        for (int i = 0; i < kUnits; ++i) {
          if (i < units) {
            ptx::cp_async_4_zfill(&to[(row + i * 8) * pitch + (k ^ swizzled)], at + i * unit_stride,
                                  4);
          }
        }
        at += warps * 4 * operand.k_stride;
      }
    };
    if (rows <= 8) {
      copy_units.template operator()<1>();
    } else {
      copy_units.template operator()<4>();
    }
  } else {
    NO_UNROLL
    for (int row = warp; row < rows; row += warps) {
      const float* at = from + row * operand.row_stride + lane * operand.k_stride;
      _Pragma("unroll 4") for (int k = lane; k < length; k += 32) {
        ptx::cp_async_4_zfill(&to[row * pitch + k], at, 4);
        at += 32 * operand.k_stride;
      }
    }
  }
}

// --- Splitting and multiplying -------------------------------------------------------------------

// A warp multiplies a warp tile, 16 rows by 8 columns.
inline constexpr int kWarpTileElements = 128;

// A chunk of an operand row holds float32 until it is split in place: then each 16 bytes hold the
// hi parts of four elements and after them their lo parts. A warp splits kSplitStep elements at a
// time. The pitch of rows is half the banks more than a multiple of it, since multiply() reads two
// rows at a time.
inline constexpr int kSplitStep = 128;

// Where the elements of a 16-bit row are copied to: the second half of the place that they have as
// float32, so that widen_row() overwrites none before it has read it.
__device__ inline uint8_t* narrow_row(float* row, int length) {
  const int padded = (length + kSplitStep - 1) / kSplitStep * kSplitStep;
  return reinterpret_cast<uint8_t*>(row) + padded * 2;
}
// Widens such a row to float32, in place. The whole warp calls it.
template <typename T>
__device__ void widen_row(float* row, int length) {
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const uint2*>(narrow_row(row, length)) + lane;
  auto* to = reinterpret_cast<float4*>(row) + lane;
  for (int at = 0; at < length; at += kSplitStep, from += 32, to += 32) {
    const uint2 x4 = *from;
    const auto* x = reinterpret_cast<const T*>(&x4);
    __syncwarp();  // all lanes have read
    *to = {widen(x[0]), widen(x[1]), widen(x[2]), widen(x[3])};
  }
}

// Splits a row in place, and returns its inverse scale. The whole warp calls it. The row has zeros
// from its end to a multiple of kSplitStep. Vector i of four elements comes from place i ^
// swizzle, and its parts are left at place i.
__device__ inline float split_row(float* row, int length, int swizzle) {
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const float4*>(row) + (lane ^ swizzle);
  auto* to = reinterpret_cast<uint4*>(row) + lane;
  const int vectors = (length + kSplitStep - 1) / kSplitStep;  // a lane
  uint32_t largest = 0, bits = 0;  // `bits`: the bitwise or of the lane's numbers
  _Pragma("unroll 4") for (int i = 0; i < vectors; ++i) {
    const float4 x = from[i * 32];
    for (const float each : {x.x, x.y, x.z, x.w}) {
      largest = max(largest, fp16x3::magnitude_bits(each));
      bits |= bits_of(each);
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  const float scale = fp16x3::scale(largest);
  const bool may_be_coarse = fp16x3::is_coarse(bits, float_of(0x7f800000));
  uint32_t small_numbers = 0;
  float least_number = float_of(0x7f800000);  // except zeros, if the row may be coarse
  _Pragma("unroll 2") for (int i = 0; i < vectors; ++i) {
    const float4 x = from[i * 32];
    const float scaled[] = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
    uint4 parts;  // hi, hi, lo, lo
    ptx::split_x2(scaled[0], scaled[1], parts.x, parts.z);
    ptx::split_x2(scaled[2], scaled[3], parts.y, parts.w);
    __syncwarp();  // all lanes have read
    to[i * 32] = parts;
    // Only numbers with a hi part below 2^-12, zeros included, can be small.
    const __half2 least = __hmin2(__habs2(reinterpret_cast<const __half2&>(parts.x)),
                                  __habs2(reinterpret_cast<const __half2&>(parts.y)));
    if (__hlt2_mask(least, __float2half2_rn(0x1p-12f)) != 0) {
      small_numbers += fp16x3::is_small(x.x, scaled[0]) + fp16x3::is_small(x.y, scaled[1]) +
                       fp16x3::is_small(x.z, scaled[2]) + fp16x3::is_small(x.w, scaled[3]);
    }
    if (may_be_coarse) {
      for (const float each : scaled) {
        if (each != 0) least_number = fminf(least_number, fabsf(each));
      }
    }
  }
  const bool coarse = __all_sync(~0u, fp16x3::is_coarse(bits, least_number));
  return fp16x3::inverse_scale(largest, __reduce_add_sync(~0u, small_numbers), coarse);
}

struct Accumulators {
  float total[4], low[4];
};

// Multiplies a warp tile: 16 operand rows from `a` on by 8 from `b` on; a_rows and b_rows
// exist. A lane takes four adjacent elements of each 16 along K, and mma.sync takes two and two:
// a tensor-core sum of 16 products does not depend on their order. `length` is rounded up to a
// multiple of 32 by zeros.
__device__ inline Accumulators multiply(const float* a, int a_rows, const float* b, int b_rows,
                                        int pitch, int length, int promotion) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  // Rows that do not exist are replaced, since nothing they reach is stored.
  const auto row = [&](const float* first, int index, int rows) {
    return reinterpret_cast<const uint4*>(first + min(index, rows - 1) * pitch) + q;
  };
  const uint4* from[] = {row(a, g, a_rows), row(a, g + 8, a_rows), row(b, g, b_rows)};
  struct Fragments {
    uint4 x[3];  // of 16 of K: rows g and g + 8 of A, column g of B
  };
  auto read = [&](int k) {
    Fragments fragments;
    UNROLL
    for (int i = 0; i < 3; ++i) fragments.x[i] = from[i][k / 4];
    return fragments;
  };
  Accumulators acc{};
  float part[4] = {};
  auto add = [&](const Fragments& fragments, bool promotes) {
    const auto& [upper, lower, cols] = fragments.x;
    const uint32_t a_hi[] = {upper.x, lower.x, upper.y, lower.y};
    const uint32_t a_lo[] = {upper.z, lower.z, upper.w, lower.w};
    const uint32_t b_hi[] = {cols.x, cols.y}, b_lo[] = {cols.z, cols.w};
    ptx::mma_m16n8k16(acc.low, a_lo, b_hi);
    ptx::mma_m16n8k16(part, a_hi, b_hi);
    ptx::mma_m16n8k16(acc.low, a_hi, b_lo);
    if (!promotes) return;
    UNROLL
    for (int i = 0; i < 4; ++i) acc.total[i] += part[i], part[i] = 0;
  };
  // Fragments of the next 16 of K are read before the products of these.
  Fragments even = read(0);
  _Pragma("unroll 2") for (int left = length; left > 0; left -= 32) {
    const Fragments odd = read(16);
    add(even, promotion == 16);
    UNROLL
    for (int i = 0; i < 3; ++i) from[i] += left > 32 ? 8 : 0;  // at the end, the same once more
    even = read(0);
    add(odd, true);
  }
  return acc;
}

// --- The kernel ----------------------------------------------------------------------------------

struct Params {
  OperandParams operands[2];  // A, B
  int64_t k;
  int promotion, pitch;
  int cluster, chunks;
  int64_t batch;                   // the first matrix of this launch
  bool identity_epilogue;          // C is the sums unchanged
  bool is_mixed;                   // an operand is a 16-bit one
  Narrow narrow;                   // if so
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

// Stores a tile of rows x cols. `totals` has its sums in the order in which warps hold them.
__device__ void store_tile(const Params& params, int rows, int cols, const float* totals) {
  const Problem& p = params.p;
  const int64_t matrix = params.batch + blockIdx.z;
  const int tiles_down = (rows + 15) / 16;
  const int sums_count = tiles_down * ((cols + 7) / 8) * kWarpTileElements;
  const int64_t c_offset = p.batch.rank != 0 ? offset(p, p.c.batch_stride, matrix) : 0;
  NO_UNROLL
  for (int first = 0; first < sums_count; first += static_cast<int>(blockDim.x)) {
    // The layout of mma.sync's accumulators gives the row and the column of an element.
    const int element = first + static_cast<int>(threadIdx.x);
    const int warp_tile = element / kWarpTileElements, index = element % kWarpTileElements;
    const int row = warp_tile % tiles_down * 16 + index / 16 + index % 4 / 2 * 8;
    const int col = warp_tile / tiles_down * 8 + index % 16 / 4 * 2 + index % 2;
    const bool exists = row < rows && col < cols;
    float sum = exists ? totals[element] : 0;
    const int64_t c_row = first_row(params) + row, c_col = first_col(params) + col;
    const bool flagged = exists && isnan(sum);
    if (__any_sync(~0u, flagged)) {
      if (params.is_mixed) {
        if (flagged)
          sum = recompute_mixed(p, params.narrow, matrix, c_row, c_col, params.recomputed);
      } else {
        const float recomputed =
            recompute_if_flagged(p, flagged, matrix, c_row, c_col, params.recomputed);
        if (flagged) sum = recomputed;
      }
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
  // The offset of an operand's first row, in elements.
  const auto first_element = [&](bool is_b) {
    const OperandParams& operand = params.operands[is_b];
    int64_t from = (is_b ? first_col(params) : first_row(params)) * operand.row_stride;
    if (params.p.batch.rank != 0) {
      from += offset(params.p, (is_b ? params.p.b : params.p.a).batch_stride, matrix);
    }
    return from;
  };
  const int64_t from_a = first_element(false), from_b = first_element(true);
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
        const int64_t from =
            (is_b ? from_b : from_a) + k + (is_b ? i - rows : i) * operand.row_stride;
        const int size = operand.dtype == DType::kFloat32 ? 4 : 2;
        float* row = rows_smem + i * pitch;
        ptx::arrive_expect_tx(&smem.row_full[i], length * size);
        ptx::bulk_load(size == 4 ? reinterpret_cast<uint8_t*>(row) : narrow_row(row, length),
                       static_cast<const uint8_t*>(operand.data) + from * size, length * size,
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
      const float* from =
          static_cast<const float*>(operand.data) + (is_b ? from_b : from_a) + k * operand.k_stride;
      copy_elements(operand, from, is_b ? cols : rows, length, is_b ? cols_smem : rows_smem, pitch);
    }
    if (elements) {
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
    }
    NO_UNROLL
    for (int i = warp; i < rows + cols && length > 0; i += warps) {
      const bool is_b = i >= rows;
      const OperandParams& operand = params.operands[is_b];
      const RowCopy copy = operand.copy;
      const int swizzled = swizzle(copy, is_b ? i - rows : i);
      float* row = rows_smem + i * pitch;
      if (copy == RowCopy::kBulk) ptx::mbarrier_wait(&smem.row_full[i], parity);
      if (operand.dtype == DType::kBFloat16) widen_row<BFloat16>(row, length);
      if (operand.dtype == DType::kFloat16) widen_row<Half>(row, length);
      __syncwarp();  // the zeros overwrite what was widened behind the end
      NO_UNROLL
      for (int at = length + lane; at < padded; at += 32) row[at ^ swizzled] = 0;
      __syncwarp();
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
  return {.data = matrix.data,
          .row_stride = matrix.row_stride,
          .k_stride = matrix.col_stride,
          .count = count,
          .dtype = DType::kFloat32,
          .first = 0,
          .tile = tile,
          .copy = fp16x3_cluster_copy(p, matrix, std::min<int64_t>(count, tile))};
}

bool run(const Problem& p, const Plan& plan, const Narrow* narrow, const Context& context) {
  Params params{};
  params.operands[0] = operand_params(p, p.a, p.m, plan.m);
  params.operands[1] = operand_params(p, transposed(p.b), p.n, plan.n);
  if (narrow != nullptr) {
    OperandParams& operand = params.operands[narrow->is_a ? 0 : 1];
    operand.copy = RowCopy::kBulk, operand.dtype = narrow->dtype, params.is_mixed = true,
    params.narrow = *narrow;
  }
  params.k = p.k;
  params.promotion = fp16x3::promotion(p.k);
  params.pitch = static_cast<int>(fp16x3_cluster_pitch(p.k));
  params.cluster = static_cast<int>(plan.k_splits);
  params.chunks = static_cast<int>(ceil_div(p.k, kChunk));
  params.identity_epilogue = p.epilogue.is_identity();
  params.p = p;
  allow_shared_memory(fp16x3_cluster_kernel, kMaxSharedMemory);
  const int64_t bytes = sizeof(Smem) + fp16x3_cluster_smem(p, plan.m, plan.n, plan.k_splits);
  const int threads = fp16x3_cluster_threads(plan.blocks, context.sms);
  const auto cluster = static_cast<unsigned>(params.cluster);
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    params.recomputed = recomputed;
    for_tile_grids(p, plan.m, plan.n, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
      params.batch = batch, params.operands[0].first = row, params.operands[1].first = col;
      grid.x *= cluster;
      launch_clusters_pdl(fp16x3_cluster_kernel, cluster, grid, threads, static_cast<size_t>(bytes),
                          context, params);
    });
    return true;
  });
}

}  // namespace
}  // namespace fp16x3_cluster

bool launch_fp16x3_cluster(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_cluster::run(p, plan, nullptr, context);
}

bool launch_fp16x3_cluster_mixed(const Problem& p, const Plan& plan, const Narrow& narrow,
                                 const Context& context) {
  return fp16x3_cluster::run(p, plan, &narrow, context);
}

}  // namespace tiled::cuda
