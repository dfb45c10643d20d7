// tf32 on the CPU: the specification as a program. It computes a tile chunk by chunk as
// order_tf32.h says, by a model of the tensor core.

#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/element.h"
#include "core/order_tf32.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/chain.h"
#include "cpu/group.h"
#include "cpu/recompute.h"
#include "cpu/tile.h"

namespace tiled::cpu {
namespace {

constexpr int kTile = 32;  // rows and columns of C

// A row of A or a column of B, in one chunk.
struct OperandRow {
  const float* data = nullptr;  // the chunk's beginning
  int64_t stride = 0;           // along K
  Group group = {};

  OperandRow() = default;
  OperandRow(const float* data, int64_t stride, int64_t chunk) : data(data), stride(stride) {
    group = measure(chunk, [&](int64_t k) { return data[k * stride]; });
  }

  Half at(int64_t k) const { return narrow<Half>(data[k * stride] * group.scale); }
};

// Returns the number of recomputed elements.
int64_t compute_tile(const Problem& p, int64_t index) {
  const TileCoord<kTile> at(p, index);
  const auto [a, b] = operands_of<float>(p, at);
  alignas(64) float total[kTile][kTile] = {};
  for (int64_t k = 0; k < p.k; k += mma_order::kChunk) {
    const int64_t chunk = std::min<int64_t>(p.k - k, mma_order::kChunk);
    OperandRow rows[kTile], cols[kTile];
    for (int i = 0; i < at.rows; ++i) {
      rows[i] = OperandRow(a + i * p.a.row_stride + k * p.a.col_stride, p.a.col_stride, chunk);
    }
    for (int j = 0; j < at.cols; ++j) {
      cols[j] = OperandRow(b + j * p.b.col_stride + k * p.b.row_stride, p.b.row_stride, chunk);
    }
    alignas(64) float sum[kTile][kTile] = {};
    add_chain<Half>(
        0, chunk, at.rows, [&](int i) { return rows[i]; }, at.cols, [&](int j) { return cols[j]; },
        sum, [](float, int, int, int64_t) { return NAN; });
    for (int i = 0; i < at.rows; ++i) {
      for (int j = 0; j < at.cols; ++j) {
        total[i][j] +=
            tf32::chunk_sum(sum[i][j], rows[i].group.inverse_scale, cols[j].group.inverse_scale);
      }
    }
  }
  return store_tile_recomputed(p, at, total);
}

}  // namespace

bool launch_tf32(const Problem& p, const Plan&, const Context& context) {
  compute_tiles<kTile>(p, context, compute_tile);
  return true;
}

}  // namespace tiled::cpu
