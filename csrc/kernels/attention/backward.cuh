#pragma once
// The backward pass of attention in float32: what its kernels by queries and by keys do alike.
//
// Idea:  A block has 128 rows of one matrix, each of two warpgroups 64 of them, and goes through
//        tiles of 64 columns: its rows are queries and the columns keys, or the other way around.
//        A warpgroup computes the scores of a tile again, turns them into probabilities in
//        registers, and these into factors of the rows of a gradient's product, which it splits and
//        multiplies from registers by the parts of the tile that the scores came from. Sums over
//        tiles stay in registers, so no two blocks add to one gradient.
// Limit: scores are computed by each kernel anew: eight products instead of five, or seven if one
//        kernel has both dk and dv.
//
//   operand    rows are queries    rows are keys
//   first      q, k                k, q             scores = first first^T
//   second     dout, v             v, dout          dP = second second^T
//
//   producer      TMA: the block's rows -> rows_full
//                 wait first_empty[s];   TMA: parts of a tile of columns, and scales ->
//                 first_full[s] wait second_empty[s];  the same of the second operand ->
//                 second_full[s]
//   a warpgroup   scores of the first tile;  then, tile by tile:
//                 wait second_full[s];  dP, and probabilities in registers meanwhile
//                 dv: factors from probabilities;  multiply them by the second tile
//                 dq, dk: factors from probabilities and dP;  release second_empty[s]
//                 wait first_full[next];  multiply factors by the first tile, and the next scores
//                 release first_empty[s];  add to the running sums

#include <climits>
#include <cstdint>

#include "core/order_attention.h"
#include "kernels/attention/load_parts.cuh"
#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::attention {

// --- The tile and its shared memory --------------------------------------------------------------

// kOfScores: the kernel computes the gradient through the scores, dq or dk. kOfValues: dv.
// kBlocks: of 64 columns of q, k, v and dout.
template <bool kRowsAreQueries_, bool kOfScores_, bool kOfValues_, int kBlocks_, bool kHasMask_>
struct BackwardTile {
  static constexpr bool kRowsAreQueries = kRowsAreQueries_, kHasMask = kHasMask_;
  static constexpr bool kOfScores = kOfScores_, kOfValues = kOfValues_;
  static_assert(!(kRowsAreQueries && kOfValues));
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kConsumers = 2, kWarpgroup = 128, kRowsOfBlock = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kOperands = kOfScores ? 2 : 1;  // that the block has rows of
  static constexpr int kFirstStages = kBlocks == 1 ? 4 : 2;
  static constexpr int kSecondStages = kBlocks == 1 ? 4 : kOfScores ? 1 : 2;
};

template <class Tile>
struct BackwardSmem {
  static constexpr int kFirst = Tile::kFirstStages, kSecond = Tile::kSecondStages;
  alignas(1024) Boxes<Tile::kBlocks> rows[Tile::kOperands][Tile::kConsumers];
  Boxes<Tile::kBlocks> first[kFirst], second[kSecond];
  KeyScales first_scales[kFirst], second_scales[kSecond];
  QueryStates states[Tile::kRowsAreQueries ? 1 : kFirst];
  uint64_t rows_full, first_full[kFirst], first_empty[kFirst], second_full[kSecond],
      second_empty[kSecond];
};

struct BackwardParams {
  // The parts and scales of an operand.
  struct Operand {
    CUtensorMap map;
    const KeyScales* scales;
    uint32_t tiles;

    explicit Operand(const BackwardOperands::Operand& of)
        : map(map_of(of.parts)), scales(of.scales), tiles(of.tiles) {}
  };

  AttentionProblem p;
  float log2_scale;
  Operand rows[2], columns[2];  // first and second
  const QueryStates* states;
  RowWriter of_scores, of_values;
  uint32_t row_blocks;  // of a matrix
};

// The rows of a block, and the tiles of columns that it goes through: tiles `begin` to `end` of
// `heads` matrices.
struct BackwardWork {
  uint32_t matrix, batch, head;
  int first;  // row
  uint32_t column_head, column_matrix, heads = 1;
  int begin = 0, end;

