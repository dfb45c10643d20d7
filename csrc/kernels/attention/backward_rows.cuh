#pragma once
// What a warpgroup does with 64 rows and a tile of 64 columns in the backward pass of attention:
// its rows are queries and the columns keys, or the other way around.

#include <climits>
#include <cstdint>

#include "core/order_attention.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"

namespace tiled::cuda::attention {

// kBlocks: of 64 columns of q, k, v and dout.
template <bool kRowsAreQueries_, int kBlocks_, bool kHasMask_>
struct BackwardSide {
  static constexpr bool kRowsAreQueries = kRowsAreQueries_, kHasMask = kHasMask_;
  static constexpr int kBlocks = kBlocks_;
};

// The first query that sees a key.
__device__ inline int first_query(const AttentionProblem& p, int64_t key) {
  if (key >= p.keys) return INT_MAX;
  const int64_t first = p.causal ? key - p.causal_offset : 0;
  return static_cast<int>(max(int64_t{0}, min(first, p.queries)));
}

// The queries and keys of a block: all of its matrix.
struct WholeMatrix {
  __device__ static int64_t queries(const AttentionProblem& p) { return p.queries; }
  __device__ static int64_t keys(const AttentionProblem& p) { return p.keys; }
  __device__ static int64_t visible_keys(const AttentionProblem& p, int64_t query) {
    return p.visible_keys(query);
  }
  __device__ static int first_query(const AttentionProblem& p, int64_t key) {
    return attention::first_query(p, key);
  }
  // Row 0 of the block's queries, or keys, in its head.
  template <bool kOfQueries>
  __device__ static int64_t first_row(const AttentionProblem&) {
    return 0;
  }
};

// The same of a range of packed rows. One of no sequence has queries without keys, or keys without
// queries.
struct PackedRange {
  int range, query_count, key_count;

  // kOfQueries: the block has queries, or else keys.
  template <bool kOfQueries>
  __device__ static PackedRange of(const AttentionProblem& p, int range) {
    const PackedRows &queries = p.packed_queries, &keys = p.packed_keys;
    PackedRange found{range, queries.end(range) - queries.begin(range),
                      keys.end(range) - keys.begin(range)};
    if (!queries.is_sequence(range)) (kOfQueries ? found.key_count : found.query_count) = 0;
    if (queries.is_sequence(range))
      found.key_count = min(found.key_count, static_cast<int>(p.keys));
    return found;
  }
  __device__ int queries(const AttentionProblem&) const { return query_count; }
  __device__ int keys(const AttentionProblem&) const { return key_count; }
  __device__ int visible_keys(const AttentionProblem& p, int query) const {
    return p.causal ? min(query + 1, key_count) : key_count;
  }
  __device__ int first_query(const AttentionProblem& p, int key) const {
    if (key >= key_count) return INT_MAX;
    return p.causal ? min(key, query_count) : 0;
  }
  template <bool kOfQueries>
  __device__ int first_row(const AttentionProblem& p) const {
    return (kOfQueries ? p.packed_queries : p.packed_keys).begin(range);
  }
};

// Two numbers of adjacent columns.
template <class T>
__device__ auto pair_of(const T (&x)[kRows], int column) {
  if constexpr (std::is_same_v<T, float>) {
    return *reinterpret_cast<const float2*>(&x[column]);
  } else {
    return *reinterpret_cast<const int2*>(&x[column]);
  }
}

// Scales each row of value(i), with i of the accumulators, by a power of two, and splits it.
// inverse: of the powers
template <class Value>
__device__ void split_factors(const Value& value, Fragments& to, float (&inverse)[2]) {
  float largest[2] = {0, 0}, scale[2];
  UNROLL
  for (int i = 0; i < kScores; ++i) {
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(value(i)));
  }
  UNROLL
  for (int row = 0; row < 2; ++row) {
    const auto bits = static_cast<uint32_t>(max_of_row(static_cast<int>(bits_of(largest[row]))));
    scale[row] = fp16x3::scale(bits), inverse[row] = order::inverse_scale(bits);
  }
  UNROLL
  for (int i = 0; i < kScores; i += 2) {
    const float by = scale[i / 2 % 2];
    to.split(i, value(i) * by, value(i + 1) * by);
  }
}

