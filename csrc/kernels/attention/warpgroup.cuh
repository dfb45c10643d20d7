#pragma once
// What a warpgroup does with 64 queries and a tile of 64 keys: two products on tensor cores, the
// softmax between them, and the sums over tiles. Accumulator i of wgmma is in row lane / 4 +
// i / 2 % 2 * 8 of a warp, here the first or the second row of a thread, and in column i / 4 * 8 +
// lane % 4 * 2 + i % 2.

#include <cstdint>

#include "core/order_attention.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/split_rows.cuh"
#include "kernels/common/launch.h"
#include "ptx/pack.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::attention {

namespace wgmma = ptx::wgmma;

// Writes rows of a float32 tensor, which has contiguous columns, from accumulators.
struct RowWriter {
  HeadsOf<void> tensor;
  int columns;
  bool pairs;  // of columns are stored at once

  RowWriter(const HeadsOf<void>& tensor, int64_t columns)
      : tensor(tensor), columns(static_cast<int>(columns)) {
    const auto even = [](int64_t stride) { return stride % 2 == 0; };
    pairs = even(columns) && even(tensor.row_stride) && even(tensor.head_stride) &&
            even(tensor.batch_stride) &&
            reinterpret_cast<uintptr_t>(tensor.data) % sizeof(float2) == 0;
  }

  // Stores value(i) for the accumulators i of the thread's first or second row, from a column on.
  template <int kCount, class Value>
  __device__ void store(uint32_t batch, uint32_t head, int64_t row, int second, const Value& value,
                        int first_column = 0) const {
    const int column = first_column + compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    float* to = at(batch, head, row);
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const int at = i * 2 + column;
      const float2 both = {value(i + second * 2), value(i + second * 2 + 1)};
      if (pairs) {
        if (at < columns) *reinterpret_cast<float2*>(to + at) = both;
      } else {
        if (at < columns) to[at] = both.x;
        if (at + 1 < columns) to[at + 1] = both.y;
      }
    }
  }
  // Loads what the thread has stored.
  template <int kCount>
  __device__ void load(uint32_t batch, uint32_t head, int64_t row, int second,
                       float (&x)[kCount]) const {
    const int column = compute_again(static_cast<int>(threadIdx.x) % 4 * 2);
    const float* from = at(batch, head, row);
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const int at = i * 2 + column;
      float2 both{};
      if (pairs) {
        if (at < columns) both = *reinterpret_cast<const float2*>(from + at);
      } else {
        if (at < columns) both.x = from[at];
        if (at + 1 < columns) both.y = from[at + 1];
      }
      x[i + second * 2] = both.x, x[i + second * 2 + 1] = both.y;
    }
  }
  __device__ float* at(uint32_t batch, uint32_t head, int64_t row) const {
    return static_cast<float*>(tensor.data) + batch * tensor.batch_stride +
           head * tensor.head_stride + row * tensor.row_stride;
  }
};

struct QueryParams {
  AttentionProblem p;
  RowReader q;
  RowWriter out;
  uint32_t query_tiles;

  QueryParams(const AttentionProblem& p, int queries)
      : p(p),
        q(p.q, p.heads, p.query_rows(), p.head_size),
        out(p.out, p.value_size),
        query_tiles(static_cast<uint32_t>(p.query_tiles(queries))) {}
};

// The queries of a block. The last ones of a causal head, which see most keys, come first.
// PackedWork hides what differs for packed sequences.
struct Work {
  static constexpr int first_key_tile = 0;  // in the parts
  uint32_t matrix, batch, head, kv_matrix;
  int first;  // query

