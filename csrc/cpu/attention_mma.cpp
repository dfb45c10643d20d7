// Attention of 16-bit floats on the CPU: the specification as a program. It computes a block of
// queries tile of keys by tile of keys as core/order_attention_mma.h says, by a model of the tensor
// core.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/element.h"
#include "core/order_attention_mma.h"
#include "cpu/attention.h"
#include "cpu/attention_parts.h"
#include "cpu/chain.h"
#include "cpu/parallel.h"

namespace tiled::cpu {
namespace {

using namespace attention_mma;
using attention::Join;
using attention_mma::kChunk;
using attention_mma::kDepth;

constexpr int kQueries = 32;  // of a block
constexpr int kSumParts = 4;  // of a chunk's sum l

// kN rows or columns of factors as they are and as the model takes them, kDepth after another.
template <typename T, int kN>
struct Operand {
  std::vector<T> values;  // (steps, kDepth, kN)
  std::vector<Factors<kN, T>> factors;

  explicit Operand(int64_t steps) : values(steps * kDepth * kN), factors(steps) {}

  void set(int64_t k, int n, T x) {
    values[k * kN + n] = x;
    factors[k / kDepth].set(k % kDepth, n, x);
  }
};

// Adds products of all of K to kN sums. The model gives NaN for sums that are not finite; these are
// added in double, so that finite terms stay finite.
template <typename T, int kN>
void multiply(float (&sums)[kN], const Operand<T, 1>& a, const Operand<T, kN>& b) {
  for (size_t step = 0; step < a.factors.size(); ++step) {
    float before[kN];
    std::copy_n(sums, kN, before);
    multiply_row(a.factors[step], b.factors[step], sums);
    for (int n = 0; n < kN; ++n) {
      if (!std::isnan(sums[n])) continue;
      double total = before[n];
      for (size_t k = step * kDepth; k < (step + 1) * kDepth; ++k) {
        total += static_cast<double>(widen(a.values[k])) *
                 static_cast<double>(widen(b.values[k * kN + n]));
      }
      sums[n] = static_cast<float>(total);
    }
  }
}

// A tile of keys and their values, which all queries of a block read.
template <typename T>
struct Tile {
  int64_t first = 0;  // its first key
  int count = 0;      // of keys
  Operand<T, kTile> keys;
  std::vector<Operand<T, kTile>> values;  // for each kTile columns

  explicit Tile(const AttentionProblem& p)
      : keys(ceil_div(p.head_size, kDepth)),
        values(ceil_div(p.value_size, kTile), Operand<T, kTile>(kTile / kDepth)) {}

  void load(const AttentionProblem& p, int64_t batch, int64_t head, int64_t key) {
    first = key;
    count = static_cast<int>(std::min<int64_t>(kTile, p.keys - key));
    for (int j = 0; j < kTile; ++j) {
      const int64_t row = std::min(key + j, p.keys - 1);
      const RowOf<T> k(p.k, batch, head, row, j < count ? p.head_size : 0);
      const RowOf<T> v(p.v, batch, head, row, j < count ? p.value_size : 0);
      for (int64_t c = 0; c < ceil_div(p.head_size, kDepth) * kDepth; ++c) {
        keys.set(c, j, k.at(c));
      }
      for (int64_t c = 0; c < ceil_div(p.value_size, kTile) * kTile; ++c) {
        values[c / kTile].set(j, c % kTile, v.at(c));
      }
    }
  }
};

// A query, the state (m, l, o) of its chunk, and the state (M, L, O) of the chunks before.
template <typename T>
struct Query {
  const AttentionProblem& p;
  int64_t batch, head, row;
  Operand<T, 1> operand;
  float c;
  int exponent = kLowest, chunk_exponent = kLowest;
  float sum = 0, chunk_sums[kSumParts] = {};
  std::vector<float> out, chunk_out;

  Query(const AttentionProblem& p, int64_t batch, int64_t head, int64_t row)
      : p(p),
        batch(batch),
        head(head),
        row(row),
        operand(ceil_div(p.head_size, kDepth)),
        c(attention::log2_scale(p.scale)),
        out(p.value_size),
        chunk_out(ceil_div(p.value_size, kTile) * kTile) {
    const RowOf<T> q(p.q, batch, head, row, p.head_size);
    for (int64_t i = 0; i < ceil_div(p.head_size, kDepth) * kDepth; ++i) operand.set(i, 0, q.at(i));
  }

