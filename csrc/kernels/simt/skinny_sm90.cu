// 11 simt_skinny: the long operand comes once, as fast as memory gives it.
//
// Idea:  where C has few rows, B is most of what there is to read, and multiply-adds are few: all
//        that counts is that memory is never idle. (Where C has few columns, A and B change
//        places.) One thread asks the copy engine for kCols columns of w, the long operand, several
//        stages ahead and across units of work; its warp copies the rows of x, the short one, that
//        the stage meets. w is read as it lies, along K or along its columns. A unit is one chunk
//        of the sum, so that the few columns reach all multiprocessors; chunks' sums go to memory,
//        and another kernel adds them in order.
// Limit: memory, up to 8 rows. With 16, what shared memory gives to registers: half a number for
//        each multiply-add of 4 x 4 elements.
// Next:  16 rows at memory's rate; for more, simt_cp_async and simt_tma.
//
//   copiers       wait empty[s]   ask for w, copy x of a stage -> full[s]
//   multipliers   wait full[s]    multiply                     -> empty[s]

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/simt/lane_layout.cuh"
#include "kernels/simt/plan.h"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace {

// kThreadRows_ x kThreadCols_ elements of C a thread.
template <int kIndex, int kThreadRows_, int kThreadCols_, bool kAlongK_>
struct Tile {
  static constexpr int kRows = h200::kSimtSkinnyTiles[kIndex].m, kCols = h200::kSimtSkinnyCols,
                       kK = 32;
  static constexpr int kStages = 6,
                       kBlocks = h200::kSimtSkinnyTiles[kIndex].blocks;  // on a multiprocessor
  static constexpr int kThreadRows = kThreadRows_, kThreadCols = kThreadCols_;
  static constexpr bool kAlongK = kAlongK_;  // w's neighbours are, or else along its columns
  static constexpr int kRowLanes = kRows / kThreadRows, kColLanes = 32 / kRowLanes;  // of a warp
  static constexpr int kMultipliers = kCols / (kColLanes * kThreadCols) * 32;        // threads
  static constexpr int kThreads = kMultipliers + 32;
  static constexpr int kEach = kThreadCols < 4 ? kThreadCols : 4;  // neighbours of a thread
  static constexpr int kPitch = kK + 4;  // rows of x lie in different banks

  static_assert(kChunk % kK == 0);
};

template <class Tile>
struct Smem {
  alignas(1024) float w[Tile::kStages][Tile::kCols * Tile::kK];
  alignas(16) float x[Tile::kStages][Tile::kRows][Tile::kPitch];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

struct Work {
  Problem p;
  // row_stride: between w's columns, which are rows of A where w is A, or x's rows; col_stride: K.
  Matrix w, x;
  CUtensorMap map;  // of w
  bool w_is_a, x_by_fours;
  int64_t w_count, x_count;
  FastDivmod panels, col_tiles, chunks;  // panels of kRows rows of x
  int64_t units;
  float* sums;  // of chunks: (matrices, chunks, x_count, sums_stride()), where there are several

  HOST_DEVICE int64_t sums_stride() const { return int64_t{col_tiles.by} * h200::kSimtSkinnyCols; }
};

// A chunk of some columns of w, for a panel of x. Those of one part of w are neighbours.
template <class Tile>
struct Unit {
  int64_t matrix;
  unsigned chunk;
  int row, col;  // the first of x and of w
  int length;    // along K

  __device__ Unit(const Work& work, int64_t index) {
    const int64_t part = work.panels.divide(index), parts = work.col_tiles.divide(part);
    matrix = work.chunks.divide(parts);
    row = static_cast<int>(index - part * work.panels.by) * Tile::kRows;
    col = static_cast<int>(part - parts * work.col_tiles.by) * Tile::kCols;
    chunk = static_cast<unsigned>(parts - matrix * work.chunks.by);
    length = static_cast<int>(min(work.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}));
  }
};

