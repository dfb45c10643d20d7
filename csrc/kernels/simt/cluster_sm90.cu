// simt_cluster: a chunk of a small tile in shared memory, and a cluster for the chunks of a tile.
//
// Idea:  A product with a short side or few elements is latency-bound: it waits for memory, and for
//        a chain of 1024 dependent FMAs, which takes 2.3 us. So tiles are small, to be on many SMs,
//        and a thread has one element. A block requests its tile's operand rows for a whole chunk
//        at once, in any layout and at any alignment, and multiplies the first half while the
//        second is on its way. The blocks of a cluster sum different chunks of a tile, and the
//        first of them adds the chunk sums in order. If tiles are many, a block sums all chunks
//        itself.
// Limit: A chain's FMA takes some six cycles, not four: a thread reads two vectors for four. If
//        tiles are many, the instructions that copy elements.
// Next:  several elements a thread, as simt_cp_async and simt_tma have them.
//
//   all threads          cp.async of half a chunk, commit                            (twice)
//                        wait for half a chunk, __syncthreads, multiply it           (twice)
//   threads              wait until the first block has started; store their chunk sums in its
//                        shared memory
//   the cluster          barrier.cluster; the first block adds the chunk sums in order
//
// The kernel sees a product from the side of its longer operand, whichever of A and B that is:
// `rows` are along C's shorter side, `cols` along its longer one. The instructions come from
// memory, too, so there are few: the kernel is no template.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/simt/plan.h"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_cluster {

// Operand rows are rows of either operand along its side of C.

// --- Copies and products -------------------------------------------------------------------------

inline constexpr int kThreads = kSimtClusterThreads;
inline constexpr int kThreadsLog2 = std::countr_zero(static_cast<unsigned>(kThreads));
inline constexpr int kPart = kChunk / 2;  // of K: what is waited for at a time
inline constexpr int kStep = 8;           // of K: what a thread prefetches

// How threads copy an operand: row_lanes rows at a time, and kThreads / row_lanes places along K,
// each of `width` elements. Adjacent threads copy adjacent rows, or adjacent places. Warps request
// all rows of a place at about the same time, since they share cache lines.
struct CopyMode {
  int row_lanes_log2;
  bool rows_adjacent;
  int width;  // 1 or 4

  // For `count` rows of a tile.
  static CopyMode of(const Problem& p, const Matrix& matrix, int count) {
    const SimtClusterCopy copy = simt_cluster_copy(p, matrix, count);
    return {std::countr_zero(static_cast<unsigned>(copy.row_lanes)), copy.rows_adjacent,
            copy.width};
  }
};

// Begins to copy k of `count` operand rows, from `first` on and before `last`. In shared memory,
// element k of row i is at to[i * pitch + k]. The pitch is four more than a multiple of 32, so that
// eight threads that each read four k of a row of their own find them in different banks.
__device__ inline void copy_rows(const float* from, int64_t row_stride, int64_t k_stride, int count,
                                 CopyMode mode, int first, int last, float* to, int pitch) {
  constexpr int kAtOnce = 4;
  const int row_lanes = 1 << mode.row_lanes_log2, k_lanes = kThreads >> mode.row_lanes_log2;
  const int thread = threadIdx.x;
  int row, place;
  if (!mode.rows_adjacent) {
    row = thread >> (kThreadsLog2 - mode.row_lanes_log2), place = thread & (k_lanes - 1);
  } else if (row_lanes <= 8) {
    row = thread & (row_lanes - 1), place = thread >> mode.row_lanes_log2;
  } else {  // a warp has eight rows at four places in different banks
    const int warp = thread / 32;
    row = thread % 8 + warp % (row_lanes / 8) * 8;
    place = thread / 8 % 4 + (warp >> (mode.row_lanes_log2 - 3)) * 4;
  }
  const int first_k = first + place * mode.width, step = k_lanes * mode.width;
  const int64_t from_step = step * k_stride;
  const auto copy = [&](uint32_t target, const float* source) {
    if (mode.width == 4) {
      ptx::cp_async_16(target, source);
    } else {
      ptx::cp_async_4_zfill(target, source, 4);
    }
  };
  from += row * row_stride + first_k * k_stride;
  uint32_t to_row = ptx::shared_address(to + row * pitch + first_k);
  NO_UNROLL
  for (; row < count; row += row_lanes) {
    const float* source = from;
    uint32_t target = to_row;
    int k = first_k;
    NO_UNROLL
    for (; k + (kAtOnce - 1) * step < last; k += kAtOnce * step) {
      UNROLL
      for (int i = 0; i < kAtOnce; ++i, source += from_step) copy(target + i * step * 4, source);
      target += kAtOnce * step * 4;
    }
    NO_UNROLL
    for (; k < last; k += step, source += from_step, target += step * 4) copy(target, source);
    from += row_lanes * row_stride;
    to_row += row_lanes * pitch * 4;
  }
}

