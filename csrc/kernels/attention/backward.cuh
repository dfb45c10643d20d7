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
// Next:  small_backward_sm90.cu, for short sequences.
//
//   operand    rows are queries    rows are keys
//   first      q, k                k, q             scores = first first^T
//   second     dout, v             v, dout          dP = second second^T
//
//   producer      TMA: the block's rows -> rows_full
//                 wait first_empty[s];  TMA: parts and scales of a tile of columns -> first_full[s]
//                 wait second_empty[s];  the same of the second operand -> second_full[s]
//   a warpgroup   scores of the first tile;  then, tile by tile:
//                 wait second_full[s];  dP, and probabilities in registers meanwhile
//                 dv: factors from probabilities;  multiply them by the second tile
//                 dq, dk: factors from probabilities and dP;  release second_empty[s]
//                 wait first_full[next];  multiply factors by the first tile, and the next scores
//                 release first_empty[s];  add to the running sums

#include <cstdint>
#include <type_traits>

#include "core/order_attention.h"
#include "kernels/attention/backward_rows.cuh"
#include "kernels/attention/load_parts.cuh"
#include "kernels/attention/packed.cuh"
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
template <bool kRowsAreQueries, bool kOfScores_, bool kOfValues_, int kBlocks, bool kHasMask,
          bool kPacked_ = false>
struct BackwardTile : BackwardSide<kRowsAreQueries, kBlocks, kHasMask> {
  static constexpr bool kPacked = kPacked_;
  using Range = std::conditional_t<kPacked, PackedRange, WholeMatrix>;
  static constexpr bool kOfScores = kOfScores_, kOfValues = kOfValues_;
  static_assert(!(kRowsAreQueries && kOfValues));
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

  AttentionBackward p;
  float log2_scale;
  Operand rows[2], columns[2];  // first and second
  const QueryStates* states;
  RowWriter of_scores, of_values;
  uint32_t row_blocks;  // of a matrix
};

// The rows of a block, and the tiles of columns that it goes through: tiles `begin` to `end` of
// `heads` matrices.
template <class Tile>
struct BackwardWork {
  [[no_unique_address]] typename Tile::Range range;
  uint32_t matrix, batch, head;
  int first;  // row
  uint32_t column_head, column_matrix, heads = 1;
  int begin = 0, end;
  int first_part, first_column_tile = 0;  // in the parts: of the rows, and of the tiles

  // All lanes of a warp call this.
  __device__ static BackwardWork of_block(const BackwardParams& params) {
    const AttentionProblem& p = params.p;
    const auto q_heads = static_cast<uint32_t>(p.heads);
    const auto kv_heads = static_cast<uint32_t>(p.kv_heads), group = q_heads / kv_heads;
    BackwardWork work;
    if constexpr (Tile::kPacked) return work.find_range(params, group);
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
    work.first_part = work.first;
    return work;
  }
  __device__ BackwardWork find_range(const BackwardParams& params, uint32_t group) {
    const AttentionProblem& p = params.p;
    constexpr bool kRowsAreQueries = Tile::kRowsAreQueries;
    const PackedRows& rows = kRowsAreQueries ? p.packed_queries : p.packed_keys;
    const PackedRows& columns = kRowsAreQueries ? p.packed_keys : p.packed_queries;
    matrix = head = blockIdx.x / params.row_blocks, batch = 0;
    const uint32_t block = blockIdx.x - matrix * params.row_blocks;
    const uint32_t index = kRowsAreQueries ? params.row_blocks - 1 - block : block;
    const PackedTile tile(rows, Tile::kRowsOfBlock, static_cast<int>(index));
    range = PackedRange::of<kRowsAreQueries>(p, tile.range);
    first = tile.first;
    first_part = rows.first_tile(tile.range, kRows) * kRows + first;
    first_column_tile = columns.first_tile(tile.range, kRows);
    if constexpr (kRowsAreQueries) {
      column_matrix = column_head = head / group;
      end = key_tiles(p, first + Tile::kRowsOfBlock);
    } else {
      column_matrix = column_head = head * group;
      heads = group;
      end = (range.queries(p) + kRows - 1) / kRows;
      begin = min(range.first_query(p, first) / kRows, end);
    }
    return *this;
  }
  // The tiles of keys that any of the queries from this block's first one to `last` sees.
  __device__ int key_tiles(const AttentionProblem& p, int64_t last) const {
    const int64_t query = min(last, int64_t{range.queries(p)}) - 1;
    return static_cast<int>(ceil_div(range.visible_keys(p, query), kRows));
  }
  __device__ int64_t row_end(const AttentionProblem& p) const {
    return Tile::kRowsAreQueries ? range.queries(p) : range.keys(p);
  }
  __device__ int tiles() const { return static_cast<int>(heads) * (end - begin); }
};