  __device__ Work(const QueryParams& params, int queries)
      : matrix(blockIdx.x / params.query_tiles) {
    const auto heads = static_cast<uint32_t>(params.p.heads);
    const auto kv_heads = static_cast<uint32_t>(params.p.kv_heads);
    const uint32_t tile = params.query_tiles - 1 - (blockIdx.x - matrix * params.query_tiles);
    batch = matrix / heads, head = matrix - batch * heads;
    kv_matrix = batch * kv_heads + head / (heads / kv_heads);
    first = static_cast<int>(tile) * queries;
  }
  __device__ static bool is_empty(const AttentionProblem&) { return false; }
  // Of query 0 in its head.
  __device__ static int64_t first_row(const AttentionProblem&) { return 0; }
  __device__ static int64_t query_end(const AttentionProblem& p) { return p.queries; }
  __device__ static int64_t visible_keys(const AttentionProblem& p, int64_t query) {
    return p.visible_keys(query);
  }
  // The tiles of keys that any of the queries from `first` to `end` sees.
  __device__ static int key_tiles(const AttentionProblem& p, int64_t end) {
    return static_cast<int>(ceil_div(p.visible_keys(min(end, p.queries) - 1), kRows));
  }
  // Of a row in `sum` and `exponent`.
  __device__ int64_t sum_index(const AttentionProblem& p, int64_t row) const {
    return matrix * p.queries + row;
  }
  // Reads the keys that the work's queries may see.
  __device__ static const RowReader& keys_of(const RowReader& from) { return from; }
  // visible_keys() without a work. row: of a head
  __device__ static int64_t visible_keys_of_row(const AttentionProblem& p, int64_t row) {
    return p.visible_keys(row);
  }
};

// --- Products ------------------------------------------------------------------------------------

inline constexpr int kScores = kRows / 2;  // accumulators of a thread
using Scores = float[kScores];
// Exponentials of the scores as wgmma reads them from registers, 16 keys at a time.
struct Fragments {
  uint32_t hi[kRows / 16][4], lo[kRows / 16][4];

  // Takes the numbers in the places of accumulators i and i + 1, with i even.
  __device__ void split(int i, float x, float y) {
    const int fragment = i / 8, element = i / 4 % 2 * 2 + i / 2 % 2;
    split_x2(x, y, hi[fragment][element], lo[fragment][element]);
  }
};

// Begins scores = q k^T. kTransposed: q has the keys, and k the queries; the sums' bits are the
// same.
template <int kBlocks, bool kTransposed = false>
__device__ void multiply_keys(const Boxes<kBlocks>& q, const Boxes<kBlocks>& k, Scores& scores) {
  wgmma::fence_operand(scores);
  wgmma::fence();
  bool accumulate = false;
  UNROLL
  for (int product = 0; product < 3; ++product) {  // lo hi, hi lo, hi hi
    UNROLL
    for (int step = 0; step < kBlocks * 4; ++step) {
      const uint64_t a = wgmma::swizzled_descriptor<0>(q[product == kTransposed][step / 4]);
      const uint64_t b = wgmma::swizzled_descriptor<0>(k[product == !kTransposed][step / 4]);
      wgmma::mma(scores, a + step % 4 * 2, b + step % 4 * 2, accumulate);
      accumulate = true;
    }
  }
  wgmma::commit_group();
}

// Begins out = p v, for kCount / 32 blocks of v's columns.
template <int kBlocks, int kCount>
__device__ void multiply_values(Fragments& p, const Boxes<kBlocks>& v, float (&out)[kCount],
                                int first_block = 0) {
  wgmma::fence_operand(p.hi);
  wgmma::fence_operand(p.lo);
  wgmma::fence_operand(out);
  wgmma::fence();
  bool accumulate = false;
  UNROLL
  for (int product = 0; product < 3; ++product) {
    const uint64_t b = wgmma::swizzled_descriptor<sizeof(Box)>(v[product == 1][first_block]);
    UNROLL
    for (int step = 0; step < kRows / 16; ++step) {
      wgmma::mma<false, true>(out, (product == 0 ? p.lo : p.hi)[step], b + step * 128, accumulate);
      accumulate = true;
    }
  }
  wgmma::commit_group();
}

// Waits for all products that have begun. Their accumulators may then be read.
template <int... kCounts>
__device__ void finish(float (&... accumulators)[kCounts]) {
  wgmma::wait_group<0>();
  (wgmma::fence_operand(accumulators), ...);
}

// --- Queries and their softmax -------------------------------------------------------------------

