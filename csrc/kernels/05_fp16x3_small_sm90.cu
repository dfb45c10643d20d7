// 05 fp16x3_small: everything in one launch.
//
// Idea:  a small product takes less time than the launches around it. So a block here does all
//        there is to do for its tile: it holds its rows of A and columns of B in registers while it
//        looks for their largest magnitudes, splits them into shared memory for all of K, which is
//        at most one chunk and short, multiplies, and computes marked elements again.
// Limit: every block of a row of tiles splits the same rows of A again, and those of a column of
//        tiles the same columns of B.
// Next:  a cluster that splits once for all of its blocks.
//
// "Lines" are A's rows and B's columns. They lie in shared memory one after another, first their hi
// halves, then their lo halves; in a line, pieces of eight halves change places by the line's
// number, so that eight lines' pieces at one K lie in different banks.

#include "device/halves.cuh"
#include "device/mma_sync.cuh"
#include "fp16x3.h"
#include "kernels/fp16x3_again.cuh"
#include "kernels/fp16x3_parts.h"
#include "kernels/fp16x3_range.cuh"
#include "launch.h"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = 64, kN = 32, kLines = kM + kN;
  static constexpr int kMaxK = 512, kStepK = 128;  // K is padded to whole steps
  static constexpr int kWarps = (kM / 16) * (kN / 8), kThreads = kWarps * 32;
  static_assert(kMaxK <= kChunk, "all of K is one chunk");
  static_assert(kStepK == kWarps * 8, "a step is eight of K a warp");
};

struct Smem {
  // Range, of a warp's part of a line.
  uint32_t largest[Tile::kWarps][Tile::kLines], smallest[Tile::kWarps][Tile::kLines];
  float undo[Tile::kLines];
  alignas(128) uint8_t halves[2 * Tile::kLines * Tile::kMaxK * 2];
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct Halves {
  uint8_t* data;
  int padded_k;

  __device__ uint8_t* hi(int line, int piece) const {
    return data + (line * (padded_k / 8) + (piece ^ line % 8)) * 16;
  }
  __device__ int lo() const { return Tile::kLines * padded_k * 2; }  // from a hi half
};

// Lines of one operand, of which `count` are in the matrix.
struct Lines {
  const float* data;
  int64_t stride, k_stride;
  int64_t count;
  int first;  // in shared memory
};

// Where K is contiguous: a warp takes a line, a lane four neighbours of each step.
template <int kCount, int kSteps>
__device__ void split_along_k(const Lines& lines, int k, Smem& smem, const Halves& halves) {
  constexpr int kPerWarp = kCount / Tile::kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float x[kPerWarp][kSteps][4];
  const float* from = lines.data + warp * lines.stride + lane * 4 * lines.k_stride;
  UNROLL
  for (int i = 0; i < kPerWarp; ++i, from += Tile::kWarps * lines.stride) {
    const int left = warp + i * Tile::kWarps < lines.count ? k - lane * 4 : 0;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = step * Tile::kStepK + j;
        x[i][step][j] = at < left ? from[at * lines.k_stride] : 0.0f;
      }
    }
  }
  UNROLL
  for (int i = 0; i < kPerWarp; ++i) {
    Range range;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      UNROLL
      for (int j = 0; j < 4; ++j) range.add(x[i][step][j]);
    }
    range.largest = __reduce_max_sync(~0u, range.largest);
    range.smallest = __reduce_min_sync(~0u, range.smallest);
    const float scale = fp16x3::scale(range.largest);
    const int line = lines.first + warp + i * Tile::kWarps;
    if (lane == 0) smem.undo[line] = range.undo_scale(scale);
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint2 hi, lo;
      device::split_two(x[i][step][0] * scale, x[i][step][1] * scale, hi.x, lo.x);
      device::split_two(x[i][step][2] * scale, x[i][step][3] * scale, hi.y, lo.y);
      uint8_t* to = halves.hi(line, step * (Tile::kStepK / 8) + lane / 2) + lane % 2 * 8;
      *reinterpret_cast<uint2*>(to) = hi;
      *reinterpret_cast<uint2*>(to + halves.lo()) = lo;
    }
  }
}

// Where lines are neighbours: a lane takes a line, a warp eight neighbours along K of each step.
template <int kCount, int kSteps>
__device__ void split_across_k(const Lines& lines, int k, Smem& smem, const Halves& halves) {
  constexpr int kPerLane = kCount / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float x[kPerLane][kSteps][8];
  UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const int line = lane + i * 32;
    const int left = line < lines.count ? k - warp * 8 : 0;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const float* from =
          lines.data + line * lines.stride + (step * Tile::kStepK + warp * 8) * lines.k_stride;
      UNROLL
      for (int j = 0; j < 8; ++j, from += lines.k_stride) {
        x[i][step][j] = step * Tile::kStepK + j < left ? *from : 0.0f;
      }
    }
  }
  UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    Range range;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      UNROLL
      for (int j = 0; j < 8; ++j) range.add(x[i][step][j]);
    }
    smem.largest[warp][lines.first + lane + i * 32] = range.largest;
    smem.smallest[warp][lines.first + lane + i * 32] = range.smallest;
  }
  __syncthreads();
  UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const int line = lines.first + lane + i * 32;
    Range range;
    NO_UNROLL
    for (int each = 0; each < Tile::kWarps; ++each) {
      range.add({smem.largest[each][line], smem.smallest[each][line]});
    }
    const float scale = fp16x3::scale(range.largest);
    if (warp == 0) smem.undo[line] = range.undo_scale(scale);
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint4 hi, lo;
      device::split_two(x[i][step][0] * scale, x[i][step][1] * scale, hi.x, lo.x);
      device::split_two(x[i][step][2] * scale, x[i][step][3] * scale, hi.y, lo.y);
      device::split_two(x[i][step][4] * scale, x[i][step][5] * scale, hi.z, lo.z);
      device::split_two(x[i][step][6] * scale, x[i][step][7] * scale, hi.w, lo.w);
      uint8_t* to = halves.hi(line, step * (Tile::kStepK / 8) + warp);
      *reinterpret_cast<uint4*>(to) = hi;
      *reinterpret_cast<uint4*>(to + halves.lo()) = lo;
    }
  }
}

