// 05 vectorized: four elements in one load.
//
// Idea:  A 128-bit load takes one instruction for 4 floats, 8 16-bit floats or 2 doubles. From
//        global memory it reads along the operand's contiguous side if its rows are aligned; if
//        not, the same loop loads single elements, for all threads of a block alike. A is
//        transposed on the way into shared memory, to (kK, kM) as B is (kK, kN), so that a thread
//        reads its fragments by 128-bit loads: four instructions for 64 FMAs.
// Limit: Latency: a block waits for memory in each step, and an SM has one other block.
// Next:  06 double buffered: a step is loaded while the one before is multiplied.
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
template <int kTile, int kDepth, int kPerThread>
struct Tile {
  static constexpr int kM = kTile, kN = kTile, kK = kDepth;
  static constexpr int kPer = kPerThread, kThreads = (kM / kPer) * (kN / kPer);
  static constexpr int kBlocksPerSm = 2;
  // From one row to the next in shared memory, padded against bank conflicts.
  static constexpr int kPitch = kTile + 4;
  static_assert(kThreads % kTile == 0 && kThreads % kK == 0 && kTile * kK % kThreads == 0);
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

// Copies one operand's tiles into shared memory, step by step along K. `mn` counts rows of A, or
// columns of B, mn_left of them in the matrix; `data` points at element (0, 0) of the first tile.
// Adjacent threads read along the smaller stride, so that loads are coalesced.
template <class Tile, typename T, typename Acc = accumulator_t<T>>
class TileLoader {
 public:
  __device__ TileLoader(const T* data, int64_t mn_stride, int64_t k_stride, int mn_left, int64_t k)
      : k_major_(k_stride < mn_stride),
        vectorized_(k_major_ ? is_vectorized<kVector>(data, k_stride, mn_stride, k)
                             : is_vectorized<kVector>(data, mn_stride, k_stride, mn_left)),
        my_(data, mn_stride, k_stride, mn_left, vectorized_ ? kVector : 1) {}
  // Copies the next tile: element (mn, k) to smem[k][mn], and `pad` to those outside the matrix,
  // which has k_left more elements along K.
  __device__ void load(Acc (&smem)[Tile::kK][Tile::kPitch], int k_left, Acc pad) {
    const auto copy = [&]<int kCount>() {
      const T* from = my_.data;
      int mn = my_.mn, k = my_.k;
      _Pragma("unroll 2") for (int i = 0; i < Tile::kM * Tile::kK / Tile::kThreads / kCount; ++i) {
        const auto x = load_vector<kCount>(from, mn < my_.mn_left && k < k_left, pad);
        UNROLL
        for (int e = 0; e < kCount && k_major_; ++e) smem[k + e][mn] = x.x[e];
        if (!k_major_) reinterpret_cast<Vector<Acc, kCount>&>(smem[k][mn]) = x;
        from += my_.step, mn += my_.mn_step, k += my_.k_step;
      }
    };
    vectorized_ ? copy.template operator()<kVector>() : copy.template operator()<1>();
    my_.data += Tile::kK * my_.k_stride;
  }

 private:
  static constexpr int kVector = 16 / sizeof(T);
  bool k_major_, vectorized_;
  ThreadVectors<Tile, T> my_;
};

template <typename T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    vectorized_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  using Acc = accumulator_t<T>;
  constexpr int kPer = Tile::kPer, kSums = kPer * kPer;
  __shared__ alignas(16) Acc a_smem[Tile::kK][Tile::kPitch];  // (kK, kM)
  __shared__ alignas(16) Acc b_smem[Tile::kK][Tile::kPitch];  // (kK, kN)

  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int row = threadIdx.x / (Tile::kN / kPer) * 4;  // of this thread's first element
  const int col = threadIdx.x % (Tile::kN / kPer) * 4;
  const int rows_left = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols_left = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));
  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  TileLoader<Tile, T> load_a(a + tile.row * p.a.row_stride, p.a.row_stride, p.a.col_stride,
                             rows_left, p.k);
  TileLoader<Tile, T> load_b(b + tile.col * p.b.col_stride, p.b.col_stride, p.b.row_stride,
                             cols_left, p.k);

  Acc sums[kSums];  // row by row
  int64_t k_left = p.k;
  do {  // one chunk of K at a time; K = 0 is one chunk with the sum 0
    UNROLL
    for (Acc& sum : sums) sum = 0;
    const int chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    for (int k = 0; k < chunk; k += Tile::kK) {
      load_a.load(a_smem, chunk - k, kPadA<Acc>);
      load_b.load(b_smem, chunk - k, kPadB<Acc>);
      __syncthreads();  // both tiles are complete

      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        Acc a_frag[kPer], b_frag[kPer];
        UNROLL
        for (int i = 0; i < kPer; ++i) {
          a_frag[i] = a_smem[kk][row + nth<Tile>(i)];
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

}  // namespace

bool launch_vectorized(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {  // float64 has registers for 4 x 4 elements
    using Own = std::conditional_t<std::is_same_v<T, double>, Tile<64, 16, 4>, Tile<128, 16, 8>>;
    launch_with_totals<T, Own>(vectorized_kernel<T, Own>, p, context);
  });
  return true;
}

}  // namespace tiled::cuda
