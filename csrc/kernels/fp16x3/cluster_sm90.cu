// 07 fp16x3_cluster: a chunk a block, and all chunks of a tile in one cluster.
//
// Idea:  a product whose operands fit in the shared memory of all blocks at once takes little time
//        but what it waits: for memory, and for the chain of low products along a chunk. So each is
//        waited for once, everywhere at the same time. A block holds the lines of a tile, rows of A
//        and columns of B, for one chunk. A line comes by one bulk copy; a warp finds its largest
//        magnitude, splits it from registers and leaves its halves where it was. Some warps
//        multiply by mma.sync, and send their sums to the first block of the cluster, which adds
//        those of all chunks.
// Limit: the chain, 128 mma.sync one after another, while nothing is read; a line is read and split
//        again by every block that needs it. Lines must lie along K.
//
// What a block runs comes from memory, too, so it is little: no template, no loop unrolled for less
// than it gains.

#include <algorithm>
#include <utility>

#include "core/epilogue.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/recompute.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMaxChunks = 8;  // as many blocks as any Hopper GPU takes in a cluster

// A warp multiplies a part of the tile, 16 rows by 8 columns.
struct Tile {
  int rows, cols;  // rows: 16 or 32
};
constexpr Tile kTiles[] = {{16, 8}, {16, 16}, {16, 24}, {16, 32}, {32, 8}, {32, 16}};
constexpr int kMaxLines = 48, kMaxParts = 4, kPartSums = 128;

// A chunk of a line: first as it comes, then for each four of x their hi halves, then their lo. The
// space between lines is for banks: multiply() reads two lines at a time.
struct Line {
  static constexpr int kStep = 128;  // that a warp splits at a time
  alignas(16) float x[kChunk + 16];
};

struct Smem {
  uint64_t has_come[kMaxLines], all_sent;
  float undo[kMaxLines];
  alignas(16) float sent[kMaxChunks][kMaxParts * kPartSums];  // in the first block: sums of chunks
  alignas(128) Line lines[kMaxLines];                         // of A, then of B; the last ones last

  static size_t bytes(const Tile& tile) {
    return sizeof(Smem) - (kMaxLines - tile.rows - tile.cols) * sizeof(Line);
  }
};
static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct Work {
  // What every block asks for at first lies together.
  struct Side {
    const float* data;
    int64_t stride, count;  // of A's rows, or B's columns
    int64_t first;          // of this launch
    int tile;               // how many a block has
  } sides[2];
  int k, promotion;
  unsigned chunks;
  int64_t batch;                   // the first of this launch
  bool stores_sums;                // as they are
  unsigned long long* recomputed;  // counts marked elements, or null
  Problem p;
};

// Splits a line; the whole warp. What is beyond its end is zero, to a multiple of Line::kStep.
__device__ float split(Line& line, int length) {
  constexpr int kFours = kChunk / Line::kStep;  // a lane
  float4* const fours = reinterpret_cast<float4*>(line.x) + threadIdx.x % 32;
  float x[kFours][4] = {};
  UNROLL
  for (int i = 0; i < kFours; ++i) {
    if (i * Line::kStep >= length) break;
    const float4 four = fours[i * 32];
    x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
  }
  uint32_t largest = 0;
  UNROLL
  for (int i = 0; i < kFours * 4; ++i) {
    largest = max(largest, fp16x3::magnitude_bits(x[i / 4][i % 4]));
  }
  largest = __reduce_max_sync(~0u, largest);
  const float scale = fp16x3::scale(largest);
  __half2 least = __float2half2_rn(1);
  UNROLL
  for (int i = 0; i < kFours; ++i) {
    if (i * Line::kStep >= length) break;
    uint4 halves;
    ptx::split_x2(x[i][0] * scale, x[i][1] * scale, halves.x, halves.z);
    ptx::split_x2(x[i][2] * scale, x[i][3] * scale, halves.y, halves.w);
    least = __hmin2(least, __habs2(reinterpret_cast<const __half2&>(halves.x)));
    least = __hmin2(least, __habs2(reinterpret_cast<const __half2&>(halves.y)));
    reinterpret_cast<uint4*>(fours)[i * 32] = halves;
  }
  // Only a line that has something as small as this, zeros among it, can be wide.
  const bool small = __hlt2_mask(least, __float2half2_rn(0x1p-12f)) != 0;
  Range range{largest, ~0u};
  if (__any_sync(~0u, small)) {
    UNROLL
    for (int i = 0; i < kFours * 4; ++i) range.add(x[i / 4][i % 4]);
    range.smallest = __reduce_min_sync(~0u, range.smallest);
  }
  return range.inverse_scale(scale);
}

struct Sums {
  float total[4], low[4];
};

