// Attention on the CPU: the specification as a program. It computes a block of queries tile of keys
// by tile of keys as core/order_attention.h says, by a model of the tensor core.

#include "cpu/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/order_attention.h"
#include "cpu/attention_parts.h"
#include "cpu/parallel.h"

namespace tiled::cpu {
namespace {

using namespace attention;

constexpr int kQueries = 32;  // of a block
constexpr int kSumParts = 4;  // of a tile's sum l

// A tile of keys and their values, which all queries of a block read.
struct Tile {
  int64_t first = 0;  // its first key
  int count = 0;      // of keys
  Parts<kTile> keys;
  std::vector<Parts<kColumns>> values;  // for each kColumns columns
  float inverse_scale[kTile];           // of a key
  int value_scale[kTile];               // the exponent s of a value row

  explicit Tile(const AttentionProblem& p)
      : keys(ceil_div(p.head_size, kDepth)),
        values(ceil_div(p.value_size, kColumns), Parts<kColumns>(kSteps)) {}

  void load(const AttentionProblem& p, int64_t batch, int64_t head, int64_t key) {
    first = key;
    count = static_cast<int>(std::min<int64_t>(kTile, p.keys - key));
    for (int j = 0; j < kTile; ++j) {
      const int64_t row = std::min(key + j, p.keys - 1);
      const OperandRow k(p.k, batch, head, row, j < count ? p.head_size : 0);
      const OperandRow v(p.v, batch, head, row, j < count ? p.value_size : 0);
      const uint32_t largest = k.largest();
      inverse_scale[j] = attention::inverse_scale(largest);
      value_scale[j] = value_scale_exponent(v.largest());
      for (int64_t c = 0; c < static_cast<int64_t>(keys.hi.size()) * kDepth; ++c) {
        keys.set(c, j, k.split(c, fp16x3::scale(largest)));
      }
      for (int64_t c = 0; c < static_cast<int64_t>(values.size()) * kColumns; ++c) {
        values[c / kColumns].set(j, c % kColumns,
                                 v.split(c, attention::power_of_two(value_scale[j])));
      }
    }
  }
};

// A query and its state (M, L, O).
struct Query {
  const AttentionProblem& p;
  int64_t batch, head, row;
  Parts<1> parts;
  float factor;
  int exponent = kLowest;
  float sum = 0;
  std::vector<float> out;

  Query(const AttentionProblem& p, int64_t batch, int64_t head, int64_t row)
      : p(p),
        batch(batch),
        head(head),
        row(row),
        parts(ceil_div(p.head_size, kDepth)),
        out(p.value_size) {
    const OperandRow q(p.q, batch, head, row, p.head_size);
    const uint32_t largest = q.largest();
    factor = query_factor(p.scale, largest);
    for (int64_t c = 0; c < static_cast<int64_t>(parts.hi.size()) * kDepth; ++c) {
      parts.set(c, 0, q.split(c, fp16x3::scale(largest)));
    }
  }

  // The logarithm of a key's share, from its raw sum descaled by the key's scale.
  Log2 log2_of(int64_t key, float x) const {
    if (p.mask_kind == MaskKind::kNone) return round_any_log2(x, factor);
    bool seen = true;
    const float bias = p.bias(p.mask_of_head(batch, head), row, key, seen);
    return seen ? add_bias(x, factor, bias) : Log2{kMasked, 0.0f};
  }

  void add(const Tile& tile) {
    const int seen =
        static_cast<int>(std::clamp<int64_t>(p.visible_keys(row) - tile.first, 0, tile.count));
    alignas(64) float raw[kTile] = {};
    multiply(raw, parts, tile.keys);
    Log2 log2[kTile];
    int largest = kLowest, largest_whole = kLowest;
    for (int j = 0; j < seen; ++j) {
      log2[j] = log2_of(tile.first + j, raw[j] * tile.inverse_scale[j]);
      largest = std::max(largest, log2[j].whole - tile.value_scale[j]);
      largest_whole = std::max(largest_whole, log2[j].whole);
    }
    Parts<1> shares(kSteps);
    float sums[kSumParts] = {};
    for (int j = 0; j < kTile; ++j) {
      shares.set(j, 0, {});
      if (j >= seen) continue;
      const auto [whole, fraction] = log2[j];
      const int s = tile.value_scale[j];
      const float value = exp2_fraction(fraction);
      const float share = value * attention::power_of_two(whole - s - largest, 14);
      shares.set(j, 0, attention::split(share));
      float& of_part = sums[j / 2 % kSumParts];
      if (share != 0) {
        of_part = fmaf(share, attention::power_of_two(s, -kSumShift), of_part);
      } else if (whole >= largest_whole - kCounted) {
        of_part = fmaf(value, attention::power_of_two(whole - largest, 14 - kSumShift), of_part);
      }
    }
    const Join by = join_exponents(exponent, largest);
    const float of_tile = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum = join_sums(sum, exponent, of_tile, largest, by.joined);
    exponent = by.joined;
    for (int64_t c = 0; c < p.value_size; c += kColumns) {
      alignas(64) float products[kColumns] = {};
      multiply(products, shares, tile.values[c / kColumns]);
      for (int64_t n = c; n < std::min(c + kColumns, p.value_size); ++n) {
        out[n] = join(out[n], products[n - c], by);
      }
    }
  }

