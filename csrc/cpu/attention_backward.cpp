// The gradients of attention on the CPU: the last section of core/order_attention.h as a program.
//
// P and dS of 64 queries and 64 keys are computed at once, twice: for the gradient of queries, and
// for those of keys and values. So each gradient's rows are summed by one thread, in order.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/order_attention.h"
#include "cpu/attention.h"
#include "cpu/attention_parts.h"
#include "cpu/parallel.h"

namespace tiled::cpu {
namespace {

using namespace attention;

// 64 rows of q, dout, k or v, with zeros past the last one, as factors of both products they are
// in.
struct RowTile {
  std::vector<Parts<1>> left;           // each row of q or dout, for its products with keys
  Parts<kTile> right;                   // the rows of k or v, for theirs with queries
  std::vector<Parts<kColumns>> blocks;  // each kColumns columns, for sums over rows
  float inverse_scale[kTile] = {};      // of a row

  RowTile(bool is_of_queries, int64_t columns)
      : left(is_of_queries ? kTile : 0, Parts<1>(ceil_div(columns, kDepth))),
        right(is_of_queries ? 0 : ceil_div(columns, kDepth)),
        blocks(ceil_div(columns, kColumns), Parts<kColumns>(kSteps)) {}

  void load(const Heads& x, int64_t batch, int64_t head, int64_t first, int count,
            int64_t columns) {
    for (int r = 0; r < kTile; ++r) {
      const OperandRow row(x, batch, head, first + std::min(r, count - 1), r < count ? columns : 0);
      const uint32_t largest = row.largest();
      inverse_scale[r] = attention::inverse_scale(largest);
      for (int64_t c = 0; c < static_cast<int64_t>(blocks.size()) * kColumns; ++c) {
        const fp16x3::Split parts = row.split(c, fp16x3::scale(largest));
        blocks[c / kColumns].set(r, c % kColumns, parts);
        if (c >= ceil_div(columns, kDepth) * kDepth) continue;
        left.empty() ? right.set(c, r, parts) : left[r].set(c, 0, parts);
      }
    }
  }
};

// The sum over columns of dout and out.
float delta_of(const OperandRow& dout, const OperandRow& out) {
  std::vector<float> sums(std::bit_ceil(static_cast<uint64_t>(ceil_div(dout.size, 4))));
  for (int64_t c = 0; c < dout.size; ++c) sums[c / 4] = fmaf(dout.at(c), out.at(c), sums[c / 4]);
  for (size_t count = sums.size() / 2; count > 0; count /= 2) {
    for (size_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

// Gradients of 64 rows before they are stored. Each has the sum of its tiles so far.
struct Totals {
  int64_t columns;
  std::vector<float> sums;  // (kTile, columns)

  explicit Totals(int64_t columns) : columns(columns), sums(kTile * columns) {}

  // Adds the sum over a tile's rows, times factors that have the inverses of the rows' scales.
  void add(int row, const float (&factors)[kTile], const RowTile& tile) {
    uint32_t largest = 0;
    for (const float factor : factors) largest = std::max(largest, finite_bits(factor));
    const float scale = fp16x3::scale(largest), inverse = attention::inverse_scale(largest);
    Parts<1> parts(kSteps);
    for (int i = 0; i < kTile; ++i) parts.set(i, 0, attention::split(factors[i] * scale));
    float* to = &sums[row * columns];
    for (int64_t c = 0; c < columns; c += kColumns) {
      alignas(64) float products[kColumns] = {};
      multiply(products, parts, tile.blocks[c / kColumns]);
      for (int64_t n = c; n < std::min(c + kColumns, columns); ++n) {
        to[n] = fmaf(products[n - c], inverse, to[n]);
      }
    }
  }

  void store(const HeadsOf<void>& to, int64_t batch, int64_t head, int64_t first, int count,
             float scale) const {
    float* matrix = static_cast<float*>(to.data) + batch * to.batch_stride + head * to.head_stride;
    for (int r = 0; r < count; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        matrix[(first + r) * to.row_stride + c * to.col_stride] = sums[r * columns + c] * scale;
      }
    }
  }
};

// A tile of queries and one of keys.
struct TilePair {
  const AttentionBackward& p;
  RowTile q, dout, k, v;
  int64_t batch = 0, head = 0;  // of the queries
  int64_t first_query = 0, first_key = 0;
  int queries = 0, keys = 0;
  float factor[kTile];  // query_factor()
  Denominator denominator[kTile];
  float delta[kTile];
  float probability[kTile][kTile];  // P of a query and a key
  float gradient[kTile][kTile];     // dS

  explicit TilePair(const AttentionBackward& p)
      : p(p),
        q(true, p.head_size),
        dout(true, p.value_size),
        k(false, p.head_size),
        v(false, p.value_size) {}

  void load_queries(int64_t of_batch, int64_t of_head, int64_t first) {
    batch = of_batch, head = of_head, first_query = first;
    queries = static_cast<int>(std::min<int64_t>(kTile, p.queries - first));
    q.load(p.q, batch, head, first, queries, p.head_size);
    dout.load(p.dout, batch, head, first, queries, p.value_size);
    const Heads out = {p.out.data, p.out.batch_stride, p.out.head_stride, p.out.row_stride,
                       p.out.col_stride};
    for (int i = 0; i < queries; ++i) {
      const int64_t row = first + i, index = (batch * p.heads + head) * p.queries + row;
      factor[i] = log2_scale(p.scale) * q.inverse_scale[i];
      denominator[i] = attention::denominator(p.sum[index], p.exponent[index]);
      delta[i] = delta_of(OperandRow(p.dout, batch, head, row, p.value_size),
                          OperandRow(out, batch, head, row, p.value_size));
    }
  }

  void load_keys(int64_t of_batch, int64_t kv_head, int64_t first) {
    first_key = first;
    keys = static_cast<int>(std::min<int64_t>(kTile, p.keys - first));
    k.load(p.k, of_batch, kv_head, first, keys, p.head_size);
    v.load(p.v, of_batch, kv_head, first, keys, p.value_size);
  }

  // The logarithm of a key's weight, from its raw sum descaled by the key's scale.
  Log2 log2_of(int i, int j, float x) const {
    const int64_t query = first_query + i, key = first_key + j;
    bool seen = key < p.visible_keys(query);
    Log2 log2;
    if (p.mask_kind == MaskKind::kNone || !seen) {
      log2 = round_any_log2(x, factor[i]);
    } else {
      const float bias = p.bias(p.mask_of_head(batch, head), query, key, seen);
      log2 = add_bias(x, factor[i], bias);
    }
    return seen ? log2 : Log2{kMasked, 0.0f};
  }

  // Stores dS, for the gradient of a mask.
  void store_gradients() const {
    for (int i = 0; i < queries; ++i) {
      const int64_t row = (batch * p.heads + head) * p.queries + first_query + i;
      float* to = p.dscores + row * p.keys + first_key;
      for (int j = 0; j < keys; ++j) to[j] = probability[i][j] == 0 ? 0 : gradient[i][j];
    }
  }

  // Computes P, and dS if a gradient needs it.
  void find(bool needs_gradient) {
    std::fill_n(&probability[0][0], kTile * kTile, 0.0f);
    std::fill_n(&gradient[0][0], kTile * kTile, 0.0f);
    for (int i = 0; i < queries; ++i) {
      alignas(64) float scores[kTile] = {}, products[kTile] = {};
      multiply(scores, q.left[i], k.right);
      for (int j = 0; j < kTile; ++j) {
        const Log2 log2 = log2_of(i, j, scores[j] * k.inverse_scale[j]);
        probability[i][j] = attention::probability(log2, denominator[i]);
      }
      if (!needs_gradient) continue;
      multiply(products, dout.left[i], v.right);
      for (int j = 0; j < kTile; ++j) {
        gradient[i][j] = score_gradient(probability[i][j], products[j], v.inverse_scale[j],
                                        dout.inverse_scale[i], delta[i]);
      }
    }
  }
};

// Computes dq of a tile of queries, and stores dS.
void find_dq(TilePair& pair, int64_t index) {
  const AttentionBackward& p = pair.p;
  const int64_t tiles = ceil_div(p.queries, kTile);
  const int64_t head = index / tiles % p.heads, batch = index / tiles / p.heads;
  pair.load_queries(batch, head, index % tiles * kTile);
  const int64_t end = p.visible_keys(pair.first_query + pair.queries - 1);
  Totals dq(p.head_size);
  for (int64_t key = 0; key < end; key += kTile) {
    pair.load_keys(batch, head / (p.heads / p.kv_heads), key);
    pair.find(true);
    if (p.dscores != nullptr) pair.store_gradients();
    for (int i = 0; i < pair.queries && p.dq.data != nullptr; ++i) {
      float factors[kTile];
      for (int j = 0; j < kTile; ++j) factors[j] = pair.gradient[i][j] * pair.k.inverse_scale[j];
      dq.add(i, factors, pair.k);
    }
  }
  if (p.dq.data != nullptr) dq.store(p.dq, batch, head, pair.first_query, pair.queries, p.scale);
}

// Computes dk and dv of a tile of keys.
void find_dk_and_dv(TilePair& pair, int64_t index) {
  const AttentionBackward& p = pair.p;
  const int64_t tiles = ceil_div(p.keys, kTile), group = p.heads / p.kv_heads;
  const int64_t kv_head = index / tiles % p.kv_heads, batch = index / tiles / p.kv_heads;
  const bool needs_k = p.dk.data != nullptr, needs_v = p.dv.data != nullptr;
  pair.load_keys(batch, kv_head, index % tiles * kTile);
  // The tile of the first query that sees a key.
  const int64_t first = p.causal ? std::max<int64_t>(pair.first_key - p.causal_offset, 0) : 0;
  Totals dk(p.head_size), dv(p.value_size);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = first / kTile * kTile; query < p.queries; query += kTile) {
      pair.load_queries(batch, head, query);
      pair.find(needs_k);
      for (int j = 0; j < pair.keys; ++j) {
        float of_k[kTile], of_v[kTile];
        for (int i = 0; i < kTile; ++i) {
          of_k[i] = pair.gradient[i][j] * pair.q.inverse_scale[i];
          of_v[i] = pair.probability[i][j] * pair.dout.inverse_scale[i];
        }
        if (needs_k) dk.add(j, of_k, pair.q);
        if (needs_v) dv.add(j, of_v, pair.dout);
      }
    }
  }
  if (needs_k) dk.store(p.dk, batch, kv_head, pair.first_key, pair.keys, p.scale);
  if (needs_v) dv.store(p.dv, batch, kv_head, pair.first_key, pair.keys, 1);
}

}  // namespace

bool launch_attention_backward(const AttentionBackward& p, const Context& context) {
  const auto for_tiles = [&](int64_t matrices, int64_t rows, int64_t others, const auto& find) {
    const double operations = double{kTile} * static_cast<double>(others) *
                              static_cast<double>(p.head_size + p.value_size + 1);
    parallel_for(context, matrices * ceil_div(rows, kTile), operations,
                 [&](int64_t begin, int64_t end) {
                   TilePair pair(p);
                   for (int64_t index = begin; index < end; ++index) find(pair, index);
                 });
  };
  if (p.needs_queries()) for_tiles(p.batch * p.heads, p.queries, p.keys, find_dq);
  if (p.needs_keys()) {
    for_tiles(p.batch * p.kv_heads, p.keys, p.queries * (p.heads / p.kv_heads), find_dk_and_dv);
  }
  return true;
}

}  // namespace tiled::cpu
