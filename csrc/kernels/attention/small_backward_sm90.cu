// Gradients of attention in float32 for short sequences, in one launch and without a workspace.
//
// Idea:  A block has a head of k and v, and in turn the heads of q that share it. It copies q, k,
//        v and dout to shared memory and splits them there. Then its first warpgroup computes dq,
//        and another one dk and dv of each 64 keys, by the functions of the kernels for long
//        sequences. If there are many heads of up to 64 rows, one warpgroup computes all.
// Limit: latency: rows are loaded, split, multiplied and stored in turn.
//
//   warpgroup     of queries                           of keys
//   reads         q, and k with the first head         dout, and v with the first head
//                 delta and the denominators
//                 ------------------ barrier -------------------
//   multiplies    scores = q k^T, dP = dout v^T        scores = k q^T
//                                                      dv += probabilities dout;  dP = v dout^T
//                 dq += dS k                           dk += dS q
//                 -------- barrier, and the next head ----------
//
// A sum over several tiles or heads is kept where it will be stored, as only one thread adds to it.

#include <algorithm>
#include <cstdint>

#include "kernels/attention/backward_rows.cuh"
#include "kernels/attention/parts.h"
#include "kernels/attention/split_rows.cuh"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::attention {
namespace {

using enum BackwardOperands::Name;
constexpr int kWarpgroup = 128;

// kTiles: of 64 queries, and of 64 keys. kBlocks: of 64 columns. kTogether: one warpgroup computes
// all; otherwise the first one computes dq, and another one dk and dv of each 64 keys.
template <int kTiles_, int kBlocks_, bool kTogether_, bool kHasMask_>
struct Tile {
  static constexpr int kTiles = kTiles_, kBlocks = kBlocks_;
  static constexpr bool kTogether = kTogether_;
  static_assert(!kTogether || kTiles == 1);
  static constexpr int kWarpgroups = kTogether ? 1 : 1 + kTiles;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kBlocksOfSm = kTogether ? 3 : 1;
  using OfQueries = BackwardSide<true, kBlocks_, kHasMask_>;
  using OfKeys = BackwardSide<false, kBlocks_, kHasMask_>;
};

template <class Tile>
struct Smem {
  alignas(1024) Boxes<Tile::kBlocks> parts[kCount][Tile::kTiles];
  KeyScales scales[kCount][Tile::kTiles];
  QueryStates states[Tile::kTiles];
};

struct Params {
  AttentionBackward p;
  float log2_scale;
  RowReader from[kCount];
  StateReader states;
  RowWriter dq, dk, dv;
  int query_tiles;
};

// The heads of a block.
struct Group {
  uint32_t batch, kv_head, count;