  void store() const {
    float* to = static_cast<float*>(p.out.data) + batch * p.out.batch_stride +
                head * p.out.head_stride + row * p.out.row_stride;
    const Normalizer by = normalizer(sum);
    for (int64_t c = 0; c < p.value_size; ++c) {
      to[c * p.out.col_stride] = normalized(out[c], by);
    }
    const int64_t index = (batch * p.heads + head) * p.queries + row;
    p.sum[index] = sum;
    p.exponent[index] = exponent_of_sum(sum, exponent);
  }
};

void compute_block(const AttentionProblem& p, int64_t index, Tile& tile) {
  const int64_t blocks = ceil_div(p.queries, kQueries);
  const int64_t head = index / blocks % p.heads, batch = index / blocks / p.heads;
  const int64_t begin = index % blocks * kQueries;
  const int64_t end = std::min(begin + kQueries, p.queries);
  std::vector<Query> queries;
  queries.reserve(end - begin);
  for (int64_t row = begin; row < end; ++row) queries.emplace_back(p, batch, head, row);
  for (int64_t key = 0; key < p.visible_keys(end - 1); key += kTile) {
    tile.load(p, batch, head / (p.heads / p.kv_heads), key);
    for (Query& query : queries) {
      if (key < p.visible_keys(query.row)) query.add(tile);
    }
  }
  for (const Query& query : queries) query.store();
}

// A problem of its own for each head of each range of packed rows.
std::vector<AttentionProblem> split_packed(const AttentionProblem& p) {
  const PackedRows queries = p.packed_queries, keys = p.packed_keys;
  std::vector<AttentionProblem> parts;
  for (int range = 0; range < queries.ranges(); ++range) {
    for (int64_t head = 0; head < p.heads; ++head) {
      AttentionProblem part = p;
      const auto narrow = [](auto& x, int64_t of_head, int64_t row) {
        using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(x.data)>>,
                                        const std::byte, std::byte>;
        const int64_t at = of_head * x.head_stride + row * x.row_stride;
        x.data = static_cast<Byte*>(x.data) + at * int64_t{sizeof(float)};
      };
      const int64_t first = queries.begin(range), kv_head = head / (p.heads / p.kv_heads);
      narrow(part.q, head, first);
      narrow(part.out, head, first);
      narrow(part.k, kv_head, keys.begin(range));
      narrow(part.v, kv_head, keys.begin(range));
      part.sum += head * queries.rows + first;
      part.exponent += head * queries.rows + first;
      part.heads = part.kv_heads = 1;
      part.queries = queries.end(range) - first;
      const int64_t seen = keys.is_sequence(range) ? keys.end(range) - keys.begin(range) : 0;
      part.keys = std::min(seen, p.keys);
      part.packed_queries = part.packed_keys = {};
      parts.push_back(part);
    }
  }
  return parts;
}

int64_t count_blocks(const AttentionProblem& p) {
  return p.batch * p.heads * ceil_div(p.queries, kQueries);
}

}  // namespace

bool launch_attention(const AttentionProblem& p, const Context& context) {
  const std::vector<AttentionProblem> parts = p.is_packed() ? split_packed(p) : std::vector{p};
  std::vector<int64_t> ends;  // of each part's blocks
  for (const AttentionProblem& part : parts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + count_blocks(part));
  }
  const double operations = double{kQueries} * static_cast<double>(p.keys + 1) *
                            static_cast<double>(p.head_size + p.value_size + 1);
  parallel_for(context, ends.back(), operations, [&](int64_t begin, int64_t end) {
    Tile tile(p);
    size_t i = std::ranges::upper_bound(ends, begin) - ends.begin();
    for (int64_t block = begin; block < end; ++block) {
      while (block >= ends[i]) ++i;
      compute_block(parts[i], block - (ends[i] - count_blocks(parts[i])), tile);
    }
  });
  return true;
}

}  // namespace tiled::cpu