  template <class Tile>
  __device__ static BackwardWork of_block(const BackwardParams& params) {
    const AttentionProblem& p = params.p;
    const auto q_heads = static_cast<uint32_t>(p.heads);
    const auto kv_heads = static_cast<uint32_t>(p.kv_heads), group = q_heads / kv_heads;
    BackwardWork work;
    work.matrix = blockIdx.x / params.row_blocks;
    const uint32_t block = blockIdx.x - work.matrix * params.row_blocks;
    const uint32_t of_rows = Tile::kRowsAreQueries ? q_heads : kv_heads;
    work.batch = work.matrix / of_rows, work.head = work.matrix - work.batch * of_rows;
    // Blocks with the most tiles of a causal head come first.
    if constexpr (Tile::kRowsAreQueries) {
      work.first = static_cast<int>(params.row_blocks - 1 - block) * Tile::kRowsOfBlock;
      work.column_head = work.head / group;
      work.column_matrix = work.batch * kv_heads + work.column_head;
      work.end = Work::key_tiles(p, work.first + Tile::kRowsOfBlock);
    } else {
      work.first = static_cast<int>(block) * Tile::kRowsOfBlock;
      work.column_head = work.head * group;
      work.column_matrix = work.batch * q_heads + work.column_head;
      work.heads = group;
      work.end = static_cast<int>(params.columns[0].tiles);
      work.begin = min(first_query(p, work.first) / kRows, work.end);
    }
    return work;
  }
  __device__ int tiles() const { return static_cast<int>(heads) * (end - begin); }

  // The first query that sees a key.
  __device__ static int first_query(const AttentionProblem& p, int64_t key) {
    if (key >= p.keys) return INT_MAX;
    const int64_t first = p.causal ? key - p.causal_offset : 0;
    return static_cast<int>(max(int64_t{0}, min(first, p.queries)));
  }
};

// --- The producer --------------------------------------------------------------------------------

template <class Tile>
__device__ void produce(const BackwardParams& params, BackwardSmem<Tile>& smem) {
  constexpr int kBlocks = Tile::kBlocks;
  const auto work = BackwardWork::of_block<Tile>(params);
  ptx::arrive_expect_tx(&smem.rows_full, sizeof(smem.rows));
  NO_UNROLL
  for (int i = 0; i < Tile::kOperands * Tile::kConsumers; ++i) {
    const int operand = i / Tile::kConsumers, warpgroup = i % Tile::kConsumers;
    load_parts<kBlocks>(smem.rows[operand][warpgroup], params.rows[operand].map,
                        work.first + warpgroup * kRows, work.matrix, &smem.rows_full);
  }
  ptx::PipelineState first{.stages = Tile::kFirstStages, .parity = 1};
  ptx::PipelineState second{.stages = Tile::kSecondStages, .parity = 1};
  const auto load = [&](int operand, uint32_t matrix, int tile, Boxes<kBlocks>& to,
                        KeyScales& scales, uint64_t* full) {
    const BackwardParams::Operand& from = params.columns[operand];
    load_parts<kBlocks>(to, from.map, tile * kRows, matrix, full);
    const int64_t index = int64_t{matrix} * from.tiles + tile;
    ptx::bulk_load(&scales, &from.scales[index], sizeof(KeyScales), full);
    return index;
  };
  for (uint32_t head = 0; head < work.heads; ++head) {
    const uint32_t matrix = work.column_matrix + head;
    for (int tile = work.begin; tile < work.end; ++tile, first.advance(), second.advance()) {
      int s = first.stage;
      constexpr int kStates = Tile::kRowsAreQueries ? 0 : sizeof(QueryStates);
      uint64_t* full = &smem.first_full[s];
      ptx::mbarrier_wait(&smem.first_empty[s], first.parity);
      ptx::arrive_expect_tx(full, sizeof(smem.first[s]) + sizeof(KeyScales) + kStates);
      const int64_t index = load(0, matrix, tile, smem.first[s], smem.first_scales[s], full);
      if constexpr (kStates != 0) {
        ptx::bulk_load(&smem.states[s], &params.states[index], kStates, full);
      }
      s = second.stage;
      full = &smem.second_full[s];
      ptx::mbarrier_wait(&smem.second_empty[s], second.parity);
      ptx::arrive_expect_tx(full, sizeof(smem.second[s]) + sizeof(KeyScales));
      load(1, matrix, tile, smem.second[s], smem.second_scales[s], full);
    }
  }
}

// --- A warpgroup ---------------------------------------------------------------------------------

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

// What a thread knows of its two rows.
template <class Tile>
struct OwnRows {
  const BackwardParams& params;
  const BackwardWork& work;
  const int first;
  float factor[2];                    // of scores: query_factor() of queries, 2^-s of keys
  float second_inverse[2];            // 2^-s
  order::Denominator denominator[2];  // of queries
  float delta[2];
  int end[2];  // of the keys that a query sees, or the first query that sees a key