  __device__ explicit Group(const AttentionProblem& p) {
    const auto kv_heads = static_cast<uint32_t>(p.kv_heads);
    batch = blockIdx.x / kv_heads, kv_head = blockIdx.x - batch * kv_heads;
    count = static_cast<uint32_t>(p.heads) / kv_heads;
  }
  __device__ uint32_t head(uint32_t i) const { return kv_head * count + i; }
};

// Adds a tile's sums to rows of a gradient. A sum that is not the last one is stored without the
// scale.
template <class Rows, int kCount>
__device__ void add_to_rows(const Rows& rows, const RowWriter& to, const float (&of_tile)[kCount],
                            const float (&inverse)[2], bool is_first, float scale) {
  float total[kCount] = {};
  if (!is_first) rows.load(to, total);
  add_tile(total, of_tile, inverse);
  rows.store(to, total, scale);
}

// Computes dq of 64 queries of a head.
template <class Tile>
__device__ void find_dq(const Params& params, const Smem<Tile>& smem, uint32_t batch, uint32_t head,
                        int row_tile) {
  constexpr int kBlocks = Tile::kBlocks;
  const int first = row_tile * kRows;
  if (!params.p.needs_queries() || first >= params.p.queries) return;
  const QueryStates& states = smem.states[row_tile];
  const OwnRows<typename Tile::OfQueries> rows(params.p, params.log2_scale, batch, head, first,
                                               smem.scales[kQ][row_tile],
                                               smem.scales[kDout][row_tile], &states);
  const int tiles = Work::key_tiles(params.p, first + kRows);
  float of_tile[kBlocks * 32] = {}, inverse[2];
  if (tiles == 0) rows.store(params.dq, of_tile, params.p.scale);
  NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    const KeyScales& k_scales = smem.scales[kK][tile];
    Scores scores, products;
    Fragments factors;
    multiply_keys<kBlocks>(smem.parts[kQ][row_tile], smem.parts[kK][tile], scores);
    multiply_keys<kBlocks>(smem.parts[kDout][row_tile], smem.parts[kV][tile], products);
    finish(scores, products);
    rows.find_probabilities(k_scales, states, tile * kRows, head, scores);
    rows.find_score_gradients(k_scales, smem.scales[kV][tile], states, tile * kRows, scores,
                              products);
    split_factors([&](int i) { return products[i]; }, factors, inverse);
    multiply_values<kBlocks>(factors, smem.parts[kK][tile], of_tile);
    finish(of_tile);
    const bool is_last = tile + 1 == tiles;
    add_to_rows(rows, params.dq, of_tile, inverse, tile == 0, is_last ? params.p.scale : 1);
  }
}

// Adds the sums over the queries of a head to dk and dv of 64 keys. i: of the head
template <class Tile>
__device__ void find_dk_and_dv(const Params& params, const Smem<Tile>& smem, const Group& heads,
                               uint32_t i, int row_tile) {
  constexpr int kBlocks = Tile::kBlocks;
  const int first = row_tile * kRows, tiles = params.query_tiles;
  if (!params.p.needs_keys() || first >= params.p.keys) return;
  const OwnRows<typename Tile::OfKeys> rows(params.p, params.log2_scale, heads.batch, heads.kv_head,
                                            first, smem.scales[kK][row_tile],
                                            smem.scales[kV][row_tile], nullptr);
  const int begin = min(first_query(params.p, first) / kRows, tiles);
  float of_tile[kBlocks * 32] = {}, inverse[2];
  if (begin == tiles) {
    rows.store(params.dk, of_tile, params.p.scale);
    rows.store(params.dv, of_tile, 1);
  }
  NO_UNROLL
  for (int tile = begin; tile < tiles; ++tile) {
    const KeyScales &q_scales = smem.scales[kQ][tile], &dout_scales = smem.scales[kDout][tile];
    const QueryStates& states = smem.states[tile];
    const bool is_first = i == 0 && tile == begin;
    const bool is_last = i + 1 == heads.count && tile + 1 == tiles;
    Scores scores, products;
    Fragments factors;
    multiply_keys<kBlocks, true>(smem.parts[kK][row_tile], smem.parts[kQ][tile], scores);
    finish(scores);
    rows.find_probabilities(q_scales, states, tile * kRows, heads.head(i), scores);
    rows.split_probabilities(dout_scales, scores, factors, inverse);
    multiply_values<kBlocks>(factors, smem.parts[kDout][tile], of_tile);
    finish(of_tile);
    add_to_rows(rows, params.dv, of_tile, inverse, is_first, 1);
    multiply_keys<kBlocks, true>(smem.parts[kV][row_tile], smem.parts[kDout][tile], products);
    finish(products);
    rows.find_score_gradients(q_scales, dout_scales, states, tile * kRows, scores, products);
    split_factors([&](int j) { return products[j]; }, factors, inverse);
    multiply_values<kBlocks>(factors, smem.parts[kQ][tile], of_tile);
    finish(of_tile);
    add_to_rows(rows, params.dk, of_tile, inverse, is_first, is_last ? params.p.scale : 1);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksOfSm)
    small_backward_kernel(const __grid_constant__ Params params) {
  constexpr int kBlocks = Tile::kBlocks, kTiles = Tile::kTiles, kWarpgroups = Tile::kWarpgroups;
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / kWarpgroup);
  const Group heads(params.p);
  NO_UNROLL
  for (uint32_t i = 0; i < heads.count; ++i) {
    const uint32_t matrix = heads.batch * params.from[kQ].heads + heads.head(i);
    if (i > 0) __syncthreads();  // all warps have read the last head
    // Tiles of q and dout, and with the first head also of k and v.
    static_assert(kQ < kK && kDout < kK && kK < kV);
    const int end = (i == 0 ? kCount : kK) * kTiles;
    NO_UNROLL
    for (int at = warpgroup; at < end; at += kWarpgroups) {
      const int operand = at / kTiles, tile = at % kTiles;
      const RowReader& from = params.from[operand];
      const float* rows = from.matrix(operand < kK ? matrix : blockIdx.x);
      stage_rows<kBlocks, true>(from, rows, tile * kRows, smem.parts[operand][tile]);
    }
    NO_UNROLL
    for (int tile = 0; tile < kTiles && warpgroup + 1 == kWarpgroups; ++tile) {
      params.states.read<kBlocks>(matrix, tile * kRows, smem.states[tile]);
    }
    wait_for_rows();
    NO_UNROLL
    for (int at = warpgroup; at < end; at += kWarpgroups) {
      KeyScaler scaler{smem.scales[at / kTiles][at % kTiles]};
      split_staged<kBlocks, true>(smem.parts[at / kTiles][at % kTiles], scaler);
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (Tile::kTogether || warpgroup == 0) {
      NO_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        find_dq(params, smem, heads.batch, heads.head(i), tile);
      }
    }
    if (Tile::kTogether || warpgroup > 0) {
      find_dk_and_dv(params, smem, heads, i, Tile::kTogether ? 0 : warpgroup - 1);
    }
  }
}