// Copies the part of x that a stage meets, zeros beyond its end; a warp.
template <class Tile>
__device__ void copy_x(const Work& work, float (&to)[Tile::kRows][Tile::kPitch], const float* from,
                       int rows, int k_left) {
  const int lane = threadIdx.x % 32;
  if (work.x_by_fours) {
    constexpr int kFours = Tile::kK / 4, kApart = 32 / kFours;
    const int k = lane % kFours * 4, inside = max(min(k_left - k, 4), 0) * 4;
    UNROLL
    for (int i = 0; i < Tile::kRows; i += kApart) {
      const int row = i + lane / kFours;
      if (row >= Tile::kRows) break;
      const bool exists = row < rows && inside > 0;
      const float* at = from + row * work.x.row_stride + k;
      ptx::cp_async_16_zfill(&to[row][k], exists ? at : from, exists ? inside : 0);
    }
  } else {
    static_assert(Tile::kK == 32, "a lane has one of K");
    UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      const bool exists = row < rows && lane < k_left;
      const float* at = from + row * work.x.row_stride + lane * work.x.col_stride;
      ptx::cp_async_4_zfill(&to[row][lane], exists ? at : from, exists ? 4 : 0);
    }
  }
}

template <class Tile>
__device__ void copy_units(const Work& work, Smem<Tile>& smem) {
  const bool once = work.panels.by == 1;
  const uint64_t policy = ptx::policy_evict_first();
  ptx::PipelineState ring{.stages = Tile::kStages};
  for (int64_t index = blockIdx.x; index < work.units; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    const TmaCoords matrix(work.p.batch, work.w, unit.matrix);
    const auto first_k = static_cast<int>(unit.chunk * kChunk);
    const float* x = static_cast<const float*>(work.x.data) +
                     batch_offset(work.p.batch, work.x, unit.matrix) +
                     unit.row * work.x.row_stride + first_k * work.x.col_stride;
    const int rows = static_cast<int>(min(work.x_count - unit.row, int64_t{Tile::kRows}));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int k = 0; k < unit.length; k += Tile::kK, ring.advance()) {
      uint64_t* full = &smem.full[ring.stage];
      ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
      if (ptx::elect_one()) {
        const int near = Tile::kAlongK ? first_k + k : unit.col;
        const int far = Tile::kAlongK ? unit.col : first_k + k;
        ptx::arrive_expect_tx(full, sizeof smem.w[0]);
        ptx::tma_load_policy_if(once, smem.w[ring.stage], &work.map,
                                {near, far, matrix.at[0], matrix.at[1], matrix.at[2]}, full,
                                policy);
      }
      copy_x<Tile>(work, smem.x[ring.stage], x, rows, unit.length - k);
      ptx::cp_async_mbarrier_arrive_noinc(full);
      x += Tile::kK * work.x.col_stride;
    }
  }
}

// The elements of C that a thread has.
template <class Tile>
struct Place {
  int row, col;  // the first, in its unit
  __device__ Place() {
    const int lane = threadIdx.x % 32;
    const int first = threadIdx.x / 32 * (Tile::kColLanes * Tile::kThreadCols);
    const LanePlace<Tile::kRowLanes, Tile::kColLanes> at(lane);
    row = at.row;
    col = first + at.col * (Tile::kAlongK ? 1 : Tile::kEach);
  }
  __device__ int row_of(int i) const { return row + i * Tile::kRowLanes; }
  __device__ int col_of(int j) const {
    constexpr int kEach = Tile::kAlongK ? 1 : Tile::kEach;
    return col + j / kEach * (kEach * Tile::kColLanes) + j % kEach;
  }
};

template <class Tile>
using Sums = float[Tile::kThreadRows][Tile::kThreadCols];

// What a thread multiplies in four steps of K.
template <class Tile>
struct Fragments {
  static constexpr int kRows = Tile::kThreadRows, kCols = Tile::kThreadCols;
  float w[4][kCols], x[kRows][4];

