// The chunked order of a grouped product: float32 and float64, groups along any side, any strides.
//
// Idea:  A block computes a tile as 06_double_buffered does: cp.async fills one stage while the
//        other is multiplied. It takes from the list of the groups' tiles, or from the ends of a
//        few groups, where the tile begins and ends, so no tile has rows of two groups, and none
//        has k of two. A group along K begins with a chunk of its own.
// Limit: instructions beside the FMAs, as in 06_double_buffered.
// Next:  the main loops of simt_tma and of the f64 family.
//
//   all threads   cp.async of the first step -> stage 0
//                 wait for the thread's own copies
//                 __syncthreads(): the stage is complete, and no thread reads the other any more
//                 cp.async of the next step -> the other stage
//                 kK FMAs for each element of C, from this stage; next step

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/basics/register_tile.cuh"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/grouped/work_tile.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

// kTile rows and columns of C, kPerThread of a thread.
template <int kTile, int kPerThread>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = 16;
  static constexpr int kPer = kPerThread, kThreads = (kM / kPer) * (kN / kPer);
  static constexpr int kBlocksPerSm = 2;
  // From one row to the next in shared memory, padded against bank conflicts.
  static constexpr int kPitch = kTile + 4;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    grouped_chunked_kernel(const __grid_constant__ Problem p,
                           const __grid_constant__ GroupTiles tiles, int64_t most_k,
                           int64_t first_tile) {
  constexpr int kPer = Tile::kPer;
  __shared__ alignas(16) T a_smem[2][Tile::kK][Tile::kPitch];  // stages of (kK, kM)
  __shared__ alignas(16) T b_smem[2][Tile::kK][Tile::kPitch];  // stages of (kK, kN)
  __shared__ GroupedWorkTile tile;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();  // the list is there, and the operands
  if (threadIdx.x == 0) tile = locate_grouped<Tile>(p, tiles, first_tile + blockIdx.x);
  __syncthreads();
  if (tile.rows == 0 || tile.cols == 0 || tile.k > most_k) return;
  const int row = threadIdx.x / (Tile::kN / kPer) * 4;  // of this thread's first element
  const int col = threadIdx.x % (Tile::kN / kPer) * 4;
  const auto loader = [](const T* data, int64_t mn_stride, int64_t k_stride, int mn_left) {
    const bool vectorized = is_vectorized<16 / sizeof(T)>(data, mn_stride, k_stride, mn_left);
    return CpAsyncLoader<T, Tile::kM, Tile::kPitch, Tile::kK, Tile::kThreads>(
        data, mn_stride, k_stride, vectorized, mn_left, static_cast<int>(threadIdx.x));
  };
  auto load_a =
      loader(static_cast<const T*>(p.a.data) + tile.a, p.a.row_stride, p.a.col_stride, tile.rows);
  auto load_b =
      loader(static_cast<const T*>(p.b.data) + tile.b, p.b.col_stride, p.b.row_stride, tile.cols);

  T sums[kPer * kPer];  // row by row
  int64_t k_left = tile.k;
  bool is_first = true;
  int stage = 0;
  const auto load = [&](int to, int64_t left) {
    load_a.load(a_smem[to], left);
    load_b.load(b_smem[to], left);
    __pipeline_commit();
  };
  load(stage, k_left);
  do {  // one chunk of K at a time; K = 0 is one chunk with the sum 0
    UNROLL
    for (T& sum : sums) sum = 0;
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      __pipeline_wait_prior(0);
      __syncthreads();  // the stage is complete, and no thread reads the other any more
      if (k_left - k > Tile::kK) load(stage ^ 1, k_left - k - Tile::kK);
      const auto step = [&](int kk) {
        T a_frag[kPer], b_frag[kPer];
        UNROLL
        for (int i = 0; i < kPer; ++i) {
          a_frag[i] = a_smem[stage][kk][row + nth<Tile>(i)];
          b_frag[i] = b_smem[stage][kk][col + nth<Tile>(i)];
        }
        multiply(a_frag, b_frag, sums);
      };
      if (chunk - k >= Tile::kK) {
        UNROLL
        for (int kk = 0; kk < Tile::kK; ++kk) step(kk);
      } else {
        NO_UNROLL
        for (int kk = 0; kk < chunk - k; ++kk) step(kk);
      }
      stage ^= 1;
    }
    add_to_totals<Tile>(is_first, k_left == chunk, sums);
    k_left -= chunk, is_first = false;
  } while (k_left > 0);

  Problem own{.dtype = p.dtype, .out_dtype = p.out_dtype};
  own.c = {.data = static_cast<T*>(p.c.data) + tile.c,
           .row_stride = p.c.row_stride,
           .col_stride = p.c.col_stride};
  if (p.epilogue.bias != nullptr && tile.has_group) {
    own.epilogue.bias = static_cast<const T*>(p.epilogue.bias) + tile.bias;
    own.epilogue.bias_stride = p.epilogue.bias_stride;
  }
  // The code of 4 elements serves all: registers have no index, so the others move up.
  NO_UNROLL
  for (int first = 0; first < kPer * kPer; first += 4) {
    const int r = row + nth<Tile>(first / kPer), c = col + nth<Tile>(first % kPer);
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (r < tile.rows && c + j < tile.cols) store<T>(own, 0, r, c + j, sums[j]);
    }
    UNROLL
    for (int i = 0; i < kPer * kPer - 4; ++i) sums[i] = sums[i + 4];
  }
}

template <typename T, class Tile>
bool launch_tile(const Problem& p, const Context& context, int64_t most_k) {
  constexpr size_t kTotals = Tile::kM * Tile::kN * sizeof(T);  // of the chunks before
  const auto kernel = grouped_chunked_kernel<T, Tile>;
  const size_t smem_bytes = p.k > kChunk ? kTotals : 0;
  if (smem_bytes > 0) allow_shared_memory(kernel, kTotals);
  if (p.groups.side != GroupedSide::kK) most_k = p.k;  // all groups have the same K
  return with_group_tiles<Tile>(p, context, [&](const GroupTiles& tiles) {
    for_grids(most_grouped_tiles<Tile>(p, tiles), [&](int64_t first, unsigned blocks) {
      launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, p, tiles, most_k, first);
    });
  });
}

}  // namespace

bool launch_grouped_chunked(const Problem& p, const Context& context, int64_t most_k) {
  if (p.m == 0 || p.n == 0) return true;
  if (p.dtype == DType::kFloat64) return launch_tile<double, Tile<64, 4>>(p, context, most_k);
  return has_small_groups(p, 64) ? launch_tile<float, Tile<64, 4>>(p, context, most_k)
                                 : launch_tile<float, Tile<128, 8>>(p, context, most_k);
}

}  // namespace tiled::cuda