  void add(const Tile<T>& tile) {
    if (tile.first % kChunk == 0) begin_chunk();
    const int end =
        static_cast<int>(std::clamp<int64_t>(p.visible_keys(row) - tile.first, 0, tile.count));
    alignas(64) float raw[kTile] = {};
    multiply(raw, operand, tile.keys);
    bool seen[kTile] = {}, has_nan = false;
    float bias[kTile] = {}, largest = -INFINITY;
    for (int j = 0; j < end; ++j) {
      seen[j] = true;
      if (p.mask_kind != MaskKind::kNone) {
        bias[j] = log2_bias(p.bias(p.mask_of_head(batch, head), row, tile.first + j, seen[j]));
      }
      if (!seen[j]) continue;
      const float z = fmaf(raw[j], c, bias[j]);
      has_nan |= std::isnan(z);
      largest = std::fmax(largest, z);
    }
    if (has_nan) largest = NAN;
    const int grown = std::max(chunk_exponent, exponent_above(largest));
    const float factor = rescale_factor(grown - chunk_exponent), place = place_of_zero(grown);
    chunk_exponent = grown;
    for (float& each : chunk_sums) each *= factor;
    for (float& each : chunk_out) each *= factor;
    if (has_nan) chunk_sums[0] = NAN;
    Operand<T, 1> weights(kTile / kDepth);
    for (int j = 0; j < kTile; ++j) {
      T rounded = {0};
      if (seen[j]) {
        const float at = weight_place(raw[j], c / kSpan, place_with_bias(place, bias[j]));
        rounded = narrow<T>(weight<kShift<T>>(at));
      }
      weights.set(j, 0, rounded);
      chunk_sums[j / 2 % kSumParts] += widen(rounded);
    }
    for (size_t block = 0; block < tile.values.size(); ++block) {
      alignas(64) float sums[kTile];
      float* from = chunk_out.data() + block * kTile;
      std::copy_n(from, kTile, sums);
      multiply(sums, weights, tile.values[block]);
      std::copy_n(sums, kTile, from);
    }
  }

  void begin_chunk() {
    chunk_exponent = kLowest;
    std::fill_n(chunk_sums, kSumParts, 0.0f);
    std::fill(chunk_out.begin(), chunk_out.end(), 0.0f);
  }

  void end_chunk() {
    const Join by = attention::join_exponents(exponent, chunk_exponent);
    exponent = by.joined;
    const auto& l = chunk_sums;
    sum = attention::join(sum, (l[0] + l[1]) + (l[2] + l[3]), by);
    for (size_t n = 0; n < out.size(); ++n) out[n] = attention::join(out[n], chunk_out[n], by);
  }

  void store() const {
    T* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride +
            row * p.out.row_stride;
    const float inverse = inverse_sum(sum);
    for (int64_t n = 0; n < p.value_size; ++n) {
      to[n * p.out.col_stride] = narrow<T>(normalized(out[n], inverse));
    }
    const int64_t index = (batch * p.heads + head) * p.queries + row;
    p.sum[index] = sum;
    p.exponent[index] = exponent - kShift<T>;
  }
};

template <typename T>
void compute_block(const AttentionProblem& p, int64_t index, Tile<T>& tile) {
  const int64_t blocks = ceil_div(p.queries, kQueries);
  const int64_t head = index / blocks % p.heads, batch = index / blocks / p.heads;
  const int64_t begin = index % blocks * kQueries;
  const int64_t end = std::min(begin + kQueries, p.queries);
  std::vector<Query<T>> queries;
  queries.reserve(end - begin);
  for (int64_t row = begin; row < end; ++row) queries.emplace_back(p, batch, head, row);
  const int64_t keys = p.visible_keys(end - 1);
  for (int64_t key = 0; key < keys; key += kTile) {
    tile.load(p, batch, head / (p.heads / p.kv_heads), key);
    const int64_t next = key + kTile;
    for (Query<T>& query : queries) {
      query.add(tile);
      if (next % kChunk == 0 || next >= keys) query.end_chunk();
    }
  }
  for (const Query<T>& query : queries) query.store();
}

template <typename T>
void launch(const AttentionProblem& p, const Context& context) {
  const int64_t blocks = p.batch * p.heads * ceil_div(p.queries, kQueries);
  const double operations = double{kQueries} * static_cast<double>(p.keys + 1) *
                            static_cast<double>(p.head_size + p.value_size + 1);
  parallel_for(context, blocks, operations, [&](int64_t begin, int64_t end) {
    Tile<T> tile(p);
    for (int64_t block = begin; block < end; ++block) compute_block(p, block, tile);
  });
}

}  // namespace

bool launch_attention_mma(const AttentionProblem& p, const Context& context) {
  p.dtype == DType::kFloat16 ? launch<Half>(p, context) : launch<BFloat16>(p, context);
  return true;
}

}  // namespace tiled::cpu
