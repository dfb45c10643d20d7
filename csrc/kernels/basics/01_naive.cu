// 01 naive: one thread an element.
//
// Idea:  thread (row, col) walks along K and multiplies; neighbours in a warp take neighbouring
//        columns, so that B is read, and C written, in whole lines.
// Limit: 2 loads for every multiply-add: the load units are busy long before the arithmetic is.
// Next:  02 tiled shares each load among a block.

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = 32, kN = 32;
  static constexpr int kThreads = kM * kN;
};
constexpr int kUnroll = 16;                     // loads of K in flight together
constexpr int kBlocks = 2048 / Tile::kThreads;  // a multiprocessor holds all the threads it can

template <typename T>
__global__ void __launch_bounds__(Tile::kThreads, kBlocks)
    naive_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const int64_t row = tile.row + threadIdx.x / Tile::kN;
  const int64_t col = tile.col + threadIdx.x % Tile::kN;
  if (row >= p.m || col >= p.n) return;

  const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  a += row * p.a.row_stride;
  b += col * p.b.col_stride;

  accumulator_t<T> sum = 0;
  auto step = [&] {
    sum = fused_multiply_add(widen(*a), widen(*b), sum);
    a += p.a.col_stride;
    b += p.b.row_stride;
  };
  int64_t k = 0;
  for (; k + kUnroll <= p.k; k += kUnroll) {
    UNROLL
    for (int i = 0; i < kUnroll; ++i) step();
  }
  for (; k < p.k; ++k) step();
  store<T>(p, batch_offset(p.batch, p.c, tile.batch), row, col, sum);
}

}  // namespace

bool launch_naive(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype,
                    [&]<typename T>() { launch_tiles<Tile>(naive_kernel<T>, p, context); });
  return true;
}

}  // namespace tiled::cuda
