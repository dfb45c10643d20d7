// 08 simt_cp_async: some warps copy, the others multiply.
//
// Idea:  copying warps fill a ring of stages in shared memory by asynchronous copies, several
//        ahead, so that nobody waits for memory, and those that multiply issue next to nothing
//        else. An operand is read as it lies: by fours along C's side where it can be, or else by
//        ones, which also turns it. A thread has up to 8 x 8 elements of C, and reads the fragments
//        of a step of K while it multiplies those of the step before. Tiles of several sizes, and K
//        cut at chunks (simt.h), let a small problem reach all multiprocessors: sums of chunks then
//        go to memory, and another kernel adds them in order.
// Limit: instructions that copy single elements; two fragments of 8 for 64 multiply-adds.
// Next:  copies that no thread has to issue, and 8 x 16 elements a thread.
//
//   copiers       wait empty[s]         copy A and B of a stage -> full[s]
//   multipliers   wait full[s]          read its first fragments while those before are multiplied
//                 last fragments are read -> empty[s]

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/load.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/split_k_reduce.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

template <int kIndex, int kThreadM_, int kThreadN_, int kLanesM_, int kK_, int kStages_,
          int kCopiers_>
struct Tile {
  static constexpr int kM = h200::kSimtCpAsyncTiles[kIndex].m,
                       kN = h200::kSimtCpAsyncTiles[kIndex].n, kK = kK_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;  // elements of C a thread
  static constexpr int kLanesM = kLanesM_, kLanesN = 32 / kLanesM;  // threads of a warp
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  static constexpr int kMultipliers = kM / kThreadM * (kN / kThreadN);  // threads
  static constexpr int kCopiers = kCopiers_;
  static constexpr int kThreads = kMultipliers + kCopiers;
  static constexpr int kBlocks = h200::kSimtCpAsyncTiles[kIndex].blocks;  // on a multiprocessor
  static constexpr int kQuads = kThreadM * kThreadN / 4;                  // a thread
  // Columns of neighbours along K lie in different banks.
  static constexpr int kPitchA = kM + 4, kPitchB = kN + 4;

  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kThreadM % 4 == 0 && kThreadN % 4 == 0);
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of stages");
};

template <class Tile>
struct Smem {
  struct Stage {
    alignas(16) float a[Tile::kK][Tile::kPitchA];
    alignas(16) float b[Tile::kK][Tile::kPitchB];
  };
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  Stage stage[Tile::kStages];
};

struct Work {
  Problem p;
  bool a_by_fours, b_by_fours;  // copied, along C's sides
  bool by_fours;                // stores_fours()
  int64_t tiles;
  unsigned ranges;  // of chunks
  size_t sums_at;   // in shared memory: those of finished chunks, where there is one range
  void* sums;       // Sums[chunk][tile], where there are several
};

// The chunks of a block's range, and K that they begin at and have.
struct Range {
  unsigned first, end;
  int64_t k, length;
  __device__ explicit Range(const Work& work) {
    const auto chunks = static_cast<unsigned>(ceil_div(work.p.k, kChunk));
    first = blockIdx.y * chunks / work.ranges, end = (blockIdx.y + 1) * chunks / work.ranges;
    k = int64_t{first} * kChunk;
    length = min(work.p.k, int64_t{end} * kChunk) - k;
  }
};

template <class Tile>
__device__ void copy_tiles(const Work& work, const TileIndex& tile, Smem<Tile>& smem) {
  const Problem& p = work.p;
  const Range range(work);
  const int thread = static_cast<int>(threadIdx.x) - Tile::kMultipliers;
  const auto* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                  tile.row * p.a.row_stride + range.k * p.a.col_stride;
  const auto* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                  tile.col * p.b.col_stride + range.k * p.b.row_stride;
  Loader<Tile::kM, Tile::kPitchA, Tile::kK, Tile::kCopiers> load_a(
      a, p.a.row_stride, p.a.col_stride, work.a_by_fours, p.m - tile.row, thread);
  Loader<Tile::kN, Tile::kPitchB, Tile::kK, Tile::kCopiers> load_b(
      b, p.b.col_stride, p.b.row_stride, work.b_by_fours, p.n - tile.col, thread);
  const bool whole = p.m - tile.row >= Tile::kM && p.n - tile.col >= Tile::kN;
  ptx::PipelineState ring{.stages = Tile::kStages, .parity = 1};
  for (int64_t k_left = range.length; k_left > 0; k_left -= Tile::kK, ring.advance()) {
    ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity);
    if (whole && k_left >= Tile::kK) {
      load_a.load_whole(smem.stage[ring.stage].a);
      load_b.load_whole(smem.stage[ring.stage].b);
    } else {
      load_a.load(smem.stage[ring.stage].a, k_left);
      load_b.load(smem.stage[ring.stage].b, k_left);
    }
    ptx::cp_async_mbarrier_arrive_noinc(&smem.full[ring.stage]);
  }
}

