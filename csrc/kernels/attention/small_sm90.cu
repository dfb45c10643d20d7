// Attention in float32 for short sequences, and for few queries with any number of keys.
//
// Idea:  A block is one warpgroup with 64 queries of one head. It splits its queries, and each tile
//        of keys and values, from global to shared memory itself, and has no pipeline: while it
//        waits for memory, other blocks of the SM compute. If there are few queries, blocks share
//        their keys: each stores the sums of its tiles, and a second kernel joins these in the
//        order of the keys, so that no bit depends on how many blocks there were.
// Limit: latency, and keys and values are split once for each 64 queries.

#include <cstdint>
#include <type_traits>

#include "kernels/attention/packed.cuh"
#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::attention {
namespace {

constexpr int kWarpgroup = 128;

// kBlocks: of 64 columns of q, k and v. Beyond 128 columns a second warpgroup splits the values in
// place of the first one, and each multiplies them in a half of their columns: both find the
// exponentials that they need.
template <int kBlocks_, bool kHasMask_, bool kSharesKeys_, bool kPacked_ = false>
struct Tile {
  using Work = std::conditional_t<kPacked_, PackedWork, attention::Work>;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kHasMask = kHasMask_;
  static constexpr bool kPacked = kPacked_;
  static constexpr bool kSharesKeys = kSharesKeys_;  // a block has some of its queries' keys
  static constexpr int kWarpgroups = kBlocks == 4 ? 2 : 1, kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kOutBlocks = kBlocks / kWarpgroups;
  static constexpr int kBlocksOfSm = small_blocks_of_sm(kBlocks * 64);
};

template <int kBlocks>
struct Smem {
  alignas(1024) Boxes<kBlocks> q, k, v;
  KeyScales key_scales;
  ValueScales value_scales;
  float factors[kRows];
};

struct Params : QueryParams {
  RowReader k, v;
  int tiles_per_block;
  TileStates states;
  RowWriter out_of_tiles;
};

// Stores the sums of a tile for the two rows of a thread.
template <class Queries>
__device__ void store_tile(const Params& params, const Queries& queries, int tile,
                           const TileSums& sums, const float (&of_tile)[Queries::kOut],
                           int first_column) {
  const TileStates& to = params.states;
  const uint32_t matrix = queries.work.matrix;
  const auto first_row = queries.work.first_row(params.p), end = queries.work.query_end(params.p);
  UNROLL
  for (int row = 0; row < 2; ++row) {
    if (queries.query[row] >= end) continue;
    const int64_t query = first_row + queries.query[row];
    const auto value = [&](int i) { return of_tile[i]; };
    params.out_of_tiles.template store<Queries::kOut>(matrix, tile, query, row, value,
                                                      first_column);
    if (threadIdx.x % 4 == 0 && first_column == 0) {
      const int64_t index = queries.work.sum_index(params.p, query) * to.tiles + tile;
      to.states[index] = {sums.exponent[row], sums.sum[row]};
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksOfSm)
    small_attention_kernel(const __grid_constant__ Params params) {
  constexpr int kBlocks = Tile::kBlocks;
  constexpr bool kSharesKeys = Tile::kSharesKeys;
  // Registers are short.
  constexpr bool kAgain = kBlocks == 4 || (Tile::kPacked && !kSharesKeys);
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<kBlocks>&>(dynamic_smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  using Work = typename Tile::Work;
  const Work work(params, kRows);
  if (work.is_empty(params.p)) return;
  const int all_tiles = work.key_tiles(params.p, work.first + kRows);
  const int first_tile = kSharesKeys ? static_cast<int>(blockIdx.y) * params.tiles_per_block : 0;
  const int tiles = kSharesKeys ? min(first_tile + params.tiles_per_block, all_tiles) : all_tiles;
  if (kSharesKeys && first_tile >= tiles) return;
  const int warpgroup = Tile::kWarpgroups == 1 ? 0 : ptx::warp_uniform(threadIdx.x / kWarpgroup);
  const bool has_keys = warpgroup == 0, has_values = warpgroup == Tile::kWarpgroups - 1;
  const int first_column = warpgroup * Tile::kOutBlocks * 64;
  Queries<kBlocks, Tile::kHasMask, Tile::kOutBlocks, Work> queries(params, work, work.first,
                                                                   smem.factors);
  const int first_of_warp = work.first + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const bool has_queries = ptx::warp_uniform(first_of_warp < work.query_end(params.p));
  const RowReader &k_rows = work.keys_of(params.k), &v_rows = work.keys_of(params.v);
  const float* k = k_rows.matrix(work.kv_matrix);
  const float* v = v_rows.matrix(work.kv_matrix);
  if (has_keys) {
    const int row = static_cast<int>(work.first_row(params.p)) + work.first;
    stage_rows<kBlocks, kAgain>(params.q, params.q.matrix(work.matrix), row, smem.q);
    stage_rows<kBlocks, kAgain>(k_rows, k, first_tile * kRows, smem.k);
  }
  if (has_values) stage_rows<kBlocks, kAgain>(v_rows, v, first_tile * kRows, smem.v);
  wait_for_rows();
  auto query_scaler = queries.scaler();
  if (has_keys) split_staged<kBlocks, kAgain>(smem.q, query_scaler);
  NO_UNROLL
  for (int tile = first_tile; tile < tiles; ++tile) {
    const int first = tile * kRows, next = first + kRows;
    wait_for_rows();
    if (has_keys) {
      KeyScaler scaler{smem.key_scales};
      split_staged<kBlocks, kAgain>(smem.k, scaler);
    }
    if (has_values) {
      ValueScaler scaler{smem.value_scales, v_rows.rows - first};
      split_staged<kBlocks, kAgain>(smem.v, scaler);
    }
    ptx::fence_proxy_async();
    __syncthreads();
    Scores scores;
    multiply_keys<kBlocks>(smem.q, smem.k, scores);
    finish(scores);
    __syncthreads();  // all warps have multiplied the keys
    if (has_keys && tile + 1 < tiles) stage_rows<kBlocks, kAgain>(k_rows, k, next, smem.k);
    Fragments p = {};
    TileSums sums;
    if (has_queries) {
      sums = queries.softmax(smem.key_scales, smem.value_scales, first, scores, p);
    }
    float of_tile[Tile::kOutBlocks * 32];
    multiply_values<kBlocks>(p, smem.v, of_tile, warpgroup * Tile::kOutBlocks);
    finish(of_tile);
    __syncthreads();  // all warps have multiplied the values
    if (has_values && tile + 1 < tiles) stage_rows<kBlocks, kAgain>(v_rows, v, next, smem.v);
    if constexpr (kSharesKeys) {
      store_tile(params, queries, tile, sums, of_tile, first_column);
    } else {
      queries.join(sums, of_tile);
    }
  }
  if constexpr (!kSharesKeys) queries.store(first_column);
}

// --- Joining the tiles of a query, each thread a column ------------------------------------------

struct JoinParams {
  AttentionProblem p;
  TileStates states;
  uint32_t queries;  // of a head
};

constexpr int kJoinThreads = 128;

template <class Work>
__global__ void __launch_bounds__(kJoinThreads)
    join_tiles_kernel(const __grid_constant__ JoinParams params) {
  constexpr int kBatch = 32;  // tiles that are loaded at once
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const AttentionProblem& p = params.p;
  const auto queries = params.queries, heads = static_cast<uint32_t>(p.heads);
  const uint32_t matrix = blockIdx.x / queries, query = blockIdx.x - matrix * queries;
  const auto keys = Work::visible_keys_of_row(p, query);
  const int column = static_cast<int>(blockIdx.y * kJoinThreads + threadIdx.x);
  if (column >= p.value_size) return;
  const int tiles = static_cast<int>(ceil_div(keys, kRows));
  const TileStates::State* states = params.states.states + blockIdx.x * params.states.tiles;
  const float* of_tiles =
      params.states.out + blockIdx.x * params.states.tiles * params.states.columns + column;
  int exponent = order::kLowest;
  float sum = 0, out = 0;
  for (int first = 0; first < tiles; first += kBatch) {
    TileStates::State state[kBatch];
    float of_tile[kBatch];
    UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= tiles) break;
      state[i] = states[first + i];
      of_tile[i] = of_tiles[(first + i) * params.states.columns];
    }
    UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= tiles) break;
      const order::Join by = order::join_exponents(exponent, state[i].exponent);
      sum = order::join_sums(sum, exponent, state[i].sum, state[i].exponent, by.joined);
      exponent = by.joined;
      out = order::join(out, of_tile[i], by);
    }
  }
  const uint32_t batch = matrix / heads, head = matrix - batch * heads;
  auto* to = static_cast<float*>(p.out.data) + batch * p.out.batch_stride +
             head * p.out.head_stride + query * p.out.row_stride + column * p.out.col_stride;
  *to = order::normalized(out, order::normalizer(sum));
  if (column == 0) {
    p.sum[blockIdx.x] = sum;
    p.exponent[blockIdx.x] = order::exponent_of_sum(sum, exponent);
  }
}