template <int kCount, int kSteps>
__device__ void split_lines(const Lines& lines, int k, Smem& smem, const Halves& halves) {
  if (lines.k_stride < lines.stride) {  // the same for all threads
    split_along_k<kCount, kSteps>(lines, k, smem, halves);
  } else {
    split_across_k<kCount, kSteps>(lines, k, smem, halves);
  }
}

// kSteps of K, few where few will do: instructions that do nothing are fetched all the same.
template <int kSteps>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_small_kernel(const __grid_constant__ Problem p, int64_t first_tile,
                        unsigned long long* recomputed) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int k = static_cast<int>(p.k);
  const Halves halves{smem.halves, kSteps * Tile::kStepK};
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  split_lines<Tile::kM, kSteps>(
      {a + tile.row * p.a.row_stride, p.a.row_stride, p.a.col_stride, p.m - tile.row, 0}, k, smem,
      halves);
  split_lines<Tile::kN, kSteps>(
      {b + tile.col * p.b.col_stride, p.b.col_stride, p.b.row_stride, p.n - tile.col, Tile::kM}, k,
      smem, halves);
  __syncthreads();

  // A warp has 16 rows and 8 columns.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % (Tile::kM / 16) * 16, col = warp / (Tile::kM / 16) * 8;  // in the tile
  const int a_line = row + lane % 16, b_line = Tile::kM + col + lane % 8;
  const int promotion = fp16x3::promotion(k);
  float total[4] = {}, low[4] = {}, part[4] = {};
  _Pragma("unroll 2") for (int at = 0; at < k; at += 16) {
    uint32_t a_hi[4], a_lo[4], b_frag[4];
    const uint8_t* a_piece = halves.hi(a_line, at / 8 + lane / 16);
    device::load_matrices(a_hi, a_piece);
    device::load_matrices(a_lo, a_piece + halves.lo());
    // Both pieces of hi, then both of lo.
    device::load_matrices(b_frag,
                          halves.hi(b_line, at / 8 + lane / 8 % 2) + (lane < 16 ? 0 : halves.lo()));
    const uint32_t b_hi[] = {b_frag[0], b_frag[1]}, b_lo[] = {b_frag[2], b_frag[3]};
    device::multiply_add(part, a_hi, b_hi);
    device::multiply_add(low, a_lo, b_hi);
    device::multiply_add(low, a_hi, b_lo);
    if ((at + 16) % promotion == 0 || at + 16 >= k) {
      UNROLL
      for (int i = 0; i < 4; ++i) total[i] += part[i], part[i] = 0;
    }
  }

  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const int in_row = row + lane / 4 + i / 2 * 8, in_col = col + lane % 4 * 2 + i % 2;
    const int64_t c_row = tile.row + in_row, c_col = tile.col + in_col;
    if (c_row >= p.m || c_col >= p.n) continue;
    float sum =
        fp16x3::chunk_sum(total[i], low[i], smem.undo[in_row], smem.undo[Tile::kM + in_col]);
    if (isnan(sum)) sum = sum_again(p, tile.batch, c_row, c_col, recomputed);
    store_one(p, c_offset, c_row, c_col, sum);
  }
}

template <int kSteps>
void launch(const Problem& p, const Context& context) {
  constexpr size_t kSmemBytes =
      offsetof(Smem, halves) + 2 * Tile::kLines * kSteps * Tile::kStepK * 2;
  const auto kernel = fp16x3_small_kernel<kSteps>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes));
  const RecomputedCounter counter(context);
  for_grids(
      ceil_div(p.m, Tile::kM) * ceil_div(p.n, Tile::kN) * p.batch.count,
      [&](int64_t first, unsigned blocks) {
        kernel<<<blocks, Tile::kThreads, kSmemBytes, static_cast<cudaStream_t>(context.stream)>>>(
            p, first, counter.on_gpu());
      });
  counter.read();
}

}  // namespace

void launch_fp16x3_small(const Problem& p, const Context& context) {
  switch (ceil_div(p.k, Tile::kStepK)) {
    case 1: return launch<1>(p, context);
    case 2: return launch<2>(p, context);
    default: return launch<4>(p, context);
  }
}

}  // namespace tiled::cuda