template <class Tile>
void launch_tile(const AttentionBackward& p, const Context& context) {
  const Params params{p,
                      order::log2_scale(p.scale),
                      {RowReader(p.q, p.heads, p.queries, p.head_size),
                       RowReader(p.dout, p.heads, p.queries, p.value_size),
                       RowReader(p.k, p.kv_heads, p.keys, p.head_size),
                       RowReader(p.v, p.kv_heads, p.keys, p.value_size)},
                      StateReader(p),
                      RowWriter(p.dq, p.head_size),
                      RowWriter(p.dk, p.head_size),
                      RowWriter(p.dv, p.value_size),
                      static_cast<int>(ceil_div(p.queries, kRows))};
  constexpr size_t kSmem = sizeof(Smem<Tile>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = small_backward_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const auto blocks = static_cast<unsigned>(p.batch * p.kv_heads);
  launch_pdl(kernel, blocks, Tile::kThreads, kSmem, context, params);
}

}  // namespace

bool accepts_small_backward(const AttentionBackward& p) {
  return std::max(p.queries, p.keys) <= (p.columns() <= 64 ? 2 : 1) * kRows;
}

void launch_small_backward(const AttentionBackward& p, const Context& context) {
  const auto launch = [&]<bool kHasMask>() {
    if (p.columns() > 64) {
      launch_tile<Tile<1, 2, false, kHasMask>>(p, context);
    } else if (std::max(p.queries, p.keys) > kRows) {
      launch_tile<Tile<2, 1, false, kHasMask>>(p, context);
    } else if (p.batch * p.kv_heads <= context.sms) {
      launch_tile<Tile<1, 1, false, kHasMask>>(p, context);
    } else {
      launch_tile<Tile<1, 1, true, kHasMask>>(p, context);
    }
  };
  p.mask_kind != MaskKind::kNone ? launch.operator()<true>() : launch.operator()<false>();
}

}  // namespace tiled::cuda::attention
