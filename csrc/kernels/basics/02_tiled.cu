// 02 tiled: a block shares its loads through shared memory.
//
// Idea:  to compute a tile of C, a block copies a tile of A and a tile of B into shared memory,
//        multiplies them, and moves on along K. An element of A is then read from global memory
//        once for every tile of columns, not once for every column: 2MNK / kTile reads in all.
//        Edges are padded (csrc/sum.h), so that the inner loop asks no questions.
// Limit: shared memory: one read of it for every multiply-add (kPerThread = 1), half a read with
//        4 x 4 elements a thread; and nobody multiplies while the block loads.
// Next:  bigger register tiles, 128-bit loads, copies that run while the block multiplies.

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {
namespace {

template <int kTile, int kDepth, int kPerThread_, int kBlocks_>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPerThread = kPerThread_;  // rows, and columns, of C a thread
  static constexpr int kThreads = (kM / kPerThread) * (kN / kPerThread);
  static constexpr int kBlocks = kBlocks_;  // on a multiprocessor, as registers allow, in fp32
  // Rows of the tiles in shared memory are longer than they need be, so that a column's elements
  // lie in different banks; vectors of four stay aligned.
  static constexpr int kPitchA = kK + 4;
  static constexpr int kPitchB = kN + kPerThread;

  static_assert(kThreads % kTile == 0 && kThreads % kK == 0 && kTile * kK % kThreads == 0,
                "every thread loads equally many elements, in a row or a column of the tile");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of tiles");
};

// Copies tiles of (kOuter, kK) elements along K into shared memory, where element (outer, k) lies
// at outer * kOuterPitch + k * kKPitch, `pad` beyond the matrix. `outer` is A's row or B's column.
// Neighbouring threads follow whichever direction lies closer in memory.
template <class Tile, int kOuterPitch, int kKPitch, typename T>
class Loader {
 public:
  // `data` points at the tile's first row (or column), of which outer_left are in the matrix.
  __device__ Loader(const T* data, int64_t outer_stride, int64_t k_stride, int outer_left)
      : outer_left_(outer_left), k_stride_(k_stride) {
    const bool along_k = k_stride < outer_stride;
    const int thread = threadIdx.x;
    outer_ = along_k ? thread / Tile::kK : thread % kOuter;
    k_ = along_k ? thread % Tile::kK : thread / kOuter;
    outer_step_ = along_k ? Tile::kThreads / Tile::kK : 0;
    k_step_ = along_k ? 0 : Tile::kThreads / kOuter;
    data_ = data + outer_ * outer_stride + k_ * k_stride;
    step_ = outer_step_ * outer_stride + k_step_ * k_stride;
  }

  // Copies the next tile, of which k_left columns (or rows) are in the matrix.
  __device__ void load(accumulator_t<T>* smem, int k_left, accumulator_t<T> pad) {
    UNROLL
    for (int i = 0; i < kOuter * Tile::kK / Tile::kThreads; ++i) {
      const int outer = outer_ + i * outer_step_;
      const int k = k_ + i * k_step_;
      const bool inside = outer < outer_left_ && k < k_left;
      smem[outer * kOuterPitch + k * kKPitch] = inside ? widen(data_[i * step_]) : pad;
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  static constexpr int kOuter = Tile::kM;
  const T* data_;            // this thread's first element of the next tile
  int outer_, k_;            // where it lies in the tile
  int outer_step_, k_step_;  // from one of the thread's elements to the next: one of them 0
  int64_t step_;             // the same, in memory
  int outer_left_;
  int64_t k_stride_;
};

template <class Tile, typename T>  // a double takes two registers
constexpr int kMinBlocks = Tile::kBlocks * 4 / static_cast<int>(sizeof(accumulator_t<T>));

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, kMinBlocks<Tile, T>)
    tiled_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  using Acc = accumulator_t<T>;
  constexpr int kPer = Tile::kPerThread;
  __shared__ alignas(16) Acc a_smem[Tile::kM][Tile::kPitchA];  // (kM, kK)
  __shared__ alignas(16) Acc b_smem[Tile::kK][Tile::kPitchB];  // (kK, kN)

  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int row = threadIdx.x / (Tile::kN / kPer) * kPer;  // of this thread's elements in the tile
  const int col = threadIdx.x % (Tile::kN / kPer) * kPer;
  const int rows_left = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols_left = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));

  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  Loader<Tile, Tile::kPitchA, 1, T> load_a(a + tile.row * p.a.row_stride, p.a.row_stride,
                                           p.a.col_stride, rows_left);
  Loader<Tile, 1, Tile::kPitchB, T> load_b(b + tile.col * p.b.col_stride, p.b.col_stride,
                                           p.b.row_stride, cols_left);

  Acc total[kPer][kPer];  // of the finished chunks
  UNROLL
  for (int i = 0; i < kPer * kPer; ++i) total[i / kPer][i % kPer] = kAddIdentity<Acc>;

  int64_t k_left = p.k;
  do {  // a chunk of the sum; one, of zeros, where K is 0
    Acc acc[kPer][kPer] = {};
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      load_a.load(&a_smem[0][0], chunk - k, kPadA<Acc>);
      load_b.load(&b_smem[0][0], chunk - k, kPadB<Acc>);
      __syncthreads();  // the tiles are there

      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        Acc a_frag[kPer], b_frag[kPer];
        UNROLL
        for (int i = 0; i < kPer; ++i) a_frag[i] = a_smem[row + i][kk];
        UNROLL
        for (int j = 0; j < kPer; ++j) b_frag[j] = b_smem[kk][col + j];
        UNROLL
        for (int i = 0; i < kPer; ++i) {
          UNROLL
          for (int j = 0; j < kPer; ++j) {
            acc[i][j] = fused_multiply_add(a_frag[i], b_frag[j], acc[i][j]);
          }
        }
      }
      __syncthreads();  // everybody has read them
    }
    UNROLL
    for (int i = 0; i < kPer; ++i) {
      UNROLL
      for (int j = 0; j < kPer; ++j) total[i][j] += acc[i][j];
    }
    k_left -= chunk;
  } while (k_left > 0);

  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  UNROLL
  for (int i = 0; i < kPer; ++i) {
    UNROLL
    for (int j = 0; j < kPer; ++j) {
      if (row + i < rows_left && col + j < cols_left) {
        store<T>(p, c_offset, tile.row + row + i, tile.col + col + j, total[i][j]);
      }
    }
  }
}

template <class Tile>
bool launch(const Problem& p, const Context& context) {
  with_element_type(p.dtype,
                    [&]<typename T>() { launch_tiles<Tile>(tiled_kernel<T, Tile>, p, context); });
  return true;
}

}  // namespace

bool launch_tiled16(const Problem& p, const Plan&, const Context& context) {
  return launch<Tile<16, 16, 1, 6>>(p, context);
}
bool launch_tiled32(const Problem& p, const Plan&, const Context& context) {
  return launch<Tile<32, 32, 1, 2>>(p, context);
}
bool launch_tiled64(const Problem& p, const Plan&, const Context& context) {
  return launch<Tile<64, 16, 4, 3>>(p, context);
}

}  // namespace tiled::cuda
