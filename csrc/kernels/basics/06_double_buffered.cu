// 06 double_buffered: a step is loaded while the one before is multiplied.
//
// Idea:  cp.async copies to shared memory while the thread goes on. There are two stages of tiles:
//        a block multiplies one while the copies of the next step fill the other. A copy has 4, 8
//        or 16 bytes and transposes nothing: a K-major operand is copied by elements, and 16-bit
//        floats, which have to be widened, are loaded as in 05. It pads with zeros, which are not
//        multiplied, since they would make +0 of a sum of -0.
// Limit: Instructions: addresses, copies and fragments beside the FMAs.
// Next:  07 tensor core: units that multiply whole tiles. For float32: ../simt/cp_async.cu.
//
//   all threads   cp.async of the first step -> stage 0
//                 wait for the thread's own copies
//                 __syncthreads(): the stage is complete, and no thread reads the other any more
//                 cp.async of the next step -> the other stage
//                 kK FMAs for each element of C, from this stage; next step

#include <cuda_pipeline_primitives.h>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/basics/register_tile.cuh"
#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"

namespace tiled::cuda {
namespace {

// kTile rows and columns of C, kPerThread of a thread; kDepth: of K in a step.
template <int kTile, int kDepth, int kPerThread>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPer = kPerThread, kThreads = (kM / kPer) * (kN / kPer);
  static constexpr int kBlocksPerSm = 2;
  // From one row to the next in shared memory, padded against bank conflicts.
  static constexpr int kPitch = kTile + 4;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

// Copies one operand's tiles into shared memory, step by step along K. `mn` counts rows of A, or
// columns of B, mn_left of them in the matrix; `data` points at element (0, 0) of the first tile.
// Adjacent threads read along the smaller stride, so that loads are coalesced.
template <class Tile, typename T, typename Acc = accumulator_t<T>>
class TileLoader {
 public:
  __device__ TileLoader(const T* data, int64_t mn_stride, int64_t k_stride, int mn_left)
      : vectorized_(is_vectorized<kVector>(data, mn_stride, k_stride, mn_left)),
        my_(data, mn_stride, k_stride, mn_left, vectorized_ ? kVector : 1) {}
  // Starts to copy the next tile: element (mn, k) to smem[k][mn], and 0 to those outside the
  // matrix, which has k_left more elements along K.
  __device__ void load(Acc (&smem)[Tile::kK][Tile::kPitch], int k_left) {
    const auto copy = [&]<int kCount>() {
      const T* from = my_.data;
      int mn = my_.mn, k = my_.k;
      _Pragma("unroll 4") for (int i = 0; i < Tile::kM * Tile::kK / Tile::kThreads / kCount; ++i) {
        const bool inside = mn < my_.mn_left && k < k_left;
        auto& to = reinterpret_cast<Vector<Acc, kCount>&>(smem[k][mn]);
        if constexpr (sizeof(T) == 2) {
          to = load_vector<kCount>(from, inside, 0);
        } else {
          ptx::cp_async_zfill<sizeof(to)>(ptx::shared_address(&to), from, inside ? sizeof(to) : 0);
        }
        from += my_.step, mn += my_.mn_step, k += my_.k_step;
      }
    };
    vectorized_ ? copy.template operator()<kVector>() : copy.template operator()<1>();
    my_.data += Tile::kK * my_.k_stride;
  }

 private:
  static constexpr int kVector = 16 / sizeof(T);
  bool vectorized_;
  ThreadVectors<Tile, T> my_;
};

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    double_buffered_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  using Acc = accumulator_t<T>;
  constexpr int kPer = Tile::kPer, kSums = kPer * kPer;
  __shared__ alignas(16) Acc a_smem[2][Tile::kK][Tile::kPitch];  // stages of (kK, kM)
  __shared__ alignas(16) Acc b_smem[2][Tile::kK][Tile::kPitch];  // stages of (kK, kN)
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int row = threadIdx.x / (Tile::kN / kPer) * 4;  // of this thread's first element
  const int col = threadIdx.x % (Tile::kN / kPer) * 4;
  const int rows_left = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols_left = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));
  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  TileLoader<Tile, T> load_a(a + tile.row * p.a.row_stride, p.a.row_stride, p.a.col_stride,
                             rows_left);
  TileLoader<Tile, T> load_b(b + tile.col * p.b.col_stride, p.b.col_stride, p.b.row_stride,
                             cols_left);

  Acc sums[kSums];  // row by row
  int64_t k_left = p.k;
  int stage = 0;
  const auto load = [&](int to, int64_t left) {
    const int k_left = static_cast<int>(min(left, int64_t{Tile::kK}));
    load_a.load(a_smem[to], k_left);
    load_b.load(b_smem[to], k_left);
    __pipeline_commit();
  };
  load(stage, k_left);
  do {  // one chunk of K at a time; K = 0 is one chunk with the sum 0
    UNROLL
    for (Acc& sum : sums) sum = 0;
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      __pipeline_wait_prior(0);
      __syncthreads();  // the stage is complete, and no thread reads the other any more
      load(stage ^ 1, k_left - k - Tile::kK);
      const auto step = [&](int kk) {
        Acc a_frag[kPer], b_frag[kPer];
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
    add_to_totals<Tile>(k_left == p.k, k_left == chunk, sums);
    k_left -= chunk;
  } while (k_left > 0);

  store_sums<T, Tile>(p, first_tile, row, col, rows_left, cols_left, sums);
}

}  // namespace

bool launch_double_buffered(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {  // float64 has registers for 4 x 4 elements
    using Own = std::conditional_t<std::is_same_v<T, double>, Tile<64, 16, 4>, Tile<128, 16, 8>>;
    launch_with_totals<T, Own>(double_buffered_kernel<T, Own>, p, context);
  });
  return true;
}

}  // namespace tiled::cuda