  __device__ OwnRows(const BackwardParams& params, const BackwardWork& work, int first)
      : params(params), work(work), first(first) {
    const uint32_t tiles = params.rows[0].tiles;
    const int64_t tile =
        int64_t{work.matrix} * tiles + min(first / kRows, static_cast<int>(tiles) - 1);
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const int at = index(row) - first;
      factor[row] = params.rows[0].scales[tile].inverse[at];
      if (Tile::kRowsAreQueries) factor[row] *= params.log2_scale;
      second_inverse[row] = params.rows[1].scales[tile].inverse[at];
      if constexpr (Tile::kRowsAreQueries) {
        const QueryStates& states = params.states[tile];
        denominator[row] = {states.inverse[at], states.exponent[at]};
        delta[row] = states.delta[at];
        const int64_t inside = min(int64_t{index(row)}, params.p.queries - 1);
        end[row] = static_cast<int>(params.p.visible_keys(inside));
      } else {
        end[row] = BackwardWork::first_query(params.p, index(row));
      }
    }
  }

  __device__ int index(int row) const {
    const int thread = static_cast<int>(threadIdx.x);
    return first + thread / 32 % 4 * 16 + thread % 32 / 4 + row * 8;
  }

  // Turns the scores of a tile into probabilities. kChecked: a key may be hidden, a logarithm
  // large, or there is a mask. first_column: of the tile; head: of the columns
  template <bool kChecked>
  __device__ void find_probabilities(const KeyScales& columns, const QueryStates& states,
                                     int first_column, uint32_t head, Scores& scores) const {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    const int64_t of_head =
        params.p.mask_of_head(work.batch, Tile::kRowsAreQueries ? work.head : head);
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const int at = i * 2 + column;
      const float2 inverse = pair_of(columns.inverse, at);
      order::Denominator of_column[2];
      if constexpr (!Tile::kRowsAreQueries) {
        const float2 of_sum = pair_of(states.inverse, at);
        const int2 exponent = pair_of(states.exponent, at);
        of_column[0] = {of_sum.x, exponent.x}, of_column[1] = {of_sum.y, exponent.y};
      }
      UNROLL
      for (int j = i; j < i + 4; ++j) {
        const int row = j / 2 % 2, right = j % 2;
        const float of_first = right == 0 ? inverse.x : inverse.y;
        const float score = scores[j] * (Tile::kRowsAreQueries ? of_first : factor[row]);
        const float by = Tile::kRowsAreQueries ? factor[row] : params.log2_scale * of_first;
        order::Log2 log2;
        if constexpr (kChecked) {
          const int other = first_column + at + right;
          const int query = Tile::kRowsAreQueries ? index(row) : other;
          const int key = Tile::kRowsAreQueries ? other : index(row);
          bool seen = Tile::kRowsAreQueries ? key < end[row] : query >= end[row];
          seen = seen && query < params.p.queries;
          const float bias = Tile::kHasMask && seen ? params.p.bias(of_head, query, key, seen) : 0;
          log2 =
              Tile::kHasMask ? order::add_bias(score, by, bias) : order::round_any_log2(score, by);
          if (!seen) log2 = {order::kMasked, 0};
        } else {
          log2 = order::round_log2(score, by);
        }
        scores[j] =
            order::probability(log2, Tile::kRowsAreQueries ? denominator[row] : of_column[right]);
      }
    }
  }

  __device__ void find_probabilities(const KeyScales& columns, const QueryStates& states,
                                     int first_column, uint32_t head, Scores& scores) const {
    // A score's magnitude is at most 2^30 for each column.
    const float4 each = *reinterpret_cast<const float4*>(columns.largest);
    const float most = fmaxf(fmaxf(each.x, each.y), fmaxf(each.z, each.w)) *
                       (0x1p30f * 64 * Tile::kBlocks) *
                       (Tile::kRowsAreQueries ? 1 : params.log2_scale);
    bool checked = Tile::kHasMask;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      checked =
          checked ||
          (Tile::kRowsAreQueries ? first_column + kRows > end[row] : first_column < end[row]) ||
          !(fabsf(factor[row] * most) < order::kLargeLog2);
    }
    if (__any_sync(~0u, checked)) {
      find_probabilities<true>(columns, states, first_column, head, scores);
    } else {
      find_probabilities<false>(columns, states, first_column, head, scores);
    }
  }

  // Turns the products of dout and v into factors of dq or dk.
  __device__ void find_score_gradients(const KeyScales& first_columns,
                                       const KeyScales& second_columns, const QueryStates& states,
                                       const Scores& probabilities, Scores& products) const {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    UNROLL
    for (int i = 0; i < kScores; i += 4) {
      const int at = i * 2 + column;
      const float2 of_factor = pair_of(first_columns.inverse, at);
      const float2 inverse = pair_of(second_columns.inverse, at);
      float2 of_column{};
      if constexpr (!Tile::kRowsAreQueries) of_column = pair_of(states.delta, at);
      UNROLL
      for (int j = i; j < i + 4; ++j) {
        const int row = j / 2 % 2;
        const bool right = j % 2 == 1;
        const float own = second_inverse[row], other = right ? inverse.y : inverse.x;
        const float gradient =
            Tile::kRowsAreQueries
                ? order::score_gradient(probabilities[j], products[j], other, own, delta[row])
                : order::score_gradient(probabilities[j], products[j], own, other,
                                        right ? of_column.y : of_column.x);
        products[j] = gradient * (right ? of_factor.y : of_factor.x);
      }
    }
  }

  __device__ void store(const RowWriter& to, const float (&total)[Tile::kBlocks * 32],
                        float scale) const {
    if (to.tensor.data == nullptr) return;
    const int64_t rows = Tile::kRowsAreQueries ? params.p.queries : params.p.keys;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      if (index(row) >= rows) continue;
      const auto value = [&](int i) { return total[i] * scale; };
      to.store<Tile::kBlocks * 32>(work.batch, work.head, index(row), row, value);
    }
  }
};