// Adds the products of k from `first` on and before `last`, both multiples of 2 * kStep. x and y
// are the element's operand rows.
__device__ inline float multiply_part(const float* x, const float* y, int first, int last,
                                      float acc) {
  constexpr int kVectors = kStep / 4;
  struct Operands {
    float4 x[kVectors], y[kVectors];
  } even, odd;
  const auto load = [&](Operands& to, int k) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      to.x[v] = *reinterpret_cast<const float4*>(&x[k + v * 4]);
      to.y[v] = *reinterpret_cast<const float4*>(&y[k + v * 4]);
    }
  };
  const auto multiply = [&](const Operands& of) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      acc = fused_multiply_add(of.x[v].x, of.y[v].x, acc);
      acc = fused_multiply_add(of.x[v].y, of.y[v].y, acc);
      acc = fused_multiply_add(of.x[v].z, of.y[v].z, acc);
      acc = fused_multiply_add(of.x[v].w, of.y[v].w, acc);
    }
  };
  load(even, first);
  NO_UNROLL
  for (int k = first; k < last; k += 2 * kStep) {
    load(odd, k + kStep);
    multiply(even);
    load(even, k + 2 * kStep < last ? k + 2 * kStep : first);  // or else not used
    multiply(odd);
  }
  return acc;
}

// --- The kernel ----------------------------------------------------------------------------------

// An operand as a block sees it: A's rows, or B's columns.
struct Operand {
  const float* data;
  int64_t row_stride, k_stride;
  int64_t count;  // of operand rows
  int tile;       // operand rows of a tile
  int in_smem;    // of those, the most that there are
  CopyMode copy;
};

struct Params {
  Problem p;
  Operand rows, cols;
  bool long_is_a, identity_epilogue;
  FastDivmod row_tiles, col_tiles;
  int64_t first_tile;  // of this launch
  int cols_log2;       // of a tile
  int pitch;           // of operand rows in shared memory
  int cluster, chunks;
};

// The chunk sums of a cluster's blocks, in its first block.
using ChunkSums = float[kSimtMaxCluster][kThreads];

__global__ void __launch_bounds__(kThreads, 3)
    simt_cluster_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) float smem[];
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int pitch = params.pitch, cluster = params.cluster, chunks = params.chunks;
  const auto rank = cluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  const int64_t tile = params.first_tile + (cluster == 1 ? blockIdx.x : ptx::cluster_index());
  const int64_t col_tile = params.row_tiles.divide(tile);  // over all matrices
  const int64_t matrix = params.col_tiles.divide(col_tile);
  const int64_t row = (tile - col_tile * params.row_tiles.by) * params.rows.tile;
  const int64_t col = (col_tile - matrix * params.col_tiles.by) * params.cols.tile;
  const BatchOffsets offsets(p, matrix);
  const int rows = static_cast<int>(min(params.rows.count - row, int64_t{params.rows.tile}));
  const int cols = static_cast<int>(min(params.cols.count - col, int64_t{params.cols.tile}));
  float *const rows_smem = smem, *const cols_smem = smem + params.rows.in_smem * pitch;
  auto* sums = reinterpret_cast<ChunkSums*>(cols_smem + params.cols.in_smem * pitch);

  const int thread = threadIdx.x;
  const int own_row = thread >> params.cols_log2, own_col = thread & (params.cols.tile - 1);
  const bool multiplies = own_row < rows && own_col < cols;
  const float *const x = rows_smem + own_row * pitch, *const y = cols_smem + own_col * pitch;
  float total = kAddIdentity<float>;
  if (cluster > 1) ptx::cluster_arrive();

  const float* from_rows =
      params.rows.data + (params.long_is_a ? offsets.b : offsets.a) + row * params.rows.row_stride;
  const float* from_cols =
      params.cols.data + (params.long_is_a ? offsets.a : offsets.b) + col * params.cols.row_stride;
  ptx::pdl_wait();
  NO_UNROLL
  for (int first = 0, round = 0; first < chunks; first += cluster, round ^= 1) {
    const int64_t k = int64_t{first + rank} * kChunk;
    const int length = static_cast<int>(max(min(p.k - k, int64_t{kChunk}), int64_t{0}));
    if (first > 0) __syncthreads();  // all threads have read the chunk before
    NO_UNROLL
    for (int part = 0; part < kChunk; part += kPart) {
      NO_UNROLL
      for (int side = 0; side < 2; ++side) {
        const Operand& operand = side == 0 ? params.rows : params.cols;
        copy_rows((side == 0 ? from_rows : from_cols) + k * operand.k_stride, operand.row_stride,
                  operand.k_stride, side == 0 ? rows : cols, operand.copy, part,
                  min(length, part + kPart), side == 0 ? rows_smem : cols_smem, pitch);
      }
      __pipeline_commit();
    }
    // Beyond K there are numbers with the product -0, which changes no sum.
    const int padded = (length + 2 * kStep - 1) / (2 * kStep) * (2 * kStep);
    if (thread < rows + cols) {
      const bool is_row = thread < rows;
      float* to = is_row ? rows_smem + thread * pitch : cols_smem + (thread - rows) * pitch;
      NO_UNROLL
      for (int at = length; at < padded; ++at) to[at] = is_row ? kPadA<float> : kPadB<float>;
    }
    float sum = 0;
    NO_UNROLL
    for (int part = 0; part < length; part += kPart) {
      if (part + kPart < length) {
        __pipeline_wait_prior(1);
      } else {
        __pipeline_wait_prior(0);
      }
      __syncthreads();
      if (multiplies) sum = multiply_part(x, y, part, min(padded, part + kPart), sum);
    }
    if (cluster == 1) {
      total += sum;
      continue;
    }
    if (first == 0) ptx::cluster_wait();  // the first block has started
    if (multiplies && length > 0) *ptx::map_shared_rank(&sums[round][rank][thread], 0) = sum;
    // The first block adds a round's sums while the others store the next round's elsewhere.
    ptx::cluster_sync();
    if (rank != 0 || !multiplies) continue;
    NO_UNROLL
    for (int i = 0; i < min(chunks - first, cluster); ++i) total += sums[round][i][thread];
  }
  if (rank != 0 || !multiplies) return;
  const int64_t c_row = params.long_is_a ? col + own_col : row + own_row;
  const int64_t c_col = params.long_is_a ? row + own_row : col + own_col;
  if (params.identity_epilogue) {
    static_cast<float*>(p.c.data)[offsets.c + c_row * p.c.row_stride + c_col * p.c.col_stride] =
        total;
  } else {
    store_noinline(p, offsets.c, c_row, c_col, total);
  }
}