  __device__ void read(const float* w_stage, const float (&x_stage)[Tile::kRows][Tile::kPitch],
                       const Place<Tile>& place, int k) {
    if constexpr (Tile::kAlongK) {
      UNROLL
      for (int j = 0; j < kCols; ++j) {  // lines of 128 bytes, whose pieces of 16 change places
        const int col = place.col_of(j);
        const auto four =
            *reinterpret_cast<const float4*>(w_stage + col * Tile::kK + (k ^ col % 8 * 4));
        w[0][j] = four.x, w[1][j] = four.y, w[2][j] = four.z, w[3][j] = four.w;
      }
    } else {
      using Vector =
          std::conditional_t<kCols == 1, float, std::conditional_t<kCols == 2, float2, float4>>;
      constexpr int kEach = sizeof(Vector) / sizeof(float);
      UNROLL
      for (int kk = 0; kk < 4; ++kk) {
        UNROLL
        for (int j = 0; j < kCols; j += kEach) {
          *reinterpret_cast<Vector*>(&w[kk][j]) =
              *reinterpret_cast<const Vector*>(w_stage + (k + kk) * Tile::kCols + place.col_of(j));
        }
      }
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      *reinterpret_cast<float4*>(x[i]) =
          *reinterpret_cast<const float4*>(&x_stage[place.row_of(i)][k]);
    }
  }

  // Adds the products of the first `count` steps.
  __device__ void multiply(int count, Sums<Tile>& sums) const {
    UNROLL
    for (int kk = 0; kk < 4; ++kk) {
      if (kk >= count) break;
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        UNROLL
        for (int j = 0; j < kCols; ++j) {  // to and fro: the last of w is the next's first
          const int to = i % 2 == 0 ? j : kCols - 1 - j;
          sums[i][to] = fused_multiply_add(w[kk][to], x[i][kk], sums[i][to]);
        }
      }
    }
  }
};

template <class Tile>
__device__ void store_sums(const Work& work, const Unit<Tile>& unit, const Place<Tile>& place,
                           const Sums<Tile>& sums) {
  const int64_t c_offset =
      work.sums == nullptr ? batch_offset(work.p.batch, work.p.c, unit.matrix) : 0;
  float* to =
      work.sums + (unit.matrix * work.chunks.by + unit.chunk) * work.x_count * work.sums_stride();
  UNROLL
  for (int i = 0; i < Tile::kThreadRows; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kThreadCols; ++j) {
      const int64_t row = unit.row + place.row_of(i), col = unit.col + place.col_of(j);
      if (row >= work.x_count || col >= work.w_count) continue;
      if (work.sums != nullptr) {
        to[row * work.sums_stride() + col] = sums[i][j];
      } else {
        store<float>(work.p, c_offset, work.w_is_a ? col : row, work.w_is_a ? row : col,
                     kAddIdentity<float> + sums[i][j]);
      }
    }
  }
}

template <class Tile>
__device__ void multiply_units(const Work& work, Smem<Tile>& smem) {
  const Place<Tile> place;
  ptx::PipelineState ring{.stages = Tile::kStages};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < work.units; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    Sums<Tile> sums = {};
    for (int left = unit.length; left > 0; left -= Tile::kK, ring.advance()) {
      const float* w = smem.w[ring.stage];
      const auto& x = smem.x[ring.stage];
      ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
      if (left >= Tile::kK) {
        Fragments<Tile> fragments[2];
        fragments[0].read(w, x, place, 0);
        UNROLL
        for (int k = 0; k < Tile::kK; k += 4) {
          if (k + 4 < Tile::kK) fragments[(k / 4 + 1) % 2].read(w, x, place, k + 4);
          fragments[k / 4 % 2].multiply(4, sums);
        }
      } else {
        NO_UNROLL
        for (int k = 0; k < left; k += 4) {
          Fragments<Tile> fragments;
          fragments.read(w, x, place, k);
          fragments.multiply(left - k, sums);
        }
      }
      ptx::consumer_release(&smem.empty[ring.stage]);
    }
    store_sums<Tile>(work, unit, place, sums);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    simt_skinny_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1 + 32, smem.empty,
                              Tile::kMultipliers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= Tile::kMultipliers) {
    copy_units<Tile>(work, smem);
  } else {
    multiply_units<Tile>(work, smem);
  }
}

// Adds the sums of chunks in order and stores them, an element a thread.
constexpr int kAddThreads = 128, kAddAhead = 8;

