// 02 tiled: a block shares its loads through shared memory.
//
// Idea:  A block computes a (kM, kN) tile of C. In each step it copies a (kM, kK) tile of A and a
//        (kK, kN) tile of B into shared memory, multiplies them, and moves on by kK along K. An
//        element of A is then read from global memory once for each tile of columns, not once for
//        each column: 2MNK / kM reads in all, and naive has 2MNK. With kPerThread = 4, a thread
//        computes 4 x 4 elements of C in registers, and uses each number that it reads from shared
//        memory four times. Tiles that reach beyond a matrix are padded with numbers that
//        change no sum (core/order_chunked.h), so that the inner loop has no branches.
// Limit: Shared-memory bandwidth: a thread reads 2 numbers for each FMA with kPerThread = 1, and
//        half a number with kPerThread = 4. No warp multiplies while its block loads.
// Next:  ../simt: larger register tiles, 128-bit loads, and loads that run while the block
//        multiplies. Read cp_async.cu, then tma_sm90.cu, small.cu and skinny_sm90.cu.
//
//   all threads   load A and B of a step -> shared memory
//                 __syncthreads(): both tiles are complete
//                 kK FMAs for each element of C, from shared memory
//                 __syncthreads(): no thread reads them any more; next step

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {
namespace {

// kTile rows and columns of C; kDepth: of K in a step.
template <int kTile, int kDepth, int kPerThread_, int kBlocksPerSm_>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPerThread = kPerThread_;  // rows, and columns, of C that a thread computes
  static constexpr int kThreads = (kM / kPerThread) * (kN / kPerThread);
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // that fit with float32's registers
  // Row pitches in shared memory. Rows are padded against bank conflicts, so that the elements of a
  // column are in different banks, by numbers that keep vectors of 4 floats aligned.
  static constexpr int kPitchA = kK + 4;
  static constexpr int kPitchB = kN + kPerThread;

  static_assert(kThreads % kTile == 0 && kThreads % kK == 0 && kTile * kK % kThreads == 0,
                "all threads load equally many elements, each in one row or one column of a tile");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

// Copies one operand's tiles into shared memory, step by step along K. `mn` counts rows of A, or
// columns of B; element (mn, k) of a tile goes to smem[mn * kPitchMN + k * kPitchK]. Adjacent
// threads read along whichever of MN and K has the smaller stride, so that loads are coalesced.
template <class Tile, int kPitchMN, int kPitchK, typename T>
class TileLoader {
 public:
  // `data` points at element (0, 0) of the first tile; mn_left of its rows or columns are in the
  // matrix.
  __device__ TileLoader(const T* data, int64_t mn_stride, int64_t k_stride, int mn_left)
      : mn_left_(mn_left), k_stride_(k_stride) {
    const bool k_major = k_stride < mn_stride;
    const int thread = threadIdx.x;
    mn_ = k_major ? thread / Tile::kK : thread % kMN;
    k_ = k_major ? thread % Tile::kK : thread / kMN;
    mn_step_ = k_major ? Tile::kThreads / Tile::kK : 0;
    k_step_ = k_major ? 0 : Tile::kThreads / kMN;
    data_ = data + mn_ * mn_stride + k_ * k_stride;
    step_ = mn_step_ * mn_stride + k_step_ * k_stride;
  }

  // Copies the next tile, with k_left elements along K in the matrix. Elements outside the
  // matrix become `pad`.
  __device__ void load(accumulator_t<T>* smem, int k_left, accumulator_t<T> pad) {
    UNROLL
    for (int i = 0; i < kMN * Tile::kK / Tile::kThreads; ++i) {
      const int mn = mn_ + i * mn_step_;
      const int k = k_ + i * k_step_;
      const bool inside = mn < mn_left_ && k < k_left;
      smem[mn * kPitchMN + k * kPitchK] = inside ? widen(data_[i * step_]) : pad;
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  static constexpr int kMN = Tile::kM;
  const T* data_;         // this thread's first element of the next tile
  int mn_, k_;            // its place in the tile
  int mn_step_, k_step_;  // from one of the thread's elements to the next; one of the two is 0
  int64_t step_;          // the same in global memory
  int mn_left_;
  int64_t k_stride_;
};

// A float64 accumulator takes two registers, so half as many blocks fit on an SM.
template <class Tile, typename T>
constexpr int kMinBlocks = Tile::kBlocksPerSm * 4 / static_cast<int>(sizeof(accumulator_t<T>));

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
  TileLoader<Tile, Tile::kPitchA, 1, T> load_a(a + tile.row * p.a.row_stride, p.a.row_stride,
                                               p.a.col_stride, rows_left);
  TileLoader<Tile, 1, Tile::kPitchB, T> load_b(b + tile.col * p.b.col_stride, p.b.col_stride,
                                               p.b.row_stride, cols_left);

  Acc total[kPer][kPer];  // the sum of finished chunks
  UNROLL
  for (int i = 0; i < kPer * kPer; ++i) total[i / kPer][i % kPer] = kAddIdentity<Acc>;

  int64_t k_left = p.k;
  do {  // one chunk of K at a time; K = 0 is one chunk with the sum 0
    Acc acc[kPer][kPer] = {};
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      load_a.load(&a_smem[0][0], chunk - k, kPadA<Acc>);
      load_b.load(&b_smem[0][0], chunk - k, kPadB<Acc>);
      __syncthreads();  // both tiles are complete

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
      __syncthreads();  // no thread reads them any more
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
