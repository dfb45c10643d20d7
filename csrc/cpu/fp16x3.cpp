// fp16x3 on the CPU: the specification as a program. It computes a tile chunk by chunk as
// order_fp16x3.h says, by a model of the tensor core.

#include <algorithm>

#include "core/context.h"
#include "core/element.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/group.h"
#include "cpu/presplit.h"
#include "cpu/recompute.h"
#include "cpu/simd.h"
#include "cpu/tensor_core.h"
#include "cpu/tile.h"

namespace tiled::cpu {
namespace {

constexpr int kTile = 32;   // rows and columns of C
constexpr int kDepth = 16;  // products of a tensor-core sum
static_assert(kChunk % fp16x3::promotion(kChunk) == 0, "promotions divide a chunk");

// A row of A or a column of B in one chunk, and its scale there.
struct OperandRow {
  const float* data = nullptr;  // the chunk's beginning
  int64_t stride = 0;           // along K
  PresplitRow presplit = {};    // the whole row, if it was split beforehand
  int64_t begin = 0;            // of the chunk, in K
  Group group = {};

  float at(int64_t k) const { return data[k * stride]; }

  void set_scale(int64_t chunk) {
    if (presplit.presplit.hi_lo != nullptr) {
      group.inverse_scale = presplit.inverse_scale(begin / kChunk);
    } else {
      group = measure(chunk, [this](int64_t k) { return at(k); });
    }
  }

  fp16x3::Split split(int64_t k, bool exists) const {
    if (presplit.presplit.hi_lo != nullptr) return presplit.at(begin + k);
    return fp16x3::split((exists ? at(k) : 0.0f) * group.scale);
  }

  // Splits kDepth elements, with zeros from `k_left` on, to column n of `hi` and `lo`.
  template <int kN>
  void split(int64_t from, int64_t k_left, Factors<kN>& hi, Factors<kN>& lo, int n) const {
    for (int k = 0; k < kDepth; ++k) {
      const fp16x3::Split parts = split(from + k, k < k_left);
      hi.set(k, n, parts.hi);
      lo.set(k, n, parts.lo);
    }
  }
};

using Row = float[kTile];
using Sums = Row[kTile];

SIMD void multiply_row(const Factors<1>& a_hi, const Factors<1>& a_lo, const Factors<kTile>& b_hi,
                       const Factors<kTile>& b_lo, Row& part, Row& low) {
  add_products(part, a_hi, b_hi);
  add_products(low, a_lo, b_hi);
  add_products(low, a_hi, b_lo);
}

// Computes a chunk's sums: `total`, of the promoted hi products, and `low`, of the two small ones.
void multiply_chunk(const OperandRow (&rows)[kTile], int row_count, const OperandRow (&cols)[kTile],
                    int col_count, int64_t chunk, int promotion, Sums& total, Sums& low) {
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
    multiply_chunk(rows, at.rows, cols, at.cols, chunk, fp16x3::promotion(p.k), total, low);
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
