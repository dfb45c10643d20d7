// fp16x3_cluster: one launch, a chunk for each block, and a cluster for all chunks of a tile.
//
// Idea: a product is latency-bound if its operands fit in the shared memory of all blocks together:
// it waits for memory, and for the chain of low products along a chunk. Here it waits for each of
// them once, everywhere at the same time. A block holds a tile's operand rows for one chunk: rows
// of A, and columns of B. A row comes by one bulk copy, or by elements if it is not K-major; a warp
// finds its largest magnitude and splits it in place. Some warps multiply by mma.sync and send
// their sums to the first block of the cluster, which adds all chunks' sums in order.
//
// A bulk copy has 16-byte aligned ends. That of an unaligned row begins up to three elements before
// the row, and up to three elements at the row's end come by cp.async; the split closes the gap.
//
// A 16-bit operand is read in place. Its rows are left with hi parts alone, in half the memory, and
// one product of lo parts takes the place of two. A warp that multiplies a wide row splits that
// anew, from global memory.
//
// Limit: the chain of 128 dependent mma.sync, or 64 beside a 16-bit operand, while nothing is read.
// Every block that needs a row reads and splits it.
//
// Next: blocks that share what one of them has split.
//
// The instructions come from memory, too, so there are few: the kernel is a template of the 16-bit
// operand's side alone, and a loop is unrolled only if that gains more.
//
//   lane 0 of a warp    bulk copies of the warp's rows                      -> row_full[i]
//   or all warps        cp.async of elements, __syncthreads
//   a warp              wait row_full[i]   split row i in place
//   all warps           __syncthreads: all rows are split;  cluster_wait: all blocks have started
//   multiplying warps   multiply, descale, st.async to the first block      -> sums_full
//   the first block     wait sums_full     add the chunks' sums, store

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/mixed.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/cluster_split.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace fp16x3_cluster {

// --- Multiplying ---------------------------------------------------------------------------------

// A warp multiplies a warp tile, 16 rows by 16 columns: two tiles of mma.sync, which share what is
// read of A.
inline constexpr int kWarpTile = 16, kMmaCols = 8, kMmaElements = kWarpTile * kMmaCols;

// The operand that is a 16-bit one.
enum class NarrowSide { kNone, kA, kB };

// Operand rows of a warp tile.
struct Rows {
  const uint8_t* parts;
  const float* inverse_scales;
  int count, pitch;

  // Rows that do not exist are replaced, since nothing they reach is stored.
  __device__ int existing(int row) const { return min(row, count - 1); }
  template <class Parts>
  __device__ const Parts* row(int index) const {
    return reinterpret_cast<const Parts*>(parts + index * pitch);
  }
  // The whole warp calls it.
  __device__ bool any_is_wide() const {
    const int lane = threadIdx.x % 32;
    return __any_sync(~0u, lane < count && fp16x3::small_numbers(inverse_scales[lane]) != 0);
  }
};

// The 16-bit operand in global memory, from the first row of a warp tile and the chunk's first k
// on.
struct NarrowRows {
  const uint16_t* from;
  int64_t row_stride;
  bool is_half;
};

// One of its rows, with a scale.
struct NarrowRow {
  const uint16_t* from;
  float scale;

  __device__ NarrowRow(const NarrowRows& rows, const Rows& scales, int row)
      : from(rows.from + row * rows.row_stride),
        // Of a power of two and its inverse, the biased exponents have the sum 254.
        scale(float_of((254u << 23) - (bits_of(scales.inverse_scales[row]) & 0x7f800000u))) {}

  // The lo parts of four elements.
  __device__ uint2 lo_parts(uint2 x4, bool is_half) const {
    float x[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(&x4)[i];
      x[i] = (is_half ? widen(Half{bits}) : widen(BFloat16{bits})) * scale;
    }
    uint2 hi, lo;
    ptx::split_x2(x[0], x[1], hi.x, lo.x);
    ptx::split_x2(x[2], x[3], hi.y, lo.y);
    return lo;
  }
};

struct Accumulators {
  float total[2][4], low[2][4];  // of each tile of mma.sync
};

// Multiplies a warp tile. A lane takes four adjacent elements of each 16 along K, and mma.sync
// takes two and two: a tensor-core sum of 16 products does not depend on their order. `length` is
// rounded up to a multiple of 32 by zeros. kWide: the lo parts of the 16-bit operand, `narrow`, are
// not all 0.
template <NarrowSide kNarrow, bool kWide>
__device__ Accumulators multiply(const Rows& a, const Rows& b, const NarrowRows& narrow, int length,
                                 int promotion) {
  constexpr bool kNarrowA = kNarrow == NarrowSide::kA, kNarrowB = kNarrow == NarrowSide::kB;
  using PartsOfA = std::conditional_t<kNarrowA, uint2, uint4>;
  using PartsOfB = std::conditional_t<kNarrowB, uint2, uint4>;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const int rows[] = {a.existing(g), a.existing(g + 8)};
  const int cols[] = {b.existing(g), b.existing(g + kMmaCols)};
  const PartsOfA* of_a[] = {a.row<PartsOfA>(rows[0]) + q, a.row<PartsOfA>(rows[1]) + q};
  const PartsOfB* of_b[] = {b.row<PartsOfB>(cols[0]) + q, b.row<PartsOfB>(cols[1]) + q};
  const Rows& scales = kNarrowA ? a : b;
  const NarrowRow narrow_rows[] = {{narrow, scales, kNarrowA ? rows[0] : cols[0]},
                                   {narrow, scales, kNarrowA ? rows[1] : cols[1]}};
  int at = q * 4;     // of the chunk
  struct Fragments {  // of 16 of K
    PartsOfA a[2];
    PartsOfB b[2];
    uint2 narrow[2];  // unsplit, if kWide
  };
  auto read = [&](int k) {
    Fragments fragments{{of_a[0][k / 4], of_a[1][k / 4]}, {of_b[0][k / 4], of_b[1][k / 4]}, {}};
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if (!kWide || at + k >= length) continue;
      fragments.narrow[i] = __ldg(reinterpret_cast<const uint2*>(narrow_rows[i].from + at + k));
    }
    return fragments;
  };
  Accumulators acc{};
  float part[2][4] = {};
  auto add = [&](const Fragments& fragments, bool promotes) {
    const auto& [x, y, unsplit] = fragments;
    uint2 a_lo_of[2]{}, b_lo_of[2]{};
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (kWide) {
        (kNarrowA ? a_lo_of : b_lo_of)[i] = narrow_rows[i].lo_parts(unsplit[i], narrow.is_half);
      }
      if constexpr (!kNarrowA) a_lo_of[i] = {x[i].z, x[i].w};
      if constexpr (!kNarrowB) b_lo_of[i] = {y[i].z, y[i].w};
    }
    const uint32_t a_hi[] = {x[0].x, x[1].x, x[0].y, x[1].y};
    const uint32_t a_lo[] = {a_lo_of[0].x, a_lo_of[1].x, a_lo_of[0].y, a_lo_of[1].y};
    const uint32_t b_hi[][2] = {{y[0].x, y[0].y}, {y[1].x, y[1].y}};
    const uint32_t b_lo[][2] = {{b_lo_of[0].x, b_lo_of[0].y}, {b_lo_of[1].x, b_lo_of[1].y}};
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (!kNarrowA || kWide) ptx::mma_m16n8k16(acc.low[i], a_lo, b_hi[i]);
      ptx::mma_m16n8k16(part[i], a_hi, b_hi[i]);
      if constexpr (!kNarrowB || kWide) ptx::mma_m16n8k16(acc.low[i], a_hi, b_lo[i]);
    }
    if (!promotes) return;
    UNROLL
    for (int i = 0; i < 8; ++i) {
      float& each = part[i / 4][i % 4];
      acc.total[i / 4][i % 4] += each, each = 0;
    }
  };
  // Fragments of the next 16 of K are read before the products of these.
  Fragments even = read(0);
  _Pragma("unroll 2") for (int left = length; left > 0; left -= 32) {
    const Fragments odd = read(16);
    add(even, promotion == 16);
    const int step = left > 32 ? 32 : 0;  // at the end, the same once more
    UNROLL
    for (int i = 0; i < 2; ++i) of_a[i] += step / 4, of_b[i] += step / 4;
    at += step;
    even = read(0);
    add(odd, true);
  }
  return acc;
}