// A part of the tile: 16 rows from `a` on by 8 columns from `b` on. A lane takes four neighbours
// along K where mma.sync would have it take two and two: a sum of 16 products does not depend on
// their order.
__device__ Sums multiply(const Line* a, const Line* b, int length, int promotion) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const uint4* from[] = {reinterpret_cast<const uint4*>(a[g].x) + q,
                         reinterpret_cast<const uint4*>(a[g + 8].x) + q,
                         reinterpret_cast<const uint4*>(b[g].x) + q};
  struct Halves {
    uint4 of[2][3];  // of 32 of K
  };
  auto read = [&](int k) {
    Halves halves;
    UNROLL
    for (int i = 0; i < 6; ++i) halves.of[i / 3][i % 3] = from[i % 3][k / 4 + i / 3 * 4];
    return halves;
  };
  Sums sums{};
  auto add = [&](const Halves& halves) {
    float part[4] = {};
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto& [upper, lower, cols] = halves.of[i];
      const uint32_t a_hi[] = {upper.x, lower.x, upper.y, lower.y};
      const uint32_t a_lo[] = {upper.z, lower.z, upper.w, lower.w};
      const uint32_t b_hi[] = {cols.x, cols.y}, b_lo[] = {cols.z, cols.w};
      ptx::mma_m16n8k16(sums.low, a_lo, b_hi);
      ptx::mma_m16n8k16(part, a_hi, b_hi);
      ptx::mma_m16n8k16(sums.low, a_hi, b_lo);
      if (i == 1 || promotion == 16) {
        UNROLL
        for (int j = 0; j < 4; ++j) sums.total[j] += part[j], part[j] = 0;
      }
    }
  };
  Halves even = read(0);
  NO_UNROLL
  for (int left = length; left > 0; left -= 64) {
    const Halves odd = read(32);
    add(even);
    UNROLL
    for (int i = 0; i < 3; ++i) from[i] += left > 64 ? 16 : 0;  // at the end, the same again
    even = read(0);
    add(odd);
  }
  return sums;
}

// batch_offset(), once in the code.
template <class Void>
__device__ __noinline__ int64_t offset(const Problem& p, const MatrixOf<Void>& matrix,
                                       int64_t index) {
  return batch_offset(p.batch, matrix, index);
}

