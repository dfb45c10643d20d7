// fp16x3 on the CPU: the specification as a program. It computes a tile chunk by chunk as
// order_fp16x3.h says, by a model of the tensor core.

#include "cpu/fp16x3.h"

#include <algorithm>

#include "core/context.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/recompute.h"
#include "cpu/simd.h"
#include "cpu/tensor_core.h"
#include "cpu/tile.h"

namespace tiled::cpu {
namespace {

constexpr int kTile = kFp16x3Tile, kDepth = OperandRow::kDepth;
static_assert(kChunk % fp16x3::promotion(kChunk) == 0, "promotions divide a chunk");

using Row = float[kTile];
using Sums = Fp16x3Sums;

SIMD void multiply_row(const Factors<1>& a_hi, const Factors<1>& a_lo, const Factors<kTile>& b_hi,
                       const Factors<kTile>& b_lo, Row& part, Row& low) {
  add_products(part, a_hi, b_hi);
  add_products(low, a_lo, b_hi);
  add_products(low, a_hi, b_lo);
}

}  // namespace

void multiply_fp16x3_chunk(const OperandRow (&rows)[kTile], int row_count,
                           const OperandRow (&cols)[kTile], int col_count, int64_t chunk,
                           int promotion, Sums& total, Sums& low) {
  alignas(64) Factors<kTile> b_hi = {}, b_lo = {};
  alignas(64) Sums part;
  for (int64_t k = 0; k < chunk; k += kDepth) {
    const int64_t k_left = chunk - k;
    for (int j = 0; j < col_count; ++j) cols[j].split(k, k_left, b_hi, b_lo, j);
    const bool starts = k % promotion == 0;
    const bool ends = (k + kDepth) % promotion == 0 || k + kDepth >= chunk;
    for (int i = 0; i < row_count; ++i) {
      Factors<1> a_hi, a_lo;
      rows[i].split(k, k_left, a_hi, a_lo, 0);
      if (starts) std::fill_n(part[i], kTile, 0.0f);
      multiply_row(a_hi, a_lo, b_hi, b_lo, part[i], low[i]);
      if (!ends) continue;
      for (int j = 0; j < kTile; ++j) total[i][j] += part[i][j];
    }
  }
}

namespace {

// Returns the number of recomputed elements.
int64_t compute_tile(const Problem& p, int64_t index) {
  const TileCoord<kTile> at(p, index);
  const auto [a, b] = operands_of<float>(p, at);
  alignas(64) Sums sum;
  std::fill_n(&sum[0][0], kTile * kTile, kAddIdentity<float>);
  for (int64_t k = 0; k < p.k; k += kChunk) {
    const int64_t chunk = std::min<int64_t>(p.k - k, kChunk);
    OperandRow rows[kTile], cols[kTile];
    for (int i = 0; i < at.rows; ++i) {
      rows[i] = {.data = a + i * p.a.row_stride + k * p.a.col_stride, .stride = p.a.col_stride};
      rows[i].set_scale(chunk);
    }
    for (int j = 0; j < at.cols; ++j) {
      cols[j] = {.data = b + j * p.b.col_stride + k * p.b.row_stride,
                 .stride = p.b.row_stride,
                 .presplit = {p.b_presplit, at.col + j},
                 .begin = k};
      cols[j].set_scale(chunk);
    }
    alignas(64) Sums total = {}, low = {};
    multiply_fp16x3_chunk(rows, at.rows, cols, at.cols, chunk, fp16x3::promotion(p.k), total, low);
    for (int i = 0; i < at.rows; ++i) {
      for (int j = 0; j < at.cols; ++j) {
        sum[i][j] += fp16x3::chunk_sum(total[i][j], low[i][j], rows[i].group.inverse_scale,
                                       cols[j].group.inverse_scale, fp16x3::promotion(p.k));
      }
    }
  }

  return store_tile_recomputed(p, at, sum);
}

}  // namespace

bool launch_fp16x3(const Problem& p, const Plan&, const Context& context) {
  compute_tiles<kTile>(p, context, compute_tile);
  return true;
}

}  // namespace tiled::cpu
