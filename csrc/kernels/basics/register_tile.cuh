#pragma once
// What the kernels with several elements of C a thread share.

#include <cstdint>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// --- C, from 04 on -------------------------------------------------------------------------------

// A thread's i-th row or column, counted from its first one: groups of 4, half a tile apart.
template <class Tile>
__device__ constexpr int nth(int i) {
  return i % 4 + i / 4 * (Tile::kM / 2);
}

// Adds the products of two fragments to the sums, row by row.
template <typename Acc, int kPer>
__device__ void multiply(const Acc (&a)[kPer], const Acc (&b)[kPer], Acc (&sums)[kPer * kPer]) {
  UNROLL
  for (int i = 0; i < kPer * kPer; ++i) {
    sums[i] = fused_multiply_add(a[i / kPer], b[i % kPer], sums[i]);
  }
}

// Adds the totals of the chunks before to a chunk's sums, and keeps the new totals for the next
// one. They wait in dynamic shared memory, so that a thread has registers for one set of sums
// alone.
template <class Tile, typename Acc>
__device__ void add_to_totals(bool is_first, bool is_last, Acc (&sums)[Tile::kPer * Tile::kPer]) {
  extern __shared__ __align__(16) uint8_t totals[];
  auto* total = reinterpret_cast<Acc*>(totals) + threadIdx.x;
  UNROLL
  for (int i = 0; i < Tile::kPer * Tile::kPer; ++i) {
    sums[i] += is_first ? kAddIdentity<Acc> : total[i * Tile::kThreads];
    if (!is_last) total[i * Tile::kThreads] = sums[i];
  }
}

// launch_tiles() with shared memory for the totals, if there are several chunks.
template <typename T, class Tile>
void launch_with_totals(void (*kernel)(Problem, int64_t), const Problem& p,
                        const Context& context) {
  constexpr size_t kBytes = Tile::kM * Tile::kN * sizeof(accumulator_t<T>);
  const size_t bytes = p.k > kChunk ? kBytes : 0;
  allow_shared_memory(kernel, kBytes);
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    const auto stream = static_cast<cudaStream_t>(context.stream);
    kernel<<<blocks, Tile::kThreads, bytes, stream>>>(p, first);
  });
}

// Stores a thread's sums, kPer rows of kPer. The code of 4 serves all: registers have no index, so
// the others move up. The tile is located again, which leaves registers to the main loop.
template <typename T, class Tile>
__device__ void store_sums(const Problem& p, int64_t first_tile, int row, int col, int rows_left,
                           int cols_left, accumulator_t<T> (&sums)[Tile::kPer * Tile::kPer]) {
  constexpr int kPer = Tile::kPer;
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  NO_UNROLL
  for (int first = 0; first < kPer * kPer; first += 4) {
    const int r = row + nth<Tile>(first / kPer), c = col + nth<Tile>(first % kPer);
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (r < rows_left && c + j < cols_left) {
        store<T>(p, c_offset, tile.row + r, tile.col + c + j, sums[j]);
      }
    }
    UNROLL
    for (int i = 0; i < kPer * kPer - 4; ++i) sums[i] = sums[i + 4];
  }
}

// --- A and B, from 05 on -------------------------------------------------------------------------

// Elements that one instruction loads or stores.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Vector {
  T x[kCount];
};

// Loads kCount elements, or returns as many `pad` if they are not inside the matrix.
template <int kCount, typename T>
__device__ auto load_vector(const T* from, bool inside, accumulator_t<T> pad) {
  Vector<T, kCount> x = {};
  if (inside) x = *reinterpret_cast<const Vector<T, kCount>*>(from);
  Vector<accumulator_t<T>, kCount> wide;
  UNROLL
  for (int i = 0; i < kCount; ++i) wide.x[i] = inside ? widen(x.x[i]) : pad;
  return wide;
}

// Returns whether all vectors of kCount elements in a tile are aligned and in the matrix as a
// whole. They are `inner` apart along a row of `length`; rows are `outer` apart.
template <int kCount, typename T>
__device__ bool is_vectorized(const T* data, int64_t inner, int64_t outer, int64_t length) {
  return inner == 1 && outer > 1 && outer % kCount == 0 && length % kCount == 0 &&
         reinterpret_cast<uintptr_t>(data) % sizeof(Vector<T, kCount>) == 0;
}

// The vectors of `width` elements of an operand's tiles that a thread copies, along the smaller
// stride. `mn` counts rows of A, or columns of B, mn_left of them in the matrix.
template <class Tile, typename T>
struct ThreadVectors {
  const T* data;               // the first one of the next tile
  int mn, k, mn_step, k_step;  // its place, and from there to the thread's next one
  int64_t step, k_stride;      // the same in global memory; from one k to the next
  int mn_left;

  __device__ ThreadVectors(const T* tile, int64_t mn_stride, int64_t k_stride, int mn_left,
                           int width)
      : k_stride(k_stride), mn_left(mn_left) {
    const bool k_major = k_stride < mn_stride;
    const int lanes = (k_major ? Tile::kK : Tile::kM) / width;
    const int along = threadIdx.x % lanes * width, across = threadIdx.x / lanes;
    mn = k_major ? across : along, mn_step = k_major ? Tile::kThreads / lanes : 0;
    k = k_major ? along : across, k_step = k_major ? 0 : Tile::kThreads / lanes;
    data = tile + mn * mn_stride + k * k_stride;
    step = mn_step * mn_stride + k_step * k_stride;
  }
};

}  // namespace tiled::cuda