// --- Launches ------------------------------------------------------------------------------------

template <class Tile>
void launch_kernel(const AttentionProblem& p, int64_t tiles_per_block, const TileStates& states,
                   const Context& context) {
  const int64_t queries = p.query_rows();
  const HeadsOf<void> out{states.out, queries * states.tiles * states.columns, states.columns,
                          states.tiles * states.columns, 1};
  const Params params{QueryParams(p, kRows),
                      RowReader(p.k, p.kv_heads, p.key_rows(), p.head_size),
                      RowReader(p.v, p.kv_heads, p.key_rows(), p.value_size),
                      static_cast<int>(tiles_per_block),
                      states,
                      RowWriter(out, states.columns)};
  constexpr size_t kSmem = sizeof(Smem<Tile::kBlocks>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = small_attention_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const auto blocks = static_cast<unsigned>(p.batch * p.heads * params.query_tiles);
  const int64_t shares = Tile::kSharesKeys ? ceil_div(states.tiles, tiles_per_block) : 1;
  launch_pdl(kernel, dim3(blocks, static_cast<unsigned>(shares)), Tile::kThreads, kSmem, context,
             params);
  if constexpr (Tile::kSharesKeys) {
    const dim3 rows(static_cast<unsigned>(p.batch * p.heads * queries),
                    static_cast<unsigned>(ceil_div(p.value_size, kJoinThreads)));
    launch_pdl(join_tiles_kernel<typename Tile::Work>, rows, kJoinThreads, 0, context,
               JoinParams{p, states, static_cast<uint32_t>(queries)});
  }
}

template <int kBlocks>
void launch_blocks(const AttentionProblem& p, int64_t tiles_per_block, const TileStates& states,
                   const Context& context) {
  const auto launch = [&](const auto& kernel) { kernel(p, tiles_per_block, states, context); };
  if (p.is_packed()) {
    launch(states.out == nullptr ? launch_kernel<Tile<kBlocks, false, false, true>>
                                 : launch_kernel<Tile<kBlocks, false, true, true>>);
  } else if (p.mask_kind == MaskKind::kNone) {
    launch(states.out == nullptr ? launch_kernel<Tile<kBlocks, false, false>>
                                 : launch_kernel<Tile<kBlocks, false, true>>);
  } else {
    launch(states.out == nullptr ? launch_kernel<Tile<kBlocks, true, false>>
                                 : launch_kernel<Tile<kBlocks, true, true>>);
  }
}

}  // namespace

void launch_small(const AttentionProblem& p, int64_t tiles_per_block, const TileStates& states,
                  const Context& context) {
  const auto launch = p.columns() <= 64    ? launch_blocks<1>
                      : p.columns() <= 128 ? launch_blocks<2>
                                           : launch_blocks<4>;
  launch(p, tiles_per_block, states, context);
}

}  // namespace tiled::cuda::attention