template <class Tile>
__device__ void multiply_tiles(const Work& work, const TileIndex& tile, Smem<Tile>& smem) {
  const Range range(work);
  const Place<Tile> place(threadIdx.x, 0);
  const int lane = threadIdx.x % 32;
  ptx::PipelineState ring{.stages = Tile::kStages};
  Fragments<Tile> fragments;
  auto read = [&](int buffer, int k) {
    const auto& from = smem.stage[ring.stage];
    fragments.read(buffer, &from.a[k][place.row], &from.b[k][place.col]);
  };
  float acc[Tile::kThreadM][Tile::kThreadN];
  auto multiply = [&](int buffer) { fragments.multiply(buffer, acc); };
  int64_t stages_left = ceil_div(range.length, Tile::kK);
  auto next_stage = [&] {
    __syncwarp();  // all have read the last fragments
    if (lane == 0) ptx::mbarrier_arrive(&smem.empty[ring.stage]);
    ring.advance();
    if (--stages_left > 0) {
      ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
      read(0, 0);
    }
  };

  auto& totals = reinterpret_cast<Sums<Tile>&>(reinterpret_cast<uint8_t*>(&smem)[work.sums_at]);
  ptx::mbarrier_wait(&smem.full[0], 0);
  read(0, 0);
  int64_t k_left = range.length;
  for (unsigned chunk = range.first; chunk < range.end; ++chunk, k_left -= kChunk) {
    const int length = static_cast<int>(min(k_left, int64_t{kChunk}));
    UNROLL
    for (int i = 0; i < Tile::kThreadM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = 0;
    }
    NO_UNROLL
    for (int whole = length / Tile::kK; whole > 0; --whole) {
      UNROLL
      for (int step = 0; step < Tile::kK; ++step) {
        if (step + 1 < Tile::kK) {
          read((step + 1) % 2, step + 1);
        } else {
          next_stage();
        }
        multiply(step % 2);
      }
    }
    if (length % Tile::kK != 0) {
      NO_UNROLL
      for (int step = 0; step < length % Tile::kK; ++step) {
        multiply(0);
        read(0, step + 1);
      }
      next_stage();
    }

    // Sums of the only chunk lie where stages were: all have read them.
    if (work.sums_at < sizeof(smem)) ptx::named_barrier_sync(1, Tile::kMultipliers);
    Quad* sums =
        work.ranges == 1
            ? &totals[0][threadIdx.x]
            : &static_cast<Sums<Tile>*>(work.sums)[chunk * work.tiles + blockIdx.x][0][threadIdx.x];
    UNROLL
    for (int u = 0; u < Tile::kQuads; ++u) {
      const int i = u / (Tile::kThreadN / 4), j = u % (Tile::kThreadN / 4) * 4;
      Quad total = work.ranges > 1 || chunk == 0 ? Quad::empty() : sums[u * Tile::kMultipliers];
      total.add(&acc[i][j]);
      sums[u * Tile::kMultipliers] = total;
    }
  }
  if (work.ranges > 1) return;

  const Problem& p = work.p;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  store_tile<Tile>(p, work.by_fours, c_offset, tile.row, tile.col, totals);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    simt_cp_async_kernel(const __grid_constant__ Work work, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (work.ranges > 1) ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, Tile::kCopiers, smem.empty,
                              Tile::kMultipliers / 32);
  }
  __syncthreads();
  const TileIndex tile = tile_index<Tile>(work.p, first_tile + blockIdx.x);
  if (threadIdx.x >= Tile::kMultipliers) {
    copy_tiles<Tile>(work, tile, smem);
  } else {
    multiply_tiles<Tile>(work, tile, smem);
  }
}

template <class Tile>
void run(const Problem& p, const Plan& plan, const Context& context) {
  Work work{
      .p = p,
      .a_by_fours = is_a_vectorized(p),
      .b_by_fours = is_b_vectorized(p),
      .by_fours = stores_fours(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .ranges = static_cast<unsigned>(plan.k_splits),
      .sums_at = offsetof(Smem<Tile>, stage),
      .sums = nullptr,
  };
  const int64_t chunks = ceil_div(p.k, kChunk);
  if (plan.k_splits > 1) {
    work.sums = context.allocate(chunks * work.tiles * int64_t{sizeof(Sums<Tile>)});
    if (work.sums == nullptr) {
      Plan in_one = plan;
      in_one.k_splits = 1;  // needs no memory
      return run<Tile>(p, in_one, context);
    }
  }
  static_assert(sizeof(Sums<Tile>) <= sizeof(Smem<Tile>::stage), "they may lie where stages were");
  static_assert(sizeof(Smem<Tile>) + sizeof(Sums<Tile>) <= 99 << 10,
                "what a block of Ada's may have");
  const bool keeps_sums = chunks > 1 && plan.k_splits == 1;
  if (keeps_sums) work.sums_at = sizeof(Smem<Tile>);
  size_t smem_bytes = sizeof(Smem<Tile>) + (keeps_sums ? sizeof(Sums<Tile>) : 0);
  if (context.on_hopper()) {
    smem_bytes = shared_memory_for(smem_bytes, plan.blocks_per_sm);
    allow_shared_memory(simt_cp_async_kernel<Tile>, kMaxSharedMemory);
  } else {
    allow_shared_memory(simt_cp_async_kernel<Tile>, sizeof(Smem<Tile>) + sizeof(Sums<Tile>));
  }
  const auto stream = static_cast<cudaStream_t>(context.stream);
  for_grids(work.tiles, [&](int64_t first, unsigned blocks) {
    const dim3 grid(blocks, work.ranges);
    simt_cp_async_kernel<Tile><<<grid, Tile::kThreads, smem_bytes, stream>>>(work, first);
  });
  if (plan.k_splits == 1) return;
  add_ranges<Tile>({p, work.by_fours, work.tiles, work.sums}, context);
}

}  // namespace

bool launch_simt_cp_async(const Problem& p, const Plan& plan, const Context& context) {
  using namespace h200;
  return with_tile<std::size(kSimtCpAsyncTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr SimtCpAsyncTile kTile = kSimtCpAsyncTiles[kIndex];
    run<Tile<kIndex, kTile.thread_m, kTile.thread_n, kTile.lanes_m, kTile.k, kTile.stages,
             kTile.producer_threads>>(p, plan, context);
    return true;
  });
}

}  // namespace tiled::cuda
