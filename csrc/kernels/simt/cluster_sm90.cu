// simt_cluster: a chunk of a small tile in shared memory, and a cluster for the chunks of a tile.
//
// Idea:  A product with a short side or few elements is latency-bound: it waits for memory, and for
//        a chain of 1024 dependent FMAs, which takes 2.3 us. So tiles are small, to be on many SMs,
//        and a thread has one element. A block requests its tile's operand rows for a whole chunk
//        at once, in any layout and at any alignment, and multiplies the first half while the
//        second is on its way. The blocks of a cluster sum different chunks of a tile, and the
//        first of them adds the chunk sums in order. Where tiles are many, a block sums all chunks
//        itself.
// Limit: A chain's FMA takes some six cycles, not four: a thread reads two vectors for four. Where
//        tiles are many, the instructions that copy elements.
// Next:  several elements a thread, as simt_cp_async and simt_tma have them.
//
//   all threads          cp.async of half a chunk, commit                            (twice)
//                        wait for half a chunk, __syncthreads, multiply it           (twice)
//   threads              store their chunk sums in the shared memory of the first block
//   the cluster          barrier.cluster; the first block adds the chunk sums in order
//
// The kernel sees a product from the side of its longer operand, whichever of A and B that is:
// `rows` are along C's shorter side, `cols` along its longer one. The instructions come from
// memory, too, so there are few: the kernel is no template.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/simt/cluster_mainloop.cuh"
#include "kernels/simt/plan.h"
#include "ptx/cluster.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_cluster {

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
    // Beyond K there are numbers whose product is -0, which changes no sum.
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
    if (multiplies && length > 0) *ptx::map_shared_rank(&sums[round][rank][thread], 0) = sum;
    // The first block adds a round's sums while the others store those of the next round elsewhere.
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