__global__ void __launch_bounds__(kThreads, 1)
    fp16x3_cluster_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  ptx::pdl_launch_dependents();
  const auto& [a, b] = work.sides;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the compiler sees that it is one
  const unsigned chunk = ptx::cluster_rank();
  const int length = min(work.k - static_cast<int>(chunk) * kChunk, kChunk);
  const int padded = (length + Line::kStep - 1) / Line::kStep * Line::kStep;
  const int parts = a.tile / 16 * (b.tile / 8);
  const int64_t matrix = work.batch + blockIdx.z;
  const int64_t first_row = a.first + int64_t{blockIdx.y} * a.tile;
  const int64_t first_col = b.first + int64_t{ptx::cluster_index()} * b.tile;

  // Calls f with this warp's lines, and what they are in A or B, or -1 where there is none.
  auto for_lines = [&](auto&& f) {
    NO_UNROLL
    for (int i = warp; i < a.tile + b.tile; i += kWarps) {
      const bool is_b = i >= a.tile;
      const int64_t line = is_b ? first_col + i - a.tile : first_row + i;
      f(i, is_b, line < work.sides[is_b].count ? line : -1);
    }
  };
  if (lane == 0) {
    UNROLL
    for (int i = 0; i < kMaxLines; i += kWarps) ptx::mbarrier_init(&smem.has_come[warp + i], 1);
    if (warp == 0) ptx::mbarrier_init(&smem.all_sent, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::pdl_wait();
  if (lane == 0) {
    for_lines([&](int i, bool is_b, int64_t line) {
      if (line < 0) return;
      const auto& side = work.sides[is_b];
      const float* from = side.data + line * side.stride + chunk * kChunk;
      if (work.p.batch.rank != 0) from += offset(work.p, is_b ? work.p.b : work.p.a, matrix);
      ptx::arrive_expect_tx(&smem.has_come[i], length * 4);
      ptx::bulk_load(smem.lines[i].x, from, length * 4, &smem.has_come[i]);
    });
    if (warp == 0) {
      const int bytes = static_cast<int>(work.chunks * parts * kPartSums * sizeof(float));
      ptx::arrive_expect_tx(&smem.all_sent, bytes);
    }
  }
  __syncwarp();
  ptx::cluster_arrive();
  for_lines([&](int i, bool, int64_t line) {
    float undo = 1;
    if (line >= 0) {
      NO_UNROLL
      for (int at = length + lane; at < padded; at += 32) smem.lines[i].x[at] = 0;
      ptx::mbarrier_wait(&smem.has_come[i], 0);
      __syncwarp();  // zeros, too
      undo = split(smem.lines[i], length);
    }
    smem.undo[i] = undo;  // where there is no line, its halves are anything, and concern no others
  });
  __syncthreads();
  ptx::cluster_wait();

  auto row_of = [&](int part) { return a.tile == 32 ? part % 2 * 16 : 0; };
  auto col_of = [&](int part) { return (a.tile == 32 ? part / 2 : part) * 8; };
  if (warp < parts) {
    const int row = row_of(warp), col = a.tile + col_of(warp);
    Sums sums = multiply(&smem.lines[row], &smem.lines[col], length, work.promotion);
    const float* undo_a = &smem.undo[row + lane / 4];
    const float* undo_b = &smem.undo[col + lane % 4 * 2];
    finish_chunk<4>(sums.total, sums.low, {undo_a[0], undo_a[8]}, {float2{undo_b[0], undo_b[1]}});
    float* to = &smem.sent[chunk][threadIdx.x * 4];
    const auto& [x, y, z, w] = sums.total;
    if (work.chunks > 1) {
      ptx::st_async(to, sums.total, &smem.all_sent, 0);
    } else {
      *reinterpret_cast<float4*>(to) = {x, y, z, w};
    }
  }
  if (work.chunks == 1) __syncthreads();
  if (chunk != 0 || warp >= parts * (kPartSums / 32)) return;

  if (work.chunks > 1) ptx::mbarrier_wait_cluster(&smem.all_sent, 0);
  // Which of its part's sums this thread adds, by how mma.sync spreads them over lanes.
  const int part = warp / (kPartSums / 32), index = threadIdx.x % kPartSums;
  const int64_t row = first_row + row_of(part) + index / 16 + index % 4 / 2 * 8;
  const int64_t col = first_col + col_of(part) + index % 16 / 4 * 2 + index % 2;
  const bool exists = row < a.count && col < b.count;
  float sum = kAddIdentity<float>;
  NO_UNROLL
  for (unsigned i = 0; exists && i < work.chunks; ++i) sum += smem.sent[i][threadIdx.x];
  const Problem& p = work.p;
  const bool marked = exists && isnan(sum);
  if (__any_sync(~0u, marked)) {
    const float again = sum_if_marked(p, marked, matrix, row, col, work.recomputed);
    if (marked) sum = again;
  }
  if (!exists) return;
  const int64_t c_offset = p.batch.rank != 0 ? offset(p, p.c, matrix) : 0;
  if (work.stores_sums) {
    static_cast<float*>(p.c.data)[c_offset + row * p.c.row_stride + col * p.c.col_stride] = sum;
  } else {
    store_one(p, c_offset, row, col, sum);
  }
}

// The tile that takes the fewest rounds of blocks, and then has the fewest lines.
Tile tile_for(const Problem& p, const Context& context) {
  const int64_t chunks = ceil_div(p.k, kChunk);
  // A cluster has all of its blocks in one of the GPU's parts, where some room is left over: for 3
  // to 8 of them 9 to 23 % of an H200, by cudaOccupancyMaxActiveClusters.
  const int64_t room = chunks <= 2 ? context.sms : context.sms * 3 / 4;
  const int64_t at_once = std::max<int64_t>(room / chunks, 1);
  return *std::ranges::min_element(kTiles, {}, [&](const Tile& tile) {
    constexpr int64_t kRound = 150;  // what a round takes besides, in lines
    const int64_t tiles = count_tiles(p, tile.rows, tile.cols);
    const int64_t lines = std::min<int64_t>(p.m, tile.rows) + std::min<int64_t>(p.n, tile.cols);
    return ceil_div(tiles, at_once) * (kRound + lines);
  });
}

}  // namespace

bool launch_fp16x3_cluster(const Problem& p, const Plan&, const Context& context) {
  const Tile tile = tile_for(p, context);
  Work work{};
  work.sides[0] = {static_cast<const float*>(p.a.data), p.a.row_stride, p.m, 0, tile.rows};
  work.sides[1] = {static_cast<const float*>(p.b.data), p.b.col_stride, p.n, 0, tile.cols};
  work.k = static_cast<int>(p.k);
  work.promotion = fp16x3::promotion(p.k);
  work.chunks = static_cast<unsigned>(ceil_div(p.k, kChunk));
  work.stores_sums = p.epilogue.is_identity();
  work.p = p;
  const RecomputedCounter counter(context);
  work.recomputed = counter.on_gpu();
  allow_shared_memory(fp16x3_cluster_kernel, sizeof(Smem));

  for_tile_grids(p, tile.rows, tile.cols, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    work.batch = batch, work.sides[0].first = row, work.sides[1].first = col;
    grid.x *= work.chunks;
    launch_clusters_pdl(fp16x3_cluster_kernel, work.chunks, grid, kThreads, Smem::bytes(tile),
                        context, work);
  });
  counter.read();
  return true;
}

}  // namespace tiled::cuda