template <class Tile>
__device__ void consume(const BackwardParams& params, BackwardSmem<Tile>& smem, int warpgroup) {
  constexpr int kBlocks = Tile::kBlocks;
  constexpr bool kTransposed = !Tile::kRowsAreQueries;
  constexpr bool kOfScores = Tile::kOfScores, kOfValues = Tile::kOfValues;
  const auto work = BackwardWork::of_block<Tile>(params);
  const int first_row = work.first + warpgroup * kRows;
  const OwnRows<Tile> rows(params, work, first_row);
  float of_scores[kBlocks * 32] = {}, of_values[kBlocks * 32] = {};

  // Tiles that the other warpgroup alone multiplies: the last ones of queries, the first ones of
  // keys, but not of the other heads of their group.
  const int tiles = work.tiles();
  int tile = 0, own_end = tiles, column_tile = work.begin;
  uint32_t head = work.column_head;
  if constexpr (Tile::kRowsAreQueries) {
    own_end = first_row < params.p.queries ? Work::key_tiles(params.p, first_row + kRows) : 0;
  } else if (first_row >= params.p.keys) {
    own_end = 0;
  }
  ptx::PipelineState first{.stages = Tile::kFirstStages}, second{.stages = Tile::kSecondStages};
  const auto skip_tile = [&] {
    ptx::mbarrier_wait(&smem.first_full[first.stage], first.parity);
    ptx::thread_release(&smem.first_empty[first.stage]);
    ptx::mbarrier_wait(&smem.second_full[second.stage], second.parity);
    ptx::thread_release(&smem.second_empty[second.stage]);
    first.advance(), second.advance();
  };
  if constexpr (kTransposed) {
    const int begin = min(BackwardWork::first_query(params.p, first_row) / kRows, work.end);
    for (; tile < own_end && column_tile < begin; ++tile, ++column_tile) skip_tile();
  }

  Scores scores;
  ptx::mbarrier_wait(&smem.rows_full, 0);
  if (tile < own_end) {
    ptx::mbarrier_wait(&smem.first_full[first.stage], first.parity);
    multiply_keys<kBlocks, kTransposed>(smem.rows[0][warpgroup], smem.first[first.stage], scores);
  }
  finish(scores);
  NO_UNROLL
  for (; tile < own_end; ++tile) {
    const int s = first.stage, t = second.stage;
    const KeyScales& first_scales = smem.first_scales[s];
    const KeyScales& second_scales = smem.second_scales[t];
    const QueryStates& states = smem.states[Tile::kRowsAreQueries ? 0 : s];
    Scores products;
    Fragments factors;
    float of_tile[kBlocks * 32], inverse[2];
    const auto multiply_second = [&] {
      multiply_keys<kBlocks, kTransposed>(smem.rows[1][warpgroup], smem.second[t], products);
    };
    ptx::mbarrier_wait(&smem.second_full[t], second.parity);
    if constexpr (kOfScores && !kOfValues) {
      multiply_second();
      if constexpr (kTransposed) finish(products);
    }
    const int first_column = (kTransposed ? column_tile : tile) * kRows;
    rows.find_probabilities(first_scales, states, first_column, head, scores);
    if constexpr (kOfValues) {
      if constexpr (!kOfScores) ptx::thread_release(&smem.first_empty[s]);
      const int column = static_cast<int>(threadIdx.x) % 4 * 2;
      const auto factor = [&](int i) {
        return scores[i] * second_scales.inverse[i / 4 * 8 + column + i % 2];
      };
      split_factors(factor, factors, inverse);
    }
    if constexpr (kOfScores && kOfValues) {
      multiply_second();
      multiply_values<kBlocks>(factors, smem.second[t], of_tile);
      finish(products, of_tile);
      add_tile(of_values, of_tile, inverse);
    } else if constexpr (kOfScores && !kTransposed) {
      finish(products);
    }
    if constexpr (kOfScores) {
      rows.find_score_gradients(first_scales, second_scales, states, scores, products);
      ptx::thread_release(&smem.second_empty[t]);
      split_factors([&](int i) { return products[i]; }, factors, inverse);
    }
    first.advance(), second.advance();
    if (kTransposed && ++column_tile == work.end) column_tile = work.begin, ++head;
    const bool is_last = tile + 1 == own_end;
    if (!is_last) {
      ptx::mbarrier_wait(&smem.first_full[first.stage], first.parity);
      multiply_keys<kBlocks, kTransposed>(smem.rows[0][warpgroup], smem.first[first.stage], scores);
    }
    multiply_values<kBlocks>(factors, kOfScores ? smem.first[s] : smem.second[t], of_tile);
    finish(scores, of_tile);
    ptx::thread_release(kOfScores ? &smem.first_empty[s] : &smem.second_empty[t]);
    add_tile(kOfScores ? of_scores : of_values, of_tile, inverse);
  }
  for (; tile < tiles; ++tile) skip_tile();
  if constexpr (kOfScores) rows.store(params.of_scores, of_scores, params.p.scale);
  if constexpr (kOfValues) rows.store(params.of_values, of_values, 1);
}

