// 02 tiled: a block shares its loads through shared memory.
//
// Idea:  to compute a tile of C, a block copies a tile of A and a tile of B into shared memory,
//        multiplies them, and moves on along K. An element of A is then read from global memory
//        once for every tile of columns, not once for every column: 2MNK / kTile reads in all.
//        Edges are padded with zeros, so that the inner loop asks no questions.
// Limit: shared memory: one read of it for every multiply-add (kPerThread = 1), half a read with
//        4 x 4 elements a thread; and nobody multiplies while the block loads.
// Next:  bigger register tiles, 128-bit loads, copies that run while the block multiplies.

#include "element.h"
#include "epilogue.h"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

template <int kTile, int kDepth, int kPerThread_>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPerThread = kPerThread_;  // rows, and columns, of C a thread
  static constexpr int kThreads = (kM / kPerThread) * (kN / kPerThread);
  static constexpr int kPitch = kTile + kPerThread;  // a row of the padded tile in shared memory

  static_assert(kTile * kK % kThreads == 0, "every thread loads equally many elements of a tile");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of tiles");
};

// Copies (kTile outer, kK) elements to smem[k][outer], zeros beyond the matrix. `outer` is A's row
// or B's column. Neighbouring threads follow whichever direction lies closer in memory.
template <class Tile, typename T>
__device__ void load_tile(accumulator_t<T> (&smem)[Tile::kK][Tile::kPitch], const T* data,
                          int64_t outer_stride, int64_t k_stride, int outer_left, int k_left) {
  constexpr int kTile = Tile::kM;
  const bool along_k = k_stride < outer_stride;
  UNROLL
  for (int i = 0; i < kTile * Tile::kK / Tile::kThreads; ++i) {
    const int e = threadIdx.x + i * Tile::kThreads;
    const int k = along_k ? e % Tile::kK : e / kTile;
    const int outer = along_k ? e / Tile::kK : e % kTile;
    const bool inside = outer < outer_left && k < k_left;
    smem[k][outer] = inside ? widen(data[outer * outer_stride + k * k_stride]) : 0;
  }
}

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    tiled_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  using Acc = accumulator_t<T>;
  constexpr int kPer = Tile::kPerThread;
  __shared__ alignas(16) Acc a_smem[Tile::kK][Tile::kPitch];  // (kK, kM)
  __shared__ alignas(16) Acc b_smem[Tile::kK][Tile::kPitch];  // (kK, kN)

  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int row = threadIdx.x / (Tile::kN / kPer) * kPer;  // of this thread's elements in the tile
  const int col = threadIdx.x % (Tile::kN / kPer) * kPer;
  const int rows_left = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols_left = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));

  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  a += tile.row * p.a.row_stride;
  b += tile.col * p.b.col_stride;

  Acc total[kPer][kPer];  // of the finished chunks
  UNROLL for (auto& totals : total) UNROLL for (Acc& t : totals) t = kEmptyTotal<Acc>;

  int64_t k = 0;
  do {  // a chunk of the sum; one, of zeros, where K is 0
    Acc acc[kPer][kPer] = {};
    const int64_t chunk_end = min(k + kChunk, p.k);
    for (; k < chunk_end; k += Tile::kK) {
      const int k_left = static_cast<int>(min(chunk_end - k, int64_t{Tile::kK}));
      load_tile<Tile>(a_smem, a, p.a.row_stride, p.a.col_stride, rows_left, k_left);
      load_tile<Tile>(b_smem, b, p.b.col_stride, p.b.row_stride, cols_left, k_left);
      a += Tile::kK * p.a.col_stride;
      b += Tile::kK * p.b.row_stride;
      __syncthreads();  // the tiles are there

      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        Acc a_frag[kPer], b_frag[kPer];
        UNROLL for (int i = 0; i < kPer; ++i) a_frag[i] = a_smem[kk][row + i];
        UNROLL for (int j = 0; j < kPer; ++j) b_frag[j] = b_smem[kk][col + j];
        UNROLL for (int i = 0; i < kPer; ++i) UNROLL for (int j = 0; j < kPer; ++j) {
          acc[i][j] = multiply_add(a_frag[i], b_frag[j], acc[i][j]);
        }
      }
      __syncthreads();  // everybody has read them
    }
    UNROLL for (int i = 0; i < kPer; ++i) UNROLL for (int j = 0; j < kPer; ++j) {
      total[i][j] += acc[i][j];
    }
  } while (k < p.k);

  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  UNROLL for (int i = 0; i < kPer; ++i) UNROLL for (int j = 0; j < kPer; ++j) {
    if (row + i < rows_left && col + j < cols_left) {
      store<T>(p, c_offset, tile.row + row + i, tile.col + col + j, total[i][j]);
    }
  }
}

template <class Tile>
void launch(const Problem& p, const Context& context) {
  with_element_type(p.dtype,
                    [&]<typename T>() { launch_tiles<Tile>(tiled_kernel<T, Tile>, p, context); });
}

}  // namespace

void launch_tiled16(const Problem& p, const Context& context) { launch<Tile<16, 16, 1>>(p, context); }
void launch_tiled32(const Problem& p, const Context& context) { launch<Tile<32, 32, 1>>(p, context); }
void launch_tiled64(const Problem& p, const Context& context) { launch<Tile<64, 16, 4>>(p, context); }

}  // namespace tiled::cuda
