#pragma once
// The kernel of simt_cp_async and its launch. The recompute kernel of fp16x3 and tf32 sums regions
// by its main loop, too.
//
//   producers   wait empty[stage]    cp.async A and B of a step -> full[stage]
//   consumers   wait full[stage]     load its first fragments while the ones before are multiplied
//               its last fragments are loaded -> empty[stage]

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/plan.h"
#include "kernels/simt/register_tile.cuh"
#include "kernels/simt/split_k_reduce.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::simt_cp_async {

// --- Producers and consumers ---------------------------------------------------------------------

template <class Tile>
struct Smem {
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  PaddedStage<Tile> stage[Tile::kStages];

  __device__ void init_barriers() {
    ptx::mbarrier_init_stages(Tile::kStages, full, Tile::kProducers, empty, Tile::kConsumers / 32);
  }
};

// Which operands are copied by 128-bit vectors along M or N.
struct Vectorized {
  bool a, b;
};

// Loads `length` of K from `first_k` on. `thread` counts the producers. The pipe of a
// producer begins with parity 1.
template <class Tile>
__device__ void produce(const Problem& p, Vectorized vectorized, const TileIndex& tile,
                        int64_t first_k, int64_t length, int thread, Smem<Tile>& smem,
                        ptx::PipelineState& pipe) {
  using Stage = PaddedStage<Tile>;
  const auto* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                  tile.row * p.a.row_stride + first_k * p.a.col_stride;
  const auto* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                  tile.col * p.b.col_stride + first_k * p.b.row_stride;
  CpAsyncLoader<float, Tile::kM, Stage::kPitchA, Tile::kK, Tile::kProducers> load_a(
      a, p.a.row_stride, p.a.col_stride, vectorized.a, p.m - tile.row, thread);
  LoaderOfB<Tile, Tile::kProducers> load_b(p.b, b, vectorized.b, p.n - tile.col, thread);
  const bool whole = p.m - tile.row >= Tile::kM && p.n - tile.col >= Tile::kN;
  for (int64_t k_left = length; k_left > 0; k_left -= Tile::kK, pipe.advance()) {
    ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
    if (whole && k_left >= Tile::kK) {
      load_a.load_whole(smem.stage[pipe.stage].a);
      load_b.load_whole(smem.stage[pipe.stage]);
    } else {
      load_a.load(smem.stage[pipe.stage].a, k_left);
      load_b.load(smem.stage[pipe.stage], k_left);
    }
    ptx::cp_async_mbarrier_arrive_noinc(&smem.full[pipe.stage]);
  }
}

// Sums what the producers load, chunk by chunk: `end_chunk(acc)` gets the sums of each. `thread`
// counts the consumers.
template <class Tile, class EndChunk>
__device__ void sum_chunks(int64_t length, int thread, Smem<Tile>& smem, ptx::PipelineState& pipe,
                           const EndChunk& end_chunk, const SignsOfB& signs_of_b = {}) {
  const QuadCoord<Tile> first(thread, 0);
  Fragments<Tile> fragments(signs_of_b);
  auto load = [&](int place, int kk) {
    const auto& stage = smem.stage[pipe.stage];
    fragments.load(place, stage.a_at(kk, first.row), stage.b_at(kk, first.col));
  };
  float acc[Tile::kThreadM][Tile::kThreadN];
  auto multiply = [&](int place) { fragments.multiply(place, acc); };
  int64_t stages_left = ceil_div(length, Tile::kK);
  auto next_stage = [&] {
    __syncwarp();  // all lanes have loaded the last fragments
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[pipe.stage]);
    pipe.advance();
    if (--stages_left > 0) {
      ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
      load(0, 0);
    }
  };

  ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
  load(0, 0);
  for (int64_t k_left = length; k_left > 0; k_left -= kChunk) {
    const int in_chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    UNROLL
    for (int i = 0; i < Tile::kThreadM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = 0;
    }
    NO_UNROLL
    for (int steps = in_chunk / Tile::kK; steps > 0; --steps) {
      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        if (kk + 1 < Tile::kK) {
          load(kk + 1, kk + 1);
        } else {
          next_stage();
        }
        multiply(kk);
      }
    }
    if (in_chunk % Tile::kK != 0) {
      NO_UNROLL
      for (int kk = 0; kk < in_chunk % Tile::kK; kk += Tile::kParts) {
        if constexpr (Tile::kComplex) load(1, kk + 1);
        multiply(0);
        if constexpr (Tile::kComplex) multiply(1);
        load(0, kk + Tile::kParts);
      }
      next_stage();
    }
    end_chunk(acc);
  }
}

// --- The kernel ----------------------------------------------------------------------------------

inline constexpr const auto& kTiles = h200::kSimtCpAsyncTiles;