// --- The kernel and its launch -------------------------------------------------------------------

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_backward_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<BackwardSmem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    constexpr int kReaders = Tile::kConsumers * Tile::kWarpgroup;
    ptx::mbarrier_init(&smem.rows_full, 1);
    ptx::mbarrier_init_stages(smem.kFirst, smem.first_full, 1, smem.first_empty, kReaders);
    ptx::mbarrier_init_stages(smem.kSecond, smem.second_full, 1, smem.second_empty, kReaders);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / Tile::kWarpgroup);
  if (warpgroup == Tile::kConsumers) {
    ptx::setmaxnreg_dec<24>();
    if (ptx::warp_uniform(threadIdx.x / 32) % 4 == 0 && ptx::elect_one()) produce(params, smem);
  } else {
    ptx::setmaxnreg_inc<240>();
    consume(params, smem, warpgroup);
  }
}

template <class Tile>
void launch_backward(const AttentionBackward& p, const BackwardOperands& operands,
                     const Context& context) {
  using Operand = BackwardParams::Operand;
  const auto of = [&](int of_queries, int of_keys) {
    return Operand(operands.operand[Tile::kRowsAreQueries ? of_queries : of_keys]);
  };
  using enum BackwardOperands::Name;
  const int64_t rows = Tile::kRowsAreQueries ? p.queries : p.keys;
  const BackwardParams params{
      .p = p,
      .log2_scale = order::log2_scale(p.scale),
      .rows = {of(kQ, kK), of(kDout, kV)},
      .columns = {of(kK, kQ), of(kV, kDout)},
      .states = operands.states,
      .of_scores = RowWriter(Tile::kRowsAreQueries ? p.dq : p.dk, p.head_size),
      .of_values = RowWriter(p.dv, p.value_size),
      .row_blocks = static_cast<uint32_t>(ceil_div(rows, Tile::kRowsOfBlock))};
  constexpr size_t kSmem = sizeof(BackwardSmem<Tile>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = attention_backward_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const int64_t matrices = p.batch * (Tile::kRowsAreQueries ? p.heads : p.kv_heads);
  const auto blocks = static_cast<unsigned>(matrices * params.row_blocks);
  launch_pdl(kernel, blocks, Tile::kThreads, kSmem, context, params);
}

}  // namespace tiled::cuda::attention