__global__ void __launch_bounds__(kAddThreads)
    simt_skinny_split_k_reduce_kernel(const __grid_constant__ Work work) {
  ptx::pdl_launch_dependents();
  const int64_t stride = work.sums_stride();
  const int64_t index = int64_t{blockIdx.x} * kAddThreads + threadIdx.x;
  const int64_t col = index % stride, row = index / stride % work.x_count;
  const int64_t matrix = index / stride / work.x_count;
  const bool exists = matrix < work.p.batch.count && col < work.w_count;
  const int64_t c_offset = exists ? batch_offset(work.p.batch, work.p.c, matrix) : 0;
  ptx::pdl_wait();
  if (!exists) return;
  const int64_t between = work.x_count * stride;
  const float* sums = work.sums + matrix * work.chunks.by * between + row * stride + col;
  float total = kAddIdentity<float>;
  NO_UNROLL
  for (unsigned first = 0; first < work.chunks.by; first += kAddAhead) {
    float of_chunk[kAddAhead];
    UNROLL
    for (unsigned i = 0; i < kAddAhead; ++i) {
      of_chunk[i] = __ldcg(sums + min(first + i, work.chunks.by - 1) * between);
    }
    UNROLL
    for (unsigned i = 0; i < kAddAhead; ++i) {
      if (first + i < work.chunks.by) total += of_chunk[i];
    }
  }
  store<float>(work.p, c_offset, work.w_is_a ? col : row, work.w_is_a ? row : col, total);
}

template <class Tile>
void run(Work& work, const Context& context) {
  static_assert(Tile::kBlocks * (sizeof(Smem<Tile>) + 1024) <= kMaxSharedMemory + 1024);
  const Problem& p = work.p;
  work.map = tensor_map(p.batch, work.w, work.w_count, p.k, Tile::kCols, Tile::kK,
                        Tile::kAlongK ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
  work.panels = FastDivmod::of(static_cast<uint32_t>(ceil_div(work.x_count, Tile::kRows)));
  work.units = int64_t{work.col_tiles.by} * work.panels.by * work.chunks.by * p.batch.count;
  const auto kernel = simt_skinny_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  const int64_t blocks = std::min(work.units, int64_t{Tile::kBlocks} * context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem<Tile>), context,
             work);
  if (work.chunks.by == 1) return;
  const int64_t elements = p.batch.count * work.x_count * work.sums_stride();
  launch_pdl(simt_skinny_split_k_reduce_kernel,
             static_cast<unsigned>(ceil_div(elements, kAddThreads)), kAddThreads, 0, context, work);
}

}  // namespace

bool launch_simt_skinny(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Work work{};
  work.p = p;
  work.w_is_a = p.m > p.n;
  work.w = work.w_is_a ? p.a : transposed(p.b);
  work.x = work.w_is_a ? transposed(p.b) : p.a;
  work.w_count = std::max(p.m, p.n), work.x_count = std::min(p.m, p.n);
  work.x_by_fours =
      p.k % 4 == 0 && is_vector_aligned(p.batch, work.x, work.x.col_stride, work.x.row_stride, 4);
  work.chunks = FastDivmod::of(static_cast<uint32_t>(ceil_div(p.k, kChunk)));
  work.col_tiles =
      FastDivmod::of(static_cast<uint32_t>(ceil_div(work.w_count, h200::kSimtSkinnyCols)));
  if (work.chunks.by > 1) {
    const int64_t sums = p.batch.count * work.chunks.by * work.x_count * work.sums_stride();
    work.sums = static_cast<float*>(context.allocate(sums * int64_t{sizeof(float)}));
    if (work.sums == nullptr) return false;
  }
  const bool along_k = work.w.col_stride < work.w.row_stride;
  return with_tile<std::size(h200::kSimtSkinnyTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr h200::SimtSkinnyTile kTile = h200::kSimtSkinnyTiles[kIndex];
    along_k ? run<Tile<kIndex, kTile.thread_m, kTile.thread_n, true>>(work, context)
            : run<Tile<kIndex, kTile.thread_m, kTile.thread_n, false>>(work, context);
    return true;
  });
}

}  // namespace tiled::cuda
