// simt_thin: a warp for a chunk of 32 columns, in any layout and at any alignment.
//
// Idea:  A product with a short side is either small, and waits for latency, or reads its long
//        operand once. So a lane has one column and all rows of a tile, a warp has one chunk of K
//        and needs no other warp, and loads by cp.async, elements if rows are not aligned, several
//        stages early. The warps of a block share a column group's chunks; the first of
//        them adds their sums in order. Columns of several matrices share a block.
// Limit: the chain of 1024 dependent FMAs; cp.async of elements, for a long operand that is large.
// Next:  simt_cluster, where all of a chunk is in flight.
//
//   a warp      cp.async stage i + 3, commit
//               wait for stage i, multiply it                (no barrier but __syncwarp)
//   the block   __syncthreads: chunk sums are in shared memory; the first warp of a group adds them

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <iterator>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/simt/plan.h"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_thin {

// The kernel sees a product from the side of its longer operand, whichever of A and B that is.
// `row` counts rows of the short operand, C's short side; `col` counts rows of the long operand,
// C's long side. If the long operand is A, that is C transposed.

// --- A warp's loads and products -----------------------------------------------------------------

inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kCols = 32;  // of a group: each lane has one
inline constexpr int kK = 32;     // of a stage
inline constexpr int kStages = 4;

// How a warp copies the long operand.
enum class Copy {
  kVectors,  // 128-bit vectors of K-major columns
  kKMajor,   // elements; adjacent lanes copy adjacent k
  kMnMajor,  // elements; adjacent lanes copy adjacent columns
};

// A warp's stage. The four k of unit u of a column are stored at unit u ^ column % 8, so that lanes
// that read one unit of eight columns find them in different banks.
template <int kRows>
struct Stage {
  alignas(128) float long_smem[kCols][kK];
  alignas(16) float short_smem[kRows][kK];
};

// A part of an operand that a warp goes through: `count` rows of it, from `at` on, one chunk long.
struct Part {
  const float* at;
  int64_t row_stride, k_stride;
  int count;
};

// Begins to copy a stage, of which `length` k are left.
template <int kRows>
__device__ void load_stage(Stage<kRows>& stage, Copy copy, const Part& columns, const Part& rows,
                           int length) {
  const int lane = threadIdx.x % 32;
  if (copy == Copy::kVectors) {
    const int k = lane % 8 * 4;
    NO_UNROLL
    for (int col = lane / 8; col < columns.count && k < length; col += 4) {
      ptx::cp_async_x4_zfill(ptx::shared_address(&stage.long_smem[col][k ^ col % 8 * 4]),
                             columns.at + col * columns.row_stride + k, min(length - k, 4) * 4);
    }
  } else {
    // Along K, a lane copies its k of all columns; along columns, its column of all k.
    const bool along_k = copy == Copy::kKMajor;
    const int count = along_k ? columns.count : min(length, kK);
    const int64_t stride = along_k ? columns.row_stride : columns.k_stride;
    const float* at = columns.at + lane * (along_k ? columns.k_stride : columns.row_stride);
    const uint32_t to = ptx::shared_address(stage.long_smem) + lane * (along_k ? 4 : kK * 4);
    const auto copy_x8 = [&](int first, int left) {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32_t offset = along_k ? (first + i) * (kK * 4) : (first + i) * 4;
        // The lane is k's place within the column, or the column; both are part of `to`.
        const uint32_t swizzle = (along_k ? i : lane % 8) * 16;
        if (i < left) ptx::cp_async_4_zfill((to + offset) ^ swizzle, at + i * stride, 4);
      }
      at += 8 * stride;
    };
    if (lane < (along_k ? length : columns.count)) {
      NO_UNROLL
      for (int first = 0; first < count; first += 8) {
        if (count - first >= 8) {
          copy_x8(first, 8);
        } else {
          copy_x8(first, count - first);
        }
      }
    }
  }
  if (lane < length) {
    const float* at = rows.at + lane * rows.k_stride;
    UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (row < rows.count) ptx::cp_async_4_zfill(&stage.short_smem[row][lane], at, 4);
      at += rows.row_stride;
    }
  }
}

// Adds the products of the first `count` of four k, for this lane's column.
template <int kRows>
__device__ void multiply_k4(const Stage<kRows>& stage, int k, int count, float (&acc)[kRows]) {
  const int lane = threadIdx.x % 32;
  const float4 x4 = *reinterpret_cast<const float4*>(&stage.long_smem[lane][k ^ lane % 8 * 4]);
  const float x[4] = {x4.x, x4.y, x4.z, x4.w};
  UNROLL
  for (int row = 0; row < kRows; ++row) {
    const float4 y4 = *reinterpret_cast<const float4*>(&stage.short_smem[row][k]);
    const float y[4] = {y4.x, y4.y, y4.z, y4.w};
    UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < count) acc[row] = fused_multiply_add(x[i], y[i], acc[row]);
    }
  }
}

// Sums a chunk of `length` for this lane's column and all rows. Columns and rows that do not exist
// have any sums.
template <int kRows>
__device__ void multiply_chunk(Stage<kRows> (&stages)[kStages], Copy copy, Part columns, Part rows,
                               int length, float (&acc)[kRows]) {
  int to_load = length;
  const auto load_next = [&](int stage) {
    if (to_load > 0) load_stage(stages[stage], copy, columns, rows, to_load);
    __pipeline_commit();
    columns.at += kK * columns.k_stride, rows.at += kK * rows.k_stride, to_load -= kK;
  };
  UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) load_next(stage);
  int own = 0;
  NO_UNROLL
  for (int left = length; left > 0; left -= kK, own = (own + 1) % kStages) {
    __pipeline_wait_prior(kStages - 2);
    __syncwarp();  // all lanes' copies have landed, and none reads the stage that is loaded next
    load_next((own + kStages - 1) % kStages);
    if (left >= kK) {
      UNROLL
      for (int k = 0; k < kK; k += 4) multiply_k4(stages[own], k, 4, acc);
    } else {
      NO_UNROLL
      for (int k = 0; k < left; k += 4) multiply_k4(stages[own], k, left - k, acc);
    }
  }
  __syncwarp();  // before the next chunk's copies
}