__device__ inline int max_of_row(int x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

// The sums of a tile: m and l of the order for the two rows of a thread.
struct TileSums {
  int exponent[2];
  float sum[2] = {0, 0};
};

// Scales queries, and stores query_factor() of each of the 64.
struct QueryScaler {
  float scale;
  float (&factors)[kRows];

  __device__ float operator()(int row, uint32_t largest) {
    factors[row] = order::query_factor(scale, largest);
    return fp16x3::scale(largest);
  }
  __device__ void finish() const {}
};

// What a thread has of the queries of its warpgroup: two rows. kBlocks: of 64 columns of q and k;
// kOutBlocks: of the values' columns that the warpgroup multiplies.
template <int kBlocks, bool kHasMask, int kOutBlocks = kBlocks, class Work_ = Work>
struct Queries {
  static constexpr int kOut = kOutBlocks * 32;

  const QueryParams& params;
  const Work_ work;
  int query[2];
  float (&factors)[kRows];                             // query_factor() of the 64 queries
  int exponent[2] = {order::kLowest, order::kLowest};  // M, L and O of the order
  float sum[2] = {0, 0};
  float out[kOut] = {};

  // first: of the warpgroup's queries; factors: their scaler() stores them, and a barrier follows
  __device__ Queries(const QueryParams& params, const Work_& work, int first,
                     float (&factors)[kRows])
      : params(params), work(work), factors(factors) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      query[row] = first + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4 + row * 8;
    }
  }

  // The end of the keys that a row's query sees.
  __device__ int end(int row) const {
    return static_cast<int>(work.visible_keys(params.p, query[row]));
  }

  // A query that exists.
  __device__ int inside(int row) const {
    return min(query[row], static_cast<int>(params.p.queries) - 1);
  }

  __device__ QueryScaler scaler() const { return {params.p.scale, factors}; }
  __device__ float factor(int row) const {
    const int thread = static_cast<int>(threadIdx.x);
    return factors[thread / 32 % 4 * 16 + thread % 32 / 4 + row * 8];
  }

  // Turns scores into fractions of logarithms, and the integers beside them with the values'
  // exponents into `whole`, plus kRounderBits. Returns the largest of a thread's in `largest`.
  // kChecked: a key may be hidden, a logarithm large, or there is a mask.
  template <bool kChecked>
  __device__ void round_scores(const KeyScales& keys, const ValueScales& values, int first_key,
                               const float (&factor)[2], Scores& scores, int (&whole)[kScores],
                               int (&largest)[2]) const {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    const int64_t of_head = params.p.mask_of_head(work.batch, work.head);
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const int key = i * 2 + column;
      const auto inverse = *reinterpret_cast<const float2*>(&keys.inverse[key]);
      const auto exponent = *reinterpret_cast<const int2*>(&values.exponent[key]);
      UNROLL
      for (int j = i; j < i + 4; ++j) {
        const int row = j / 2 % 2, right = j % 2;
        const float score = scores[j] * (right == 0 ? inverse.x : inverse.y);
        order::Log2 log2;
        bool seen = true;
        if constexpr (kChecked) {
          const int at = first_key + key + right;
          seen = at < end(row);
          const float bias = kHasMask && seen ? params.p.bias(of_head, inside(row), at, seen) : 0;
          log2 = kHasMask ? order::add_bias(score, factor[row], bias)
                          : order::round_any_log2(score, factor[row]);
          if (!seen) log2 = {order::kMasked, 0};
        } else {
          log2 = order::round_log2(score, factor[row]);
        }
        scores[j] = log2.fraction;
        whole[j] = log2.whole + order::kRounderBits + (right == 0 ? exponent.x : exponent.y);
        largest[row] = max(largest[row], whole[j]);
      }
    }
  }

  // Turns the fractions and integers into exponentials of the exponent `largest`, less
  // kRounderBits, splits them, and adds them to the thread's part of `sum`. kWide: the values'
  // exponents differ so much that an exponential that is 0 may count in the sum.
  template <bool kWide>
  __device__ void exponentiate(const ValueScales& values, const Scores& scores,
                               const int (&whole)[kScores], const int (&largest)[2], Fragments& p,
                               float (&sum)[2]) const {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    int counted[2] = {INT_MIN, INT_MIN};  // from here on whole parts count
    if constexpr (kWide) {
      UNROLL
      for (int i = 0; i < kScores; ++i) {
        int& of_row = counted[i / 2 % 2];
        of_row = max(of_row, whole[i] - values.exponent[i / 4 * 8 + column + i % 2]);
      }
      UNROLL
      for (int& each : counted) each = max_of_row(each) - order::kCounted;
    }
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const auto scale = *reinterpret_cast<const float2*>(&values.scale[i * 2 + column]);
      UNROLL
      for (int row = 0; row < 2; ++row) {
        float x[2];
        UNROLL
        for (int right = 0; right < 2; ++right) {
          const int j = i + row * 2 + right;
          const float fraction = order::exp2_fraction(scores[j]);
          x[right] = fraction * order::power_of_two(whole[j], 14 - largest[row]);
          sum[row] = fmaf(x[right], right == 0 ? scale.x : scale.y, sum[row]);
          if constexpr (kWide) {
            const int of_key = whole[j] - values.exponent[i * 2 + column + right];
            if (x[right] != 0 || of_key < counted[row]) continue;
            const int power = of_key - largest[row] + 14 - order::kSumShift;
            sum[row] = fmaf(fraction, order::power_of_two(power), sum[row]);
          }
        }
        p.split(i + row * 2, x[0], x[1]);
      }
    }
  }

  // Turns the scores of a tile into exponentials and their sums.
  __device__ TileSums softmax(const KeyScales& keys, const ValueScales& values, int first_key,
                              Scores& scores, Fragments& p) const {
    const float factor[2] = {this->factor(0), this->factor(1)};
    int whole[kScores];
    int largest[2] = {INT_MIN, INT_MIN};
    const auto max_of = [](const auto(&x)[4]) { return max(max(x[0], x[1]), max(x[2], x[3])); };
    // A score's magnitude is at most 2^30 for each column.
    const float most = max_of(keys.largest) * (0x1p30f * 64 * kBlocks);
    bool checked = kHasMask;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      checked = checked || first_key + kRows > end(row) ||
                !(fabsf(factor[row]) * most < order::kLargeLog2);
    }
    if (__any_sync(~0u, checked)) {
      round_scores<true>(keys, values, first_key, factor, scores, whole, largest);
    } else {
      round_scores<false>(keys, values, first_key, factor, scores, whole, largest);
    }
    TileSums sums;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      largest[row] = max(max_of_row(largest[row]), order::kLowest + order::kRounderBits);
      sums.exponent[row] = largest[row] - order::kRounderBits;
    }
    // As a maximum of negated numbers, ptxas 13.0 forgets to negate one of them.
    const auto& leasts = values.least;
    const int least = min(min(leasts[0], leasts[1]), min(leasts[2], leasts[3]));
    if (max_of(values.most) - least <= order::kMostSpread) {
      exponentiate<false>(values, scores, whole, largest, p, sums.sum);
    } else {
      exponentiate<true>(values, scores, whole, largest, p, sums.sum);
    }
    UNROLL
    for (float& each : sums.sum) {
      each += __shfl_xor_sync(~0u, each, 1);
      each += __shfl_xor_sync(~0u, each, 2);
    }
    return sums;
  }

  // Joins a tile's sums to the sums of the tiles before.
  __device__ void join(const TileSums& sums, const float (&of_tile)[kOut]) {
    order::Join join[2];
    UNROLL
    for (int row = 0; row < 2; ++row) {
      join[row] = order::join_exponents(exponent[row], sums.exponent[row]);
      sum[row] = order::join_sums(sum[row], exponent[row], sums.sum[row], sums.exponent[row],
                                  join[row].joined);
      exponent[row] = join[row].joined;
    }
    // An old factor of 1 changes nothing, and is what rows mostly have.
    if (__all_sync(~0u, join[0].old_factor == 1 && join[1].old_factor == 1)) {
      UNROLL
      for (int i = 0; i < kOut; ++i) {
        out[i] = fmaf(of_tile[i], join[i / 2 % 2].new_factor, out[i]);
      }
    } else {
      UNROLL
      for (int i = 0; i < kOut; ++i) out[i] = order::join(out[i], of_tile[i], join[i / 2 % 2]);
    }
  }

  // first_column: of the values that the warpgroup multiplies
  __device__ void store(int first_column = 0) const {
    const AttentionProblem& p = params.p;
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    const auto first_row = work.first_row(p), end = work.query_end(p);
    UNROLL
    for (int row = 0; row < 2; ++row) {
      if (query[row] >= end) continue;
      const int64_t at = first_row + query[row];
      const order::Normalizer by = order::normalizer(sum[row]);
      const auto value = [&](int i) { return order::normalized(out[i], by); };
      params.out.store<kOut>(work.batch, work.head, at, row, value, first_column);
      if (column == 0 && first_column == 0) {
        const int64_t index = work.sum_index(p, at);
        p.sum[index] = sum[row];
        p.exponent[index] = order::exponent_of_sum(sum[row], exponent[row]);
      }
    }
  }
};

}  // namespace tiled::cuda::attention