// --- The producer --------------------------------------------------------------------------------

template <class Tile>
__device__ void produce(const BackwardParams& params, BackwardSmem<Tile>& smem) {
  constexpr int kBlocks = Tile::kBlocks;
  const auto work = BackwardWork<Tile>::of_block(params);
  if (!ptx::elect_one()) return;
  if (Tile::kPacked && work.first >= work.row_end(params.p)) return;
  ptx::arrive_expect_tx(&smem.rows_full, sizeof(smem.rows));
  NO_UNROLL
  for (int i = 0; i < Tile::kOperands * Tile::kConsumers; ++i) {
    const int operand = i / Tile::kConsumers, warpgroup = i % Tile::kConsumers;
    load_parts<kBlocks>(smem.rows[operand][warpgroup], params.rows[operand].map,
                        work.first_part + warpgroup * kRows, work.matrix, &smem.rows_full);
  }
  ptx::PipelineState first{.stages = Tile::kFirstStages, .parity = 1};
  ptx::PipelineState second{.stages = Tile::kSecondStages, .parity = 1};
  const auto load = [&](int operand, uint32_t matrix, int tile, Boxes<kBlocks>& to,
                        KeyScales& scales, uint64_t* full) {
    const BackwardParams::Operand& from = params.columns[operand];
    const int at = work.first_column_tile + tile;
    load_parts<kBlocks>(to, from.map, at * kRows, matrix, full);
    const int64_t index = int64_t{matrix} * from.tiles + at;
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

template <class Tile>
__device__ void consume(const BackwardParams& params, BackwardSmem<Tile>& smem, int warpgroup) {
  constexpr int kBlocks = Tile::kBlocks;
  constexpr bool kTransposed = !Tile::kRowsAreQueries;
  constexpr bool kOfScores = Tile::kOfScores, kOfValues = Tile::kOfValues;
  const auto work = BackwardWork<Tile>::of_block(params);
  if (Tile::kPacked && work.first >= work.row_end(params.p)) return;
  const int first_row = work.first + warpgroup * kRows;
  const auto own_tiles = static_cast<int>(params.rows[0].tiles);
  const int own_tile = (work.first_part + warpgroup * kRows) / kRows;
  const int64_t own = int64_t{work.matrix} * own_tiles + min(own_tile, own_tiles - 1);
  const OwnRows<Tile, typename Tile::Range> rows(
      params.p, params.log2_scale, work.batch, work.head, first_row, params.rows[0].scales[own],
      params.rows[1].scales[own], params.states + (kTransposed ? 0 : own), work.range);
  float of_scores[kBlocks * 32] = {}, of_values[kBlocks * 32] = {};

  // Tiles that the other warpgroup alone multiplies: the last ones of queries, the first ones of
  // keys, but not of the other heads of their group.
  const int tiles = work.tiles();
  int tile = 0, own_end = tiles, column_tile = work.begin;
  uint32_t head = work.column_head;
  if constexpr (Tile::kRowsAreQueries) {
    own_end = first_row < work.row_end(params.p) ? work.key_tiles(params.p, first_row + kRows) : 0;
  } else if (first_row >= work.row_end(params.p)) {
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
    const int begin = min(work.range.first_query(params.p, first_row) / kRows, work.end);
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
      rows.split_probabilities(second_scales, scores, factors, inverse);
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
      rows.find_score_gradients(first_scales, second_scales, states, first_column, scores,
                                products);
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
    if (ptx::warp_uniform(threadIdx.x / 32) % 4 == 0) produce(params, smem);
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
  constexpr int kRowsOfBlock = Tile::kRowsOfBlock;
  const int64_t row_blocks =
      Tile::kRowsAreQueries ? p.query_tiles(kRowsOfBlock) : p.key_tiles(kRowsOfBlock);
  const BackwardParams params{
      .p = p,
      .log2_scale = order::log2_scale(p.scale),
      .rows = {of(kQ, kK), of(kDout, kV)},
      .columns = {of(kK, kQ), of(kV, kDout)},
      .states = operands.states,
      .of_scores = RowWriter(Tile::kRowsAreQueries ? p.dq : p.dk, p.head_size),
      .of_values = RowWriter(p.dv, p.value_size),
      .row_blocks = static_cast<uint32_t>(row_blocks)};
  constexpr size_t kSmem = sizeof(BackwardSmem<Tile>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = attention_backward_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const int64_t matrices = p.batch * (Tile::kRowsAreQueries ? p.heads : p.kv_heads);
  const auto blocks = static_cast<unsigned>(matrices * params.row_blocks);
  launch_pdl(kernel, blocks, Tile::kThreads, kSmem, context, params);
}

}  // namespace tiled::cuda::attention
