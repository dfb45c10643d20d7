// 04 tiled64, register_tile: a thread computes several elements of C in registers.
//
// Idea:  A thread has kPer x kPer elements of C. For each k it reads kPer numbers of A and kPer of
//        B from shared memory, and uses each kPer times: half a number for each FMA with 4 x 4
//        elements (tiled64), a quarter with 8 x 8 (register_tile). Its rows and columns come in
//        groups of 4, 128-bit vectors of B. With 8 adjacent columns, lanes would read every other
//        vector, and two lanes would share each bank; so the second group is half a tile away.
//        With the totals of finished chunks in registers, too, an SM would have room for one block
//        of 8 x 8 elements a thread; they wait in shared memory.
// Limit: Instructions that load, one for each element. No warp multiplies while its block loads.
// Next:  05 vectorized: four elements in one load.
//
//   all threads   load A and B of a step -> shared memory
//                 __syncthreads(): both tiles are complete
//                 kK FMAs for each element of C, from shared memory
//                 __syncthreads(): no thread reads them any more; next step

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/basics/register_tile.cuh"
#include "kernels/common/launch.h"

namespace tiled::cuda {
namespace {

// kTile rows and columns of C, kPerThread of a thread; kDepth: of K in a step.
template <int kTile, int kDepth, int kPerThread, int kBlocks>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPer = kPerThread, kThreads = (kM / kPer) * (kN / kPer);
  static constexpr int kBlocksPerSm = kBlocks;  // with float32's registers; float64 takes two each
  // From one row to the next in shared memory, padded against bank conflicts.
  static constexpr int kPitchA = kK + 4, kPitchB = kN + 4;
  static_assert(kThreads % kTile == 0 && kThreads % kK == 0 && kTile * kK % kThreads == 0);
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

// Copies one operand's tiles into shared memory, step by step along K. `mn` counts rows of A, or
// columns of B, mn_left of them in the matrix; `data` points at element (0, 0) of the first tile.
// Adjacent threads read along the smaller stride, so that loads are coalesced.
template <class Tile, int kPitchMN, int kPitchK, typename T>
class TileLoader {
 public:
  __device__ TileLoader(const T* data, int64_t mn_stride, int64_t k_stride, int mn_left)
      : k_stride_(k_stride), mn_left_(mn_left) {
    const int thread = threadIdx.x;
    const bool k_major = k_stride < mn_stride;
    mn_ = k_major ? thread / Tile::kK : thread % kMN;
    k_ = k_major ? thread % Tile::kK : thread / kMN;
    mn_step_ = k_major ? Tile::kThreads / Tile::kK : 0;
    k_step_ = k_major ? 0 : Tile::kThreads / kMN;
    data_ = data + mn_ * mn_stride + k_ * k_stride;
    step_ = mn_step_ * mn_stride + k_step_ * k_stride;
  }
  // Copies the next tile: element (mn, k) to smem[mn * kPitchMN + k * kPitchK], and `pad` to
  // those outside the matrix, which has k_left more elements along K.
  __device__ void load(accumulator_t<T>* smem, int k_left, accumulator_t<T> pad) {
    _Pragma("unroll 4") for (int i = 0; i < kMN * Tile::kK / Tile::kThreads; ++i) {
      const int mn = mn_ + i * mn_step_, k = k_ + i * k_step_;
      const bool inside = mn < mn_left_ && k < k_left;
      smem[mn * kPitchMN + k * kPitchK] = inside ? widen(data_[i * step_]) : pad;
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  static constexpr int kMN = Tile::kM;
  const T* data_;                  // this thread's first element of the next tile
  int mn_, k_, mn_step_, k_step_;  // its place in the tile, and from there to the thread's next one
  int64_t step_, k_stride_;        // the same in global memory; from one k to the next
  int mn_left_;
};

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm * 4 / sizeof(accumulator_t<T>))
    register_tile_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  using Acc = accumulator_t<T>;
  constexpr int kPer = Tile::kPer, kSums = kPer * kPer;
  __shared__ alignas(16) Acc a_smem[Tile::kM][Tile::kPitchA];  // (kM, kK)
  __shared__ alignas(16) Acc b_smem[Tile::kK][Tile::kPitchB];  // (kK, kN)

  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int row = threadIdx.x / (Tile::kN / kPer) * 4;  // of this thread's first element
  const int col = threadIdx.x % (Tile::kN / kPer) * 4;
  const int rows_left = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols_left = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));
  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  TileLoader<Tile, Tile::kPitchA, 1, T> load_a(a + tile.row * p.a.row_stride, p.a.row_stride,
                                               p.a.col_stride, rows_left);
  TileLoader<Tile, 1, Tile::kPitchB, T> load_b(b + tile.col * p.b.col_stride, p.b.col_stride,
                                               p.b.row_stride, cols_left);

  Acc sums[kSums];  // row by row
  int64_t k_left = p.k;
  do {  // one chunk of K at a time; K = 0 is one chunk with the sum 0
    UNROLL
    for (Acc& sum : sums) sum = 0;
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      load_a.load(&a_smem[0][0], chunk - k, kPadA<Acc>);
      load_b.load(&b_smem[0][0], chunk - k, kPadB<Acc>);
      __syncthreads();  // both tiles are complete

      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        Acc a_frag[kPer], b_frag[kPer];
        UNROLL
        for (int i = 0; i < kPer; ++i) {
          a_frag[i] = a_smem[row + nth<Tile>(i)][kk];
          b_frag[i] = b_smem[kk][col + nth<Tile>(i)];
        }
        multiply(a_frag, b_frag, sums);
      }
      __syncthreads();  // no thread reads them any more
    }
    add_to_totals<Tile>(k_left == p.k, k_left == chunk, sums);
    k_left -= chunk;
  } while (k_left > 0);

  store_sums<T, Tile>(p, first_tile, row, col, rows_left, cols_left, sums);
}

// float64 has registers for 4 x 4 elements alone.
using Tile64 = Tile<64, 16, 4, 3>;
template <typename T>
using TileOf = std::conditional_t<std::is_same_v<T, double>, Tile64, Tile<128, 16, 8, 2>>;

}  // namespace

bool launch_tiled64(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    launch_with_totals<T, Tile64>(register_tile_kernel<T, Tile64>, p, context);
  });
  return true;
}
bool launch_register_tile(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    launch_with_totals<T, TileOf<T>>(register_tile_kernel<T, TileOf<T>>, p, context);
  });
  return true;
}

}  // namespace tiled::cuda