// --- The kernel ----------------------------------------------------------------------------------

template <int kRows>
struct Smem {
  Stage<kRows> stages[kWarps][kStages];
  float chunk_sums[kWarps][kRows][kCols];
};

// The kernel sees C with the long operand's side as its columns.
struct Params : LongAndShort {
  Problem p;
  Copy copy;
  FastDivmod row_tiles, col_groups;
  int64_t groups;   // of columns, over all row tiles and matrices
  int chunk_warps;  // that share a group: 1, 2, 4 or 8
  int64_t first_block;
};

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    simt_thin_kernel(const __grid_constant__ Params params) {
  static_assert(sizeof(Smem<kRows>) <= kMaxSharedMemory);
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = reinterpret_cast<Smem<kRows>&>(smem_bytes);
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunk_warp = warp % params.chunk_warps;
  const int64_t group =
      (params.first_block + blockIdx.x) * (kWarps / params.chunk_warps) + warp / params.chunk_warps;
  const bool exists = group < params.groups;
  const int64_t col_group = params.row_tiles.divide(group);  // over all matrices
  const int64_t matrix = params.col_groups.divide(col_group);
  const int64_t row = (group - col_group * params.row_tiles.by) * kRows;
  const int64_t col = (col_group - matrix * params.col_groups.by) * kCols;
  const auto part = [&](const Matrix& operand, int64_t first, int64_t count, int most) {
    const int64_t offset = exists ? batch_offset(p.batch, operand, matrix) : 0;
    return Part{.at = static_cast<const float*>(operand.data) + offset + first * operand.row_stride,
                .row_stride = operand.row_stride,
                .k_stride = operand.col_stride,
                .count = static_cast<int>(min(count - first, int64_t{most}))};
  };
  const Part columns = part(params.long_operand, col, params.long_count, kCols);
  const Part rows = part(params.short_operand, row, params.short_count, kRows);
  const int64_t chunks = ceil_div(p.k, kChunk);
  float total[kRows];
  UNROLL
  for (float& each : total) each = kAddIdentity<float>;

  ptx::pdl_wait();
  NO_UNROLL
  for (int64_t first = 0; first < chunks; first += params.chunk_warps) {
    float acc[kRows] = {};
    const int64_t k = (first + chunk_warp) * kChunk;
    if (exists && k < p.k) {
      Part own_columns = columns, own_rows = rows;
      own_columns.at += k * columns.k_stride, own_rows.at += k * rows.k_stride;
      multiply_chunk(smem.stages[warp], params.copy, own_columns, own_rows,
                     static_cast<int>(min(p.k - k, int64_t{kChunk})), acc);
    }
    if (params.chunk_warps == 1) {
      UNROLL
      for (int i = 0; i < kRows; ++i) total[i] += acc[i];
      break;
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) smem.chunk_sums[warp][i][lane] = acc[i];
    __syncthreads();
    if (chunk_warp == 0) {
      const int count = static_cast<int>(min(chunks - first, int64_t{params.chunk_warps}));
      NO_UNROLL
      for (int j = 0; j < count; ++j) {
        UNROLL
        for (int i = 0; i < kRows; ++i) total[i] += smem.chunk_sums[warp + j][i][lane];
      }
    }
    __syncthreads();
  }
  if (!exists || chunk_warp != 0 || lane >= columns.count) return;
  UNROLL
  for (int i = 0; i < kRows; ++i) smem.chunk_sums[warp][i][lane] = total[i];
  const int64_t c_offset = batch_offset(p.batch, p.c, matrix);
  NO_UNROLL
  for (int i = 0; i < rows.count; ++i) {  // the epilogue is compiled once for all rows
    store<float>(p, c_offset, params.long_is_a ? col + lane : row + i,
                 params.long_is_a ? row + i : col + lane, smem.chunk_sums[warp][i][lane]);
  }
}

namespace {

template <int kRows>
void run(Params& params, const Context& context) {
  const auto kernel = simt_thin_kernel<kRows>;
  allow_shared_memory(kernel, sizeof(Smem<kRows>));
  for_grids(ceil_div(params.groups * params.chunk_warps, kWarps),
            [&](int64_t first, unsigned blocks) {
              params.first_block = first;
              launch_pdl(kernel, blocks, kThreads, sizeof(Smem<kRows>), context, params);
            });
}

}  // namespace
}  // namespace simt_thin

bool launch_simt_thin(const Problem& p, const Plan& plan, const Context& context) {
  using namespace simt_thin;
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  params.p = p;
  static_cast<LongAndShort&>(params) = long_and_short(p);
  const Matrix& columns = params.long_operand;
  params.copy = is_vector_aligned(p.batch, columns, columns.col_stride, columns.row_stride, 4)
                    ? Copy::kVectors
                : columns.col_stride <= columns.row_stride ? Copy::kKMajor
                                                           : Copy::kMnMajor;
  params.chunk_warps = simt_thin_chunk_warps(p.k);
  return with_tile<std::size(h200::kSimtThinTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr int kRows = h200::kSimtThinTiles[kIndex].rows;
    params.row_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.short_count, kRows)));
    params.col_groups = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.long_count, kCols)));
    params.groups = int64_t{params.row_tiles.by} * params.col_groups.by * p.batch.count;
    run<kRows>(params, context);
    return true;
  });
}

}  // namespace tiled::cuda
