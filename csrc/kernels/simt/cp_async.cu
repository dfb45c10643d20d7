// simt_cp_async: some warps load by cp.async, the others multiply.
//
// Idea:  Producer warps fill a ring of stages in shared memory by cp.async, several steps ahead, so
//        that consumer warps neither wait for memory nor spend issue slots on loads. Operands are
//        read as they lie: by 128-bit vectors where they are contiguous along M or N, or else by
//        single elements, which also transposes K-major ones (load.cuh). A thread has up to 8 x 8
//        elements of C in registers, and loads the fragments for the next k while it multiplies
//        those of this one (register_tile.cuh). Tiles of several sizes, and split-K at chunk
//        boundaries, let small problems fill all SMs; the chunks' sums then go to a workspace, and
//        another kernel adds them in order (split_k_reduce.cuh). The main loop is in
//        cp_async_mainloop.cuh.
// Limit: cp.async of single elements takes an instruction for each; and a register tile of 8 x 8
//        reads 16 numbers from shared memory for 64 FMAs.
// Next:  tma_sm90.cu: one instruction of one thread loads a whole tile, and a thread has 8 x 16
//        elements.

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/cp_async_mainloop.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/register_tile.cuh"
#include "kernels/simt/split_k_reduce.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_cp_async {
namespace {

template <int kIndex, int kThreadM, int kThreadN, int kLanesM, int kK_, int kStages_,
          int kProducers_>
struct Tile : RegisterTile<h200::kSimtCpAsyncTiles[kIndex].m, h200::kSimtCpAsyncTiles[kIndex].n,
                           kThreadM, kThreadN, kLanesM> {
  static constexpr int kK = kK_;  // of a step
  static constexpr int kStages = kStages_;
  static constexpr int kProducers = kProducers_;  // threads
  static constexpr int kThreads = Tile::kConsumers + kProducers;
  static constexpr int kBlocksPerSm = h200::kSimtCpAsyncTiles[kIndex].blocks;

  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

struct Params {
  Problem p;
  Vectorized vectorized;
  bool c_vectorized;
  int64_t tiles;
  unsigned k_splits;
  size_t totals_offset;  // in shared memory, of finished chunks' sums, where K is not split
  void* partial_sums;    // the workspace, TileSums[chunk][tile], where K is split
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
      });
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

// Without memory for the partial sums, K is not split.
template <class Tile>
void run(const Problem& p, const Plan& plan, const Context& context) {
  Params params{
      .p = p,
      .vectorized = {is_a_vectorized(p), is_b_vectorized(p)},
      .c_vectorized = is_c_vectorized(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .k_splits = static_cast<unsigned>(plan.k_splits),
      .totals_offset = offsetof(Smem<Tile>, stage),
      .partial_sums = nullptr,
  };
  const int64_t chunks = ceil_div(p.k, kChunk);
  if (plan.k_splits > 1) {
    params.partial_sums = context.allocate(chunks * params.tiles * int64_t{sizeof(TileSums<Tile>)});
    if (params.partial_sums == nullptr) {
      Plan not_split = plan;
      not_split.k_splits = 1;
      return run<Tile>(p, not_split, context);
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
  launch_split_k_reduce<Tile>({p, params.c_vectorized, params.tiles, params.partial_sums}, context);
}

}  // namespace
}  // namespace simt_cp_async

bool launch_simt_cp_async(const Problem& p, const Plan& plan, const Context& context) {
  using namespace h200;
  using namespace simt_cp_async;
  return with_tile<std::size(kSimtCpAsyncTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr SimtCpAsyncTile kTile = kSimtCpAsyncTiles[kIndex];
    run<Tile<kIndex, kTile.thread_m, kTile.thread_n, kTile.lanes_m, kTile.k, kTile.stages,
             kTile.producer_threads>>(p, plan, context);
    return true;
  });
}

}  // namespace tiled::cuda
