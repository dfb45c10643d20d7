// 01 naive: one thread for each element of C.
//
// Idea:  Thread (row, col) walks along K: it loads an element of A and one of B, and adds their
//        product to a sum in a register. The 32 lanes of a warp compute adjacent columns of one
//        row. If B and C are stored by rows, a warp's loads of B and its stores of C are
//        coalesced; a load of A is one address for all lanes, a broadcast.
// Limit: Every FMA takes two loads, so the load units are busy long before the FMA units are.
// Next:  02 tiled: the threads of a block share what they load.

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {
namespace {

// The elements of C that a block computes.
struct Tile {
  static constexpr int kM = 32, kN = 32;
  static constexpr int kThreads = kM * kN;
};
constexpr int kUnroll = 16;                          // steps of K with loads in flight together
constexpr int kBlocksPerSm = 2048 / Tile::kThreads;  // full occupancy: an SM has 2048 threads

template <typename T>
__global__ void __launch_bounds__(Tile::kThreads, kBlocksPerSm)
    naive_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int64_t row = tile.row + threadIdx.x / Tile::kN;
  const int64_t col = tile.col + threadIdx.x % Tile::kN;
  if (row >= p.m || col >= p.n) return;

  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  a += row * p.a.row_stride;
  b += col * p.b.col_stride;

  accumulator_t<T> acc = 0;
  auto step = [&] {
    acc = fused_multiply_add(widen(*a), widen(*b), acc);
    a += p.a.col_stride;
    b += p.b.row_stride;
  };
  int64_t k = 0;
  for (; k + kUnroll <= p.k; k += kUnroll) {
    UNROLL
    for (int i = 0; i < kUnroll; ++i) step();
  }
  for (; k < p.k; ++k) step();
  store<T>(p, batch_offset(p.batch, p.c, tile.batch), row, col, acc);
}

}  // namespace

bool launch_naive(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype,
                    [&]<typename T>() { launch_tiles<Tile>(naive_kernel<T>, p, context); });
  return true;
}

}  // namespace tiled::cuda
