// tiled on the CPU: tiles of A and B are copied to small arrays that stay in the cache, as the GPU
// copies them to shared memory. The order of summation, and so the bits, are the same.

#include <algorithm>

#include "core/context.h"
#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tiled::cpu {
namespace {

constexpr int kDepth = 64;  // K of a tile
static_assert(kChunk % kDepth == 0, "a chunk of the sum is a whole number of tiles");

// Copies (kTile outer, kDepth) elements to tile[k][outer], `pad` beyond the matrix.
template <typename T, int kTile>
SIMD void load_tile(accumulator_t<T> (&tile)[kDepth][kTile], const T* data, int64_t outer_stride,
                    int64_t k_stride, int outer_left, int k_left, accumulator_t<T> pad) {
  for (int k = 0; k < kDepth; ++k) {
    for (int outer = 0; outer < kTile; ++outer) {
      const bool inside = outer < outer_left && k < k_left;
      tile[k][outer] = inside ? widen(data[outer * outer_stride + k * k_stride]) : pad;
    }
  }
}

// acc += tile of A times tile of B, with k ascending. One row of sums at a time stays in registers.
template <typename Acc, int kTile>
SIMD void multiply_tiles(Acc (&acc)[kTile][kTile], const Acc (&a)[kDepth][kTile],
                         const Acc (&b)[kDepth][kTile]) {
  for (int i = 0; i < kTile; ++i) {
    Acc sums[kTile];
    std::copy_n(acc[i], kTile, sums);
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < kTile; ++j) sums[j] = fused_multiply_add(a[k][i], b[k][j], sums[j]);
    }
    std::copy_n(sums, kTile, acc[i]);
  }
}

template <typename T, int kTile>
void compute_tile(const Problem& p, int64_t index) {
  using Acc = accumulator_t<T>;
  alignas(64) Acc a_tile[kDepth][kTile];
  alignas(64) Acc b_tile[kDepth][kTile];
  alignas(64) Acc total[kTile][kTile];  // of the finished chunks
  std::fill_n(&total[0][0], kTile * kTile, kAddIdentity<Acc>);

  const TileCoord<kTile> at(p, index);
  auto [a, b] = operands_of<T>(p, at);
  int64_t k = 0;
  do {  // one chunk of K, which is empty if K is 0
    alignas(64) Acc acc[kTile][kTile] = {};
    const int64_t chunk_end = std::min(k + kChunk, p.k);
    for (; k < chunk_end; k += kDepth) {
      const int k_left = static_cast<int>(std::min<int64_t>(chunk_end - k, kDepth));
      load_tile<T>(a_tile, a, p.a.row_stride, p.a.col_stride, at.rows, k_left, kPadA<Acc>);
      load_tile<T>(b_tile, b, p.b.col_stride, p.b.row_stride, at.cols, k_left, kPadB<Acc>);
      a += kDepth * p.a.col_stride;
      b += kDepth * p.b.row_stride;
      multiply_tiles(acc, a_tile, b_tile);
    }
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kTile; ++j) total[i][j] += acc[i][j];
    }
  } while (k < p.k);

  store_tile<T>(p, at, total);
}

template <int kTile>
void launch(const Problem& p, const Context& context) {
  with_element_type(p.dtype,
                    [&]<typename T>() { for_tiles<kTile>(p, context, compute_tile<T, kTile>); });
}

}  // namespace

bool launch_tiled16(const Problem& p, const Plan&, const Context& context) {
  launch<16>(p, context);
  return true;
}
bool launch_tiled32(const Problem& p, const Plan&, const Context& context) {
  launch<32>(p, context);
  return true;
}
bool launch_tiled64(const Problem& p, const Plan&, const Context& context) {
  launch<64>(p, context);
  return true;
}

}  // namespace tiled::cpu