template <int kCount>
__device__ void add_tile(float (&total)[kCount], const float (&of_tile)[kCount],
                         const float (&inverse)[2]) {
  UNROLL
  for (int i = 0; i < kCount; ++i) total[i] = fmaf(of_tile[i], inverse[i / 2 % 2], total[i]);
}

// What a thread knows of its two rows. Range: WholeMatrix or PackedRange
template <class Side, class Range = WholeMatrix>
struct OwnRows {
  const AttentionBackward& p;
  [[no_unique_address]] const Range range;
  const float log2_scale;
  const uint32_t batch, head;
  const int first;
  float factor[2];                    // of scores: query_factor() of queries, 2^-s of keys
  float second_inverse[2];            // 2^-s
  order::Denominator denominator[2];  // of queries
  float delta[2];
  int end[2];  // of the keys that a query sees, or the first query that sees a key

  // head: of the rows; first: of the 64 rows that the scales and, of queries, the states are of
  __device__ OwnRows(const AttentionBackward& p, float log2_scale, uint32_t batch, uint32_t head,
                     int first, const KeyScales& of_first, const KeyScales& of_second,
                     const QueryStates* states, const Range& range = {})
      : p(p), range(range), log2_scale(log2_scale), batch(batch), head(head), first(first) {
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const int at = index(row) - first;
      factor[row] = of_first.inverse[at];
      if (Side::kRowsAreQueries) factor[row] *= log2_scale;
      second_inverse[row] = of_second.inverse[at];
      if constexpr (Side::kRowsAreQueries) {
        denominator[row] = {states->inverse[at], states->exponent[at]};
        delta[row] = states->delta[at];
        const int64_t inside = min(int64_t{index(row)}, int64_t{range.queries(p)} - 1);
        end[row] = static_cast<int>(range.visible_keys(p, inside));
      } else {
        end[row] = range.first_query(p, index(row));
      }
    }
  }

  __device__ int index(int row) const {
    const int thread = static_cast<int>(threadIdx.x);
    return first + thread / 32 % 4 * 16 + thread % 32 / 4 + row * 8;
  }

  // Turns the scores of a tile into probabilities. kChecked: a key may be hidden, a logarithm
  // large, or there is a mask. first_column: of the tile; column_head: the columns' head.
  template <bool kChecked>
  __device__ void find_probabilities(const KeyScales& columns, const QueryStates& states,
                                     int first_column, uint32_t column_head, Scores& scores) const {
    const int column = compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    const int64_t of_head = p.mask_of_head(batch, Side::kRowsAreQueries ? head : column_head);
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const int at = i * 2 + column;
      const float2 inverse = pair_of(columns.inverse, at);
      order::Denominator of_column[2];
      if constexpr (!Side::kRowsAreQueries) {
        const float2 of_sum = pair_of(states.inverse, at);
        const int2 exponent = pair_of(states.exponent, at);
        of_column[0] = {of_sum.x, exponent.x}, of_column[1] = {of_sum.y, exponent.y};
      }
      UNROLL
      for (int j = i; j < i + 4; ++j) {
        const int row = j / 2 % 2, right = j % 2;
        const float of_first = right == 0 ? inverse.x : inverse.y;
        const float score = scores[j] * (Side::kRowsAreQueries ? of_first : factor[row]);
        const float by = Side::kRowsAreQueries ? factor[row] : log2_scale * of_first;
        order::Log2 log2;
        if constexpr (kChecked) {
          const int other = first_column + at + right;
          const int query = Side::kRowsAreQueries ? index(row) : other;
          const int key = Side::kRowsAreQueries ? other : index(row);
          bool seen = Side::kRowsAreQueries ? key < end[row] : query >= end[row];
          seen = seen && query < range.queries(p);
          const float bias = Side::kHasMask && seen ? p.bias(of_head, query, key, seen) : 0;
          log2 =
              Side::kHasMask ? order::add_bias(score, by, bias) : order::round_any_log2(score, by);
          if (!seen) log2 = {order::kMasked, 0};
        } else {
          log2 = order::round_log2(score, by);
        }
        scores[j] =
            order::probability(log2, Side::kRowsAreQueries ? denominator[row] : of_column[right]);
      }
    }
  }

  __device__ void find_probabilities(const KeyScales& columns, const QueryStates& states,
                                     int first_column, uint32_t column_head, Scores& scores) const {
    // A score's magnitude is at most 2^30 for each column.
    const float4 each = *reinterpret_cast<const float4*>(columns.largest);
    const float most = fmaxf(fmaxf(each.x, each.y), fmaxf(each.z, each.w)) *
                       (0x1p30f * 64 * Side::kBlocks) * (Side::kRowsAreQueries ? 1 : log2_scale);
    bool checked = Side::kHasMask;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      checked =
          checked ||
          (Side::kRowsAreQueries ? first_column + kRows > end[row] : first_column < end[row]) ||
          !(fabsf(factor[row] * most) < order::kLargeLog2);
    }
    if (__any_sync(~0u, checked)) {
      find_probabilities<true>(columns, states, first_column, column_head, scores);
    } else {
      find_probabilities<false>(columns, states, first_column, column_head, scores);
    }
  }

  // Turns probabilities into factors of dv, and splits them.
  __device__ void split_probabilities(const KeyScales& second_columns, const Scores& probabilities,
                                      Fragments& to, float (&inverse)[2]) const {
    const int column = compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    const auto factor = [&](int i) {
      return probabilities[i] * second_columns.inverse[i / 4 * 8 + column + i % 2];
    };
    split_factors(factor, to, inverse);
  }

  // Stores the gradients of a tile's scores, from the products of dout and v.
  __device__ void store_score_gradients(const KeyScales& second_columns, int first_column,
                                        const Scores& probabilities, const Scores& products) const {
    if (p.dscores == nullptr) return;
    const int column = compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    const int keys = static_cast<int>(p.keys) - first_column - column;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      if (!exists(row)) continue;
      const int64_t query = (int64_t{batch} * p.heads + head) * p.queries + index(row);
      float* to = p.dscores + query * p.keys + first_column + column;
      UNROLL
      for (int i = 0; i < kScores / 2; ++i) {
        const int j = i / 2 * 4 + row * 2 + i % 2, key = i / 2 * 8 + i % 2;
        const float gradient = order::score_gradient(probabilities[j], products[j],
                                                     second_columns.inverse[column + key],
                                                     second_inverse[row], delta[row]);
        if (key < keys) to[key] = probabilities[j] == 0 ? 0 : gradient;
      }
    }
  }

  // Turns the products of dout and v into factors of dq or dk. first_column: of the tile
  __device__ void find_score_gradients(const KeyScales& first_columns,
                                       const KeyScales& second_columns, const QueryStates& states,
                                       int first_column, const Scores& probabilities,
                                       Scores& products) const {
    if constexpr (Side::kRowsAreQueries && Side::kHasMask) {
      store_score_gradients(second_columns, first_column, probabilities, products);
    }
    const int column = compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const int at = i * 2 + column;
      const float2 of_factor = pair_of(first_columns.inverse, at);
      const float2 inverse = pair_of(second_columns.inverse, at);
      float2 of_column{};
      if constexpr (!Side::kRowsAreQueries) of_column = pair_of(states.delta, at);
      UNROLL
      for (int j = i; j < i + 4; ++j) {
        const int row = j / 2 % 2;
        const bool right = j % 2 == 1;
        const float own = second_inverse[row], other = right ? inverse.y : inverse.x;
        const float gradient =
            Side::kRowsAreQueries
                ? order::score_gradient(probabilities[j], products[j], other, own, delta[row])
                : order::score_gradient(probabilities[j], products[j], own, other,
                                        right ? of_column.y : of_column.x);
        products[j] = gradient * (right ? of_factor.y : of_factor.x);
      }
    }
  }

  __device__ bool exists(int row) const {
    return index(row) < (Side::kRowsAreQueries ? range.queries(p) : range.keys(p));
  }
  __device__ void store(const RowWriter& to, const float (&total)[Side::kBlocks * 32],
                        float scale) const {
    if (to.tensor.data == nullptr) return;
    const auto first_row = range.template first_row<Side::kRowsAreQueries>(p);
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const auto value = [&](int i) { return total[i] * scale; };
      const int64_t at = first_row + index(row);
      if (exists(row)) to.store<Side::kBlocks * 32>(batch, head, at, row, value);
    }
  }
  // Loads what store() has stored.
  __device__ void load(const RowWriter& from, float (&total)[Side::kBlocks * 32]) const {
    if (from.tensor.data == nullptr) return;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      if (exists(row)) from.load(batch, head, index(row), row, total);
    }
  }
};

}  // namespace tiled::cuda::attention