namespace {

Operand operand(const Problem& p, const Matrix& matrix, int64_t count, int tile) {
  const auto in_smem = static_cast<int>(std::min<int64_t>(count, tile));
  return {.data = static_cast<const float*>(matrix.data),
          .row_stride = matrix.row_stride,
          .k_stride = matrix.col_stride,
          .count = count,
          .tile = tile,
          .in_smem = in_smem,
          .copy = CopyMode::of(p, matrix, in_smem)};
}

}  // namespace
}  // namespace simt_cluster

bool launch_simt_cluster(const Problem& p, const Plan& plan, const Context& context) {
  using namespace simt_cluster;
  if (count_tiles(p, 1, 1) == 0) return true;
  const LongAndShort sides = long_and_short(p);
  const h200::SimtClusterTile& tile = h200::kSimtClusterTiles[plan.tile];
  const auto cluster = static_cast<unsigned>(plan.k_splits);
  Params params{
      .p = p,
      .rows = operand(p, sides.short_operand, sides.short_count, tile.rows),
      .cols = operand(p, sides.long_operand, sides.long_count, tile.cols),
      .long_is_a = sides.long_is_a,
      .identity_epilogue = p.epilogue.is_identity(),
      .row_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(sides.short_count, tile.rows))),
      .col_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(sides.long_count, tile.cols))),
      .first_tile = 0,
      .cols_log2 = std::countr_zero(static_cast<unsigned>(tile.cols)),
      .pitch = static_cast<int>(simt_cluster_pitch(p.k)),
      .cluster = static_cast<int>(cluster),
      .chunks = static_cast<int>(ceil_div(p.k, kChunk)),
  };
  const auto bytes = static_cast<size_t>(simt_cluster_smem(p, tile, plan.k_splits));
  allow_shared_memory(simt_cluster_kernel, kMaxSharedMemory);
  const int64_t tiles = count_tiles(p, plan.m, plan.n);
  constexpr int64_t kMaxTiles = (int64_t{1} << 31) / kSimtMaxCluster - 1;  // of a grid
  for (int64_t first = 0; first < tiles; first += kMaxTiles) {
    params.first_tile = first;
    const auto count = static_cast<unsigned>(std::min(tiles - first, kMaxTiles));
    launch_clusters_pdl(simt_cluster_kernel, cluster, count * cluster, kThreads, bytes, context,
                        params);
  }
  return true;
}

}  // namespace tiled::cuda
