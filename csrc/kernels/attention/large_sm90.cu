// Attention in float32 for long sequences: softmax between two products of parts, in one kernel.
//
// Idea:  A block has 128 queries of one head, each of two warpgroups 64 of them, and goes through
//        the keys by tiles of 64, which another kernel has split (parts.h). A warpgroup multiplies
//        its queries by a tile of keys (wgmma, three products of float16 parts), turns the
//        accumulators into exponentials in registers, splits those, and multiplies them by the
//        tile's values from registers. Powers of two join the tile's sums to the running ones.
//        While one warpgroup computes exponentials, the other's products keep the tensor cores
//        busy.
// Limit: about 20 instructions for each query and key, which a scheduler's two warps do not hide
//        behind the products: these take half of the time.
// Next:  small_sm90.cu, for short sequences.
//
//   producer      wait k_empty[s];  TMA: parts of a tile of keys, and scales -> k_full[s]; v alike
//   a warpgroup   wait k_full[s];  scores = q k;  exponentials in registers;  release k_empty[s]
//                 wait v_full[s];  o = p v, and the scores of the next tile
//                 release v_empty[s];  join o to the running sums

#include <cstdint>
#include <type_traits>

#include "kernels/attention/load_parts.cuh"
#include "kernels/attention/packed.cuh"
#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::attention {
namespace {

// --- The tile and its shared memory --------------------------------------------------------------

// kBlocks: of 64 columns of q, k and v.
template <int kBlocks_, bool kHasMask_, bool kPacked = false>
struct Tile {
  using Work = std::conditional_t<kPacked, PackedWork, attention::Work>;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kHasMask = kHasMask_;
  static constexpr int kConsumers = 2, kWarpgroup = 128, kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kStages = kBlocks == 1 ? 4 : 2;
};

template <class Tile>
struct Smem {
  static constexpr int kStages = Tile::kStages;
  alignas(1024) Boxes<Tile::kBlocks> q[Tile::kConsumers];
  Boxes<Tile::kBlocks> k[kStages], v[kStages];
  KeyScales key_scales[kStages];
  ValueScales value_scales[kStages];
  float factors[Tile::kConsumers][kRows];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

struct Params : QueryParams {
  CUtensorMap k, v;
  const KeyScales* key_scales;
  const ValueScales* value_scales;
  uint32_t key_tiles;
};

// --- The producer --------------------------------------------------------------------------------

template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  const typename Tile::Work work(params, Tile::kQueries);
  if (!ptx::elect_one() || work.is_empty(params.p)) return;
  const int tiles = work.key_tiles(params.p, work.first + Tile::kQueries);
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  for (int tile = 0; tile < tiles; ++tile, pipe.advance()) {
    const int s = pipe.stage;
    const int at = work.first_key_tile + tile;
    const int64_t scales = int64_t{work.kv_matrix} * params.key_tiles + at;
    uint64_t* full = &smem.k_full[s];
    ptx::mbarrier_wait(&smem.k_empty[s], pipe.parity);
    ptx::arrive_expect_tx(full, sizeof(smem.k[s]) + sizeof(KeyScales));
    load_parts<Tile::kBlocks>(smem.k[s], params.k, at * kRows, work.kv_matrix, full);
    ptx::bulk_load(&smem.key_scales[s], &params.key_scales[scales], sizeof(KeyScales), full);
    full = &smem.v_full[s];
    ptx::mbarrier_wait(&smem.v_empty[s], pipe.parity);
    ptx::arrive_expect_tx(full, sizeof(smem.v[s]) + sizeof(ValueScales));
    load_parts<Tile::kBlocks>(smem.v[s], params.v, at * kRows, work.kv_matrix, full);
    ptx::bulk_load(&smem.value_scales[s], &params.value_scales[scales], sizeof(ValueScales), full);
  }
}

// --- A warpgroup ---------------------------------------------------------------------------------

template <class Tile>
__device__ void consume(const Params& params, Smem<Tile>& smem, int warpgroup) {
  constexpr int kBlocks = Tile::kBlocks;
  using Work = typename Tile::Work;
  const Work work(params, Tile::kQueries);
  if (work.is_empty(params.p)) return;
  const int first = work.first + warpgroup * kRows;
  const int tiles = work.key_tiles(params.p, work.first + Tile::kQueries);
  const int own_tiles =
      first < work.query_end(params.p) ? work.key_tiles(params.p, first + kRows) : 0;
  const Boxes<kBlocks>& q = smem.q[warpgroup];
  Queries<kBlocks, Tile::kHasMask, kBlocks, Work> queries(params, work, first,
                                                          smem.factors[warpgroup]);
  const int row = static_cast<int>(work.first_row(params.p)) + first;
  auto scaler = queries.scaler();
  const auto store = [&](auto... part) { store_parts<kBlocks>(smem.q[warpgroup], part...); };
  split_rows<kBlocks>(params.q, params.q.matrix(work.matrix), row, scaler, store);
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(1 + warpgroup, Tile::kWarpgroup);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  Scores scores;
  if (own_tiles > 0) {
    ptx::mbarrier_wait(&smem.k_full[0], 0);
    multiply_keys<kBlocks>(q, smem.k[0], scores);
  }
  finish(scores);
  NO_UNROLL
  for (int tile = 0; tile < own_tiles; ++tile) {
    const int s = pipe.stage;
    const int parity = pipe.parity;
    Fragments p;
    float of_tile[kBlocks * 32];
    ptx::mbarrier_wait(&smem.v_full[s], parity);  // its scales
    const TileSums sums =
        queries.softmax(smem.key_scales[s], smem.value_scales[s], tile * kRows, scores, p);
    ptx::thread_release(&smem.k_empty[s]);
    pipe.advance();
    const bool is_last = tile + 1 == own_tiles;
    if (!is_last) ptx::mbarrier_wait(&smem.k_full[pipe.stage], pipe.parity);
    if (!is_last) multiply_keys<kBlocks>(q, smem.k[pipe.stage], scores);
    multiply_values<kBlocks>(p, smem.v[s], of_tile);
    finish(scores, of_tile);
    ptx::thread_release(&smem.v_empty[s]);
    queries.join(sums, of_tile);
  }
  // Tiles that the other warpgroup alone multiplies.
  for (int tile = own_tiles; tile < tiles; ++tile, pipe.advance()) {
    ptx::mbarrier_wait(&smem.k_full[pipe.stage], pipe.parity);
    ptx::thread_release(&smem.k_empty[pipe.stage]);
    ptx::mbarrier_wait(&smem.v_full[pipe.stage], pipe.parity);
    ptx::thread_release(&smem.v_empty[pipe.stage]);
  }
  queries.store();
}

// --- The kernel and its launch -------------------------------------------------------------------

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    constexpr int kReaders = Tile::kConsumers * Tile::kWarpgroup;
    ptx::mbarrier_init_stages(Tile::kStages, smem.k_full, 1, smem.k_empty, kReaders);
    ptx::mbarrier_init_stages(Tile::kStages, smem.v_full, 1, smem.v_empty, kReaders);
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
void launch_tile(const AttentionProblem& p, const SplitOperands& parts, const Context& context) {
  const Params params{QueryParams(p, Tile::kQueries),
                      map_of(parts.k),
                      map_of(parts.v),
                      parts.key_scales,
                      parts.value_scales,
                      parts.key_tiles};
  constexpr size_t kSmem = sizeof(Smem<Tile>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = attention_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const int64_t blocks = p.batch * p.heads * params.query_tiles;
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, kSmem, context, params);
}

}  // namespace

void launch_large(const AttentionProblem& p, const SplitOperands& parts, const Context& context) {
  const auto launch = [&]<bool kHasMask, bool kPacked>() {
    parts.k.columns == 64 ? launch_tile<Tile<1, kHasMask, kPacked>>(p, parts, context)
                          : launch_tile<Tile<2, kHasMask, kPacked>>(p, parts, context);
  };
  if (p.is_packed()) {
    launch.operator()<false, true>();
  } else if (p.mask_kind != MaskKind::kNone) {
    launch.operator()<true, false>();
  } else {
    launch.operator()<false, false>();
  }
}

}  // namespace tiled::cuda::attention