// kSigned_: a complex B has more signs in B' than -y has. They cost an instruction for each number.
template <int kIndex, bool kComplex, bool kSigned_>
struct Tile : RegisterTile<kTiles[kIndex].m, kTiles[kIndex].n, kTiles[kIndex].thread_m,
                           kTiles[kIndex].thread_n, kTiles[kIndex].lanes_m, kComplex> {
  static constexpr bool kSigned = kSigned_;
  static constexpr int kK = kTiles[kIndex].k;  // of a step
  static constexpr int kStages = kTiles[kIndex].stages;
  static constexpr int kProducers = kTiles[kIndex].producer_threads;
  static constexpr int kThreads = Tile::kConsumers + kProducers;
  static constexpr int kBlocksPerSm = kTiles[kIndex].blocks;
  // The tile of sums, which no longer depends on how B is read.
  using Sums = RegisterTile<kTiles[kIndex].m, kTiles[kIndex].n, kTiles[kIndex].thread_m,
                            kTiles[kIndex].thread_n, kTiles[kIndex].lanes_m>;

  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

struct Params {
  Problem p;
  Vectorized vectorized;
  bool c_vectorized;
  int64_t tiles;
  unsigned k_splits;
  size_t totals_offset;  // in shared memory, of finished chunks' sums, if K is not split
  void* partial_sums;    // the workspace, TileSums[chunk][tile], if K is split
  SignsOfB signs_of_b;   // of a complex B
};

template <class Tile>
__device__ void consume(const Params& params, const TileIndex& tile, const ChunkRange& chunks,
                        Smem<Tile>& smem) {
  auto& totals =
      reinterpret_cast<TileSums<Tile>&>(reinterpret_cast<uint8_t*>(&smem)[params.totals_offset]);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  unsigned chunk = chunks.begin;
  sum_chunks(
      chunks.length, threadIdx.x, smem, pipe,
      [&](const float(&acc)[Tile::kThreadM][Tile::kThreadN]) {
        // The totals of an only chunk overwrite the stages, once all consumers have read them.
        if (params.totals_offset < sizeof(smem)) ptx::named_barrier_sync(1, Tile::kConsumers);
        Quad* sums =
            params.k_splits == 1
                ? &totals[0][threadIdx.x]
                : &static_cast<TileSums<Tile>*>(
                      params.partial_sums)[chunk * params.tiles + blockIdx.x][0][threadIdx.x];
        add_to_totals<Tile>(params.k_splits > 1 || chunk == 0, acc, sums);
        ++chunk;
      },
      Tile::kSigned ? params.signs_of_b : SignsOfB{});
  if (params.k_splits > 1) return;

  const Problem& p = params.p;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  store_quads<Tile>(p, params.c_vectorized, c_offset, tile.row, tile.col, threadIdx.x, totals);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    simt_cp_async_kernel(const __grid_constant__ Params params, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (params.k_splits > 1) ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();
  const TileIndex tile = tile_index<Tile>(params.p, first_tile + blockIdx.x);
  const ChunkRange chunks(params.p.k, blockIdx.y, params.k_splits);
  if (threadIdx.x >= Tile::kConsumers) {
    ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
    const int thread = static_cast<int>(threadIdx.x) - Tile::kConsumers;
    produce(params.p, params.vectorized, tile, chunks.k, chunks.length, thread, smem, pipe);
  } else {
    consume<Tile>(params, tile, chunks, smem);
  }
}

// Without memory for the partial sums, K is not split. A complex B is stored as in_place_b()
// describes it.
template <class Tile>
void run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  Params params{
      .p = p,
      .vectorized = {is_a_vectorized(p), is_b_vectorized(Tile::kComplex ? with_parts_of_b(p) : p)},
      .c_vectorized = is_c_vectorized(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .k_splits = static_cast<unsigned>(plan.k_splits),
      .totals_offset = offsetof(Smem<Tile>, stage),
      .partial_sums = nullptr,
      .signs_of_b = signs_of_b,
  };
  const int64_t chunks = ceil_div(p.k, kChunk);
  if (plan.k_splits > 1) {
    static_assert(sizeof(TileSums<Tile>) == Tile::kM * Tile::kN * sizeof(float));
    params.partial_sums = context.allocate(simt_partial_sums_bytes(p, plan));
    if (params.partial_sums == nullptr) {
      Plan not_split = plan;
      not_split.k_splits = 1;
      return run<Tile>(p, not_split, signs_of_b, context);
    }
  }
  static_assert(sizeof(TileSums<Tile>) <= sizeof(Smem<Tile>::stage),
                "the totals of an only chunk fit in the stages");
  static_assert(sizeof(Smem<Tile>) + sizeof(TileSums<Tile>) <= 99 << 10,
                "a block of compute capability 8.6 or 8.9 has at most 99 KiB of shared memory");
  const bool has_totals = chunks > 1 && plan.k_splits == 1;
  if (has_totals) params.totals_offset = sizeof(Smem<Tile>);
  size_t smem_bytes = sizeof(Smem<Tile>) + (has_totals ? sizeof(TileSums<Tile>) : 0);
  if (context.on_hopper()) {
    smem_bytes = shared_memory_for(smem_bytes, plan.blocks_per_sm);
    allow_shared_memory(simt_cp_async_kernel<Tile>, kMaxSharedMemory);
  } else {
    allow_shared_memory(simt_cp_async_kernel<Tile>, sizeof(Smem<Tile>) + sizeof(TileSums<Tile>));
  }
  const auto stream = static_cast<cudaStream_t>(context.stream);
  for_grids(params.tiles, [&](int64_t first, unsigned blocks) {
    const dim3 grid(blocks, params.k_splits);
    simt_cp_async_kernel<Tile><<<grid, Tile::kThreads, smem_bytes, stream>>>(params, first);
  });
  if (plan.k_splits == 1) return;
  launch_split_k_reduce<typename Tile::Sums>(
      {p, params.c_vectorized, params.tiles, params.partial_sums}, context);
}

// Launches the plan's tile.
template <bool kComplex, bool kSigned>
bool run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  return with_tile<std::size(kTiles)>(plan.tile, [&]<int kIndex>() {
    run<Tile<kIndex, kComplex, kSigned>>(p, plan, signs_of_b, context);
    return true;
  });
}

}  // namespace tiled::cuda::simt_cp_async