// --- The kernel ----------------------------------------------------------------------------------

struct Params {
  OperandParams operands[2];  // A, B
  int64_t k;
  int promotion;
  int cluster, chunks;
  int64_t batch;                   // the first matrix of this launch
  bool identity_epilogue;          // C is the sums unchanged
  Narrow narrow;                   // of a product with a 16-bit operand
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
template <bool kMixed>
__device__ void store_tile(const Params& params, int rows, int cols, const float* totals) {
  const Problem& p = params.p;
  const int64_t matrix = params.batch + blockIdx.z;
  const int tiles_down = (rows + 15) / 16;
  const int sums_count = tiles_down * ((cols + 7) / 8) * kMmaElements;
  const int64_t c_offset = p.batch.rank != 0 ? offset(p, p.c.batch_stride, matrix) : 0;
  NO_UNROLL
  for (int first = 0; first < sums_count; first += static_cast<int>(blockDim.x)) {
    // The layout of mma.sync's accumulators gives the row and the column of an element.
    const int element = first + static_cast<int>(threadIdx.x);
    const int tile = element / kMmaElements, index = element % kMmaElements;
    const int row = tile % tiles_down * 16 + index / 16 + index % 4 / 2 * 8;
    const int col = tile / tiles_down * 8 + index % 16 / 4 * 2 + index % 2;
    const bool exists = row < rows && col < cols;
    float sum = exists ? totals[element] : 0;
    const int64_t c_row = first_row(params) + row, c_col = first_col(params) + col;
    const bool flagged = exists && isnan(sum);
    if (__any_sync(~0u, flagged)) {
      if constexpr (kMixed) {
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

template <NarrowSide kNarrow>
__global__ void __launch_bounds__(kFp16x3ClusterMostThreads, 1)
    fp16x3_cluster_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  ptx::pdl_launch_dependents();
  const auto& [a, b] = params.operands;
  const int cluster = params.cluster, chunks = params.chunks;
  const int lane = threadIdx.x % 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32), warps = static_cast<int>(blockDim.x) / 32;
  const auto rank = static_cast<int>(ptx::cluster_rank());
  const bool elements =
      a.copy != RowCopy::kBulk || b.copy != RowCopy::kBulk;  // not all rows by bulk
  const int64_t matrix = params.batch + blockIdx.z;
  const int rows = static_cast<int>(min(a.count - first_row(params), int64_t{a.tile}));
  const int cols = static_cast<int>(min(b.count - first_col(params), int64_t{b.tile}));
  uint8_t* const rows_smem = smem_bytes + sizeof(Smem);
  uint8_t* const cols_smem = rows_smem + rows * a.pitch;
  const int tiles_down = (rows + 15) / 16, warp_tiles = tiles_down * ((cols + 15) / 16);
  const int sums_count = tiles_down * ((cols + 7) / 8) * kMmaElements;
  // The sums of the cluster's chunks. The first of them has all earlier rounds', too.
  float* const totals = reinterpret_cast<float*>(cols_smem + cols * b.pitch);

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
  // Whether it is a row of B, its index in its operand, whether it is a 16-bit one, and `shift`:
  // the elements before it that its bulk copy begins with.
  const auto row_of = [&](int i) {
    struct Row {
      uint8_t* smem;
      int index, shift;
      bool is_b, is_narrow;
    };
    const bool is_b = i >= rows, is_narrow = kNarrow == (is_b ? NarrowSide::kB : NarrowSide::kA);
    const int index = is_b ? i - rows : i;
    const OperandParams& operand = params.operands[is_b];
    const auto address =
        reinterpret_cast<uintptr_t>(static_cast<const float*>(operand.data) +
                                    (is_b ? from_b : from_a) + index * operand.row_stride);
    const bool may_shift = operand.copy == RowCopy::kBulk && !is_narrow;
    return Row{is_b ? cols_smem + index * b.pitch : rows_smem + index * a.pitch, index,
               may_shift ? static_cast<int>(address % 16 / sizeof(float)) : 0, is_b, is_narrow};
  };
  ptx::pdl_wait();
  NO_UNROLL
  for (int first = 0, parity = 0; first < chunks; first += cluster, parity ^= 1) {
    const int64_t k = int64_t{first + rank} * kChunk;
    const int length = static_cast<int>(max(min(params.k - k, int64_t{kChunk}), int64_t{0}));
    const int padded = (length + kSplitStep - 1) / kSplitStep * kSplitStep;
    const int in_round = min(chunks - first, cluster);
    NO_UNROLL
    for (int i = warp; i < rows + cols && length > 0; i += warps) {
      const auto row = row_of(i);
      const OperandParams& operand = params.operands[row.is_b];
      if (operand.copy != RowCopy::kBulk) continue;
      const int size = row.is_narrow ? 2 : 4;
      const int end = (row.shift + length) * size, aligned_end = end / 16 * 16;  // in bytes
      const int64_t first_k = (row.is_b ? from_b : from_a) + row.index * operand.row_stride;
      const uint8_t* from =
          static_cast<const uint8_t*>(operand.data) + (first_k + k - row.shift) * size;
      if (lane == 0) {
        ptx::arrive_expect_tx(&smem.row_full[i], aligned_end);
        if (aligned_end > 0) ptx::bulk_load(row.smem, from, aligned_end, &smem.row_full[i]);
      } else if (const int at = aligned_end + lane * 4 - 4; at < end) {
        ptx::cp_async_4_zfill(row.smem + at, from + at, 4);
      }
    }
    if (threadIdx.x == 0 && rank == 0 && cluster > 1) {
      ptx::arrive_expect_tx(&smem.sums_full, in_round * sums_count * 4);
    }
    __syncwarp();
    if (first == 0) ptx::cluster_arrive();
    NO_UNROLL
    for (int is_b = 0; elements && is_b < 2; ++is_b) {
      const OperandParams& operand = params.operands[is_b];
      if (operand.copy == RowCopy::kBulk) continue;
      const float* from =
          static_cast<const float*>(operand.data) + (is_b ? from_b : from_a) + k * operand.k_stride;
      copy_elements(operand, from, is_b ? cols : rows, length,
                    reinterpret_cast<float*>(is_b ? cols_smem : rows_smem), operand.pitch / 4);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    if (elements) __syncthreads();
    NO_UNROLL
    for (int i = warp; i < rows + cols && length > 0; i += warps) {
      const auto row = row_of(i);
      const RowCopy copy = params.operands[row.is_b].copy;
      if (copy == RowCopy::kBulk) ptx::mbarrier_wait(&smem.row_full[i], parity);
      if (row.is_narrow) {
        NO_UNROLL
        for (int at = length + lane; at < padded; at += 32) {
          reinterpret_cast<uint16_t*>(row.smem)[at] = 0;
        }
        __syncwarp();
        smem.inverse_scale[i] = params.narrow.dtype == DType::kFloat16
                                    ? split_narrow_row<Half>(row.smem, length)
                                    : split_narrow_row<BFloat16>(row.smem, length);
        continue;
      }
      auto* numbers = reinterpret_cast<float*>(row.smem);
      const int swizzled = swizzle(copy, row.index);
      NO_UNROLL
      for (int at = length + lane; at < padded; at += 32) numbers[(at + row.shift) ^ swizzled] = 0;
      if (lane < row.shift) numbers[lane] = 0;
      __syncwarp();
      smem.inverse_scale[i] = split_row(numbers, length, swizzled / 4, row.shift);
    }
    __syncthreads();
    if (first == 0) ptx::cluster_wait();

    if (warp < warp_tiles && length > 0) {
      const int row = warp % tiles_down * kWarpTile, col = warp / tiles_down * kWarpTile;
      const Rows of_a{rows_smem + row * a.pitch, &smem.inverse_scale[row],
                      min(rows - row, kWarpTile), a.pitch};
      const Rows of_b{cols_smem + col * b.pitch, &smem.inverse_scale[rows + col],
                      min(cols - col, kWarpTile), b.pitch};
      constexpr bool kMixed = kNarrow != NarrowSide::kNone, kNarrowA = kNarrow == NarrowSide::kA;
      Accumulators acc;
      if (kMixed && (kNarrowA ? of_a : of_b).any_is_wide()) {
        const OperandParams& operand = kNarrowA ? a : b;
        const int64_t from =
            (kNarrowA ? from_a : from_b) + k + (kNarrowA ? row : col) * operand.row_stride;
        const NarrowRows narrow{static_cast<const uint16_t*>(operand.data) + from,
                                operand.row_stride, params.narrow.dtype == DType::kFloat16};
        acc = multiply<kNarrow, kMixed>(of_a, of_b, narrow, length, params.promotion);
      } else {
        acc = multiply<kNarrow, false>(of_a, of_b, {}, length, params.promotion);
      }
      const int g = lane / 4, q = lane % 4 * 2;
      const auto row_scale = [&](int i) { return of_a.inverse_scales[of_a.existing(i)]; };
      const auto col_scale = [&](int i) { return of_b.inverse_scales[of_b.existing(i)]; };
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const int of_tile = i * kMmaCols;
        if (of_tile >= of_b.count) continue;
        auto& sums = acc.total[i];
        descale_chunk<4>(sums, acc.low[i], {row_scale(g), row_scale(g + 8)},
                         {float2{col_scale(of_tile + q), col_scale(of_tile + q + 1)}},
                         params.promotion);
        const int tile = (col / kMmaCols + i) * tiles_down + row / kWarpTile;
        float* to = totals + rank * sums_count + tile * kMmaElements + lane * 4;
        if (rank == 0 && first > 0) {
          UNROLL
          for (int j = 0; j < 4; ++j) sums[j] = to[j] + sums[j];
        }
        if (cluster > 1) {
          ptx::st_async(to, sums, &smem.sums_full, 0);
        } else {
          *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
        }
      }
    }
    if (rank == 0 && cluster > 1) {
      ptx::mbarrier_wait_cluster(&smem.sums_full, parity);
      NO_UNROLL
      for (int e = threadIdx.x; e < sums_count; e += static_cast<int>(blockDim.x)) {
        float total = totals[e];
        NO_UNROLL
        for (int i = 1; i < in_round; ++i) total += totals[i * sums_count + e];
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
  if (cluster == 1) __syncthreads();
  if (rank == 0) store_tile<kNarrow != NarrowSide::kNone>(params, rows, cols, totals);
}

namespace {

// Of A, or else of B. `narrow` is null if no operand is a 16-bit one.
OperandParams operand_params(const Problem& p, const Narrow* narrow, bool is_a, int tile) {
  const Matrix matrix = is_a ? p.a : transposed(p.b);
  const int64_t count = is_a ? p.m : p.n;
  const bool is_narrow = narrow != nullptr && narrow->is_a == is_a;
  return {.data = matrix.data,
          .row_stride = matrix.row_stride,
          .k_stride = matrix.col_stride,
          .count = count,
          .first = 0,
          .tile = tile,
          .pitch = static_cast<int>(fp16x3_cluster_pitch(p.k, is_narrow)),
          .copy = fp16x3_cluster_copy(p, narrow, is_a, std::min<int64_t>(count, tile))};
}

bool run(const Problem& p, const Plan& plan, const Narrow* narrow, const Context& context) {
  const auto kernel = narrow == nullptr ? fp16x3_cluster_kernel<NarrowSide::kNone>
                      : narrow->is_a    ? fp16x3_cluster_kernel<NarrowSide::kA>
                                        : fp16x3_cluster_kernel<NarrowSide::kB>;
  Params params{};
  params.operands[0] = operand_params(p, narrow, /*is_a=*/true, plan.m);
  params.operands[1] = operand_params(p, narrow, /*is_a=*/false, plan.n);
  if (narrow != nullptr) params.narrow = *narrow;
  params.k = p.k;
  params.promotion = fp16x3::promotion(p.k);
  params.cluster = static_cast<int>(plan.k_splits);
  params.chunks = static_cast<int>(ceil_div(p.k, kChunk));
  params.identity_epilogue = p.epilogue.is_identity();
  params.p = p;
  allow_shared_memory(kernel, kMaxSharedMemory);
  const int64_t bytes =
      sizeof(Smem) + fp16x3_cluster_smem(p, narrow, plan.m, plan.n, plan.k_splits);
  const int threads = fp16x3_cluster_threads(plan.blocks, context.sms);
  const auto cluster = static_cast<unsigned>(params.cluster);
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    params.recomputed = recomputed;
    for_tile_grids(p, plan.m, plan.n, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
      params.batch = batch, params.operands[0].first = row, params.operands[1].first = col;
      grid.x *= cluster;
      launch_clusters_pdl(kernel, cluster, grid, threads, static_cast<size_t>(bytes), context,
                          params);
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
