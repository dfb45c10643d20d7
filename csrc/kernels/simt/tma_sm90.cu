// 09 simt_tma: float32 multiply-adds on CUDA cores, at the rate of their registers.
//
// Idea:  a multiprocessor starts four warps' multiply-adds a clock, and nothing else in that clock:
//        so everything else must be rare. A thread has 8 x 16 elements of C, for which it reads 24
//        numbers of shared memory in each step of K, one step ahead. Copies cost no instruction:
//        one thread asks the copy engine for tiles, (K, rows of A) and (K, columns of B), several
//        stages ahead. An operand that lies otherwise is copied first. Smaller tiles, several a
//        multiprocessor, are for smaller problems, and K is cut as by simt_cp_async (simt.h).
// Limit: registers have two banks, of even and of odd numbers, and each gives one number a clock.
//        Of a multiply-add's three one is kept from the instruction before it; the other two must
//        come from different banks (kernels/simt_store.cuh).
// Next:  operands along K read as they are, at no cost in registers.
//
//   producer    wait empty[s]           copy A and B of a stage -> full[s]
//   consumers   wait full[s]            read its first fragments while those before are multiplied
//               last fragments are read -> empty[s]
//   at the end of a chunk its sums are added to those of the chunks before, in shared memory.

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/split_k_reduce.cuh"
#include "kernels/simt/store.cuh"
#include "kernels/simt/transpose.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace {

// Registers are moved from a warpgroup that copies to those that multiply, so that each has so
// many; or, where they are 0, one warp copies and all have alike. kPart_ of K is unrolled: no more
// than the cache of instructions holds, and no less than the wait for the next part takes.
template <int kIndex, int kThreadM_, int kThreadN_, int kK_, int kPart_, int kStages_,
          int kMultiplierRegisters_, int kCopierRegisters_>
struct Tile {
  static constexpr int kM = h200::kSimtTmaTiles[kIndex].m, kN = h200::kSimtTmaTiles[kIndex].n,
                       kK = kK_;
  static constexpr int kStages = kStages_;
  static constexpr int kPart = kPart_;
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;  // elements of C a thread
  static constexpr int kLanesM = 8, kLanesN = 4;                    // threads of a warp
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  static constexpr int kMultipliers = kM / kWarpM * (kN / kWarpN) * 32;  // threads
  static constexpr int kMultiplierRegisters = kMultiplierRegisters_;
  static constexpr int kCopierRegisters = kCopierRegisters_;
  static constexpr int kThreads = kMultipliers + (kMultiplierRegisters > 0 ? 128 : 32);
  static constexpr int kBlocks = h200::kSimtTmaTiles[kIndex].blocks;  // on a multiprocessor
  static constexpr int kQuads = kThreadM * kThreadN / 4;              // a thread
  static constexpr int kRasterRows = 8;  // tiles of rows worked off together

  static_assert(kChunk % kK == 0 && kK % kPart == 0, "a chunk is a whole number of parts");
  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kLanesM * kLanesN == 32);
  static_assert((kMultiplierRegisters > 0) == (kCopierRegisters > 0));
};

template <class Tile>
struct Smem {
  alignas(128) float a[Tile::kStages][Tile::kK][Tile::kM];
  alignas(128) float b[Tile::kStages][Tile::kK][Tile::kN];
  Sums<Tile> total;  // of finished chunks
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

struct Work {
  Problem p;
  CUtensorMap a, b;  // neighbours along rows of A, along columns of B
  bool by_fours;     // C is written, and read, by four neighbours of a row
  int64_t tiles;
  TileScheduler scheduler;
  unsigned ranges;  // of chunks
  void* sums;       // Sums[chunk][tile], where there are several
};

// By rows, as simt_split_k_reduce_kernel() counts tiles.
template <class Tile>
__device__ int64_t number(const Problem& p, const TileCoord& tile) {
  return (tile.batch * ceil_div(p.m, Tile::kM) + tile.row / Tile::kM) * ceil_div(p.n, Tile::kN) +
         tile.col / Tile::kN;
}

// What a block works off at once: a tile, and a range of chunks.
template <class Tile>
struct Unit {
  TileCoord tile;
  unsigned first, end;
  int64_t k, length;  // that the range begins at and has

  __device__ Unit(const Work& work, int64_t index)
      : tile(locate<Tile>(work.scheduler, index % work.tiles)) {
    const auto chunks = static_cast<unsigned>(ceil_div(work.p.k, kChunk));
    const auto range = static_cast<unsigned>(index / work.tiles);
    first = range * chunks / work.ranges, end = (range + 1) * chunks / work.ranges;
    k = int64_t{first} * kChunk;
    length = min(work.p.k, int64_t{end} * kChunk) - k;
  }
};

template <class Tile>
__device__ void produce(const Work& work, Smem<Tile>& smem) {
  constexpr int kBytes = sizeof(smem.a[0]) + sizeof(smem.b[0]);
  ptx::PipelineState ring{.stages = Tile::kStages, .parity = 1};
  auto wait = [&] { ptx::mbarrier_wait_sleeping(&smem.empty[ring.stage], ring.parity); };
  for (int64_t index = blockIdx.x; index < work.tiles * work.ranges; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    const TmaCoords a(work.p.batch, work.p.a, unit.tile.batch);
    const TmaCoords b(work.p.batch, work.p.b, unit.tile.batch);
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int64_t k = 0; k < unit.length; k += Tile::kK, ring.advance()) {
      const int k_at = static_cast<int>(unit.k + k);
      uint64_t* full = &smem.full[ring.stage];
      wait();
      ptx::arrive_expect_tx(full, kBytes);
      ptx::tma_load(smem.a[ring.stage], &work.a, {unit.tile.row, k_at, a.at[0], a.at[1], a.at[2]},
                    full);
      ptx::tma_load(smem.b[ring.stage], &work.b, {unit.tile.col, k_at, b.at[0], b.at[1], b.at[2]},
                    full);
    }
  }
  wait();  // consumers ask for one stage more than there are
  ptx::mbarrier_arrive(&smem.full[ring.stage]);
}

template <class Tile>
__device__ __noinline__ void keep_sums(const Sums<Tile>& from, Sums<Tile>* to) {
  NO_UNROLL
  for (int u = 0; u < Tile::kQuads; ++u) (*to)[u][threadIdx.x] = from[u][threadIdx.x];
}

template <class Tile>
__device__ void consume(const Work& work, Smem<Tile>& smem) {
  ptx::pdl_wait();
  const Place<Tile> place(threadIdx.x, 0);

  Fragments<Tile> fragments;
  const float *a = &smem.a[0][0][place.row],
              *b = &smem.b[0][0][place.col];  // at the first step of a part
  auto load = [&](int buffer, int k) {
    fragments.read(buffer, a + k * Tile::kM, b + k * Tile::kN);
  };
  float acc[Tile::kThreadM][Tile::kThreadN];
  auto multiply = [&](int buffer) { fragments.multiply(buffer, acc); };

  constexpr unsigned kParts = Tile::kK / Tile::kPart, kRing = Tile::kStages * kParts;
  unsigned part = 0;  // over all tiles
  auto next_part = [&] {
    if (part % kParts == kParts - 1) {  // all have read the last fragments of the stage
      ptx::consumer_release(&smem.empty[part / kParts % Tile::kStages]);
    }
    ++part;
    const unsigned stage = part / kParts;
    ptx::mbarrier_wait(&smem.full[stage % Tile::kStages], stage / Tile::kStages % 2);
    a = &smem.a[0][0][place.row] + part % kRing * (Tile::kPart * Tile::kM);
    b = &smem.b[0][0][place.col] + part % kRing * (Tile::kPart * Tile::kN);
    load(0, 0);
  };

  ptx::mbarrier_wait(&smem.full[0], 0);
  load(0, 0);
  for (int64_t index = blockIdx.x; index < work.tiles * work.ranges; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    int64_t k_left = unit.length;
    for (unsigned chunk = unit.first; chunk < unit.end; ++chunk, k_left -= kChunk) {
      const auto length = static_cast<int>(min(k_left, int64_t{kChunk}));
      UNROLL
      for (int i = 0; i < Tile::kThreadM; ++i) {
        UNROLL
        for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = 0;
      }
      NO_UNROLL
      for (int whole = length / Tile::kPart; whole > 0; --whole) {
        UNROLL
        for (int step = 0; step < Tile::kPart; ++step) {
          if (step + 1 < Tile::kPart) {
            load((step + 1) % 2, step + 1);
          } else {
            next_part();
          }
          multiply(step % 2);
        }
      }
      if (length % Tile::kPart != 0) {  // zeros there may not be added to a sum of -0
        NO_UNROLL
        for (int step = 0; step < length % Tile::kPart; ++step) {
          multiply(0);
          load(0, step + 1);
        }
        next_part();
      }
      UNROLL
      for (int u = 0; u < Tile::kQuads; ++u) {
        const int i = u / (Tile::kThreadN / 4), j = u % (Tile::kThreadN / 4) * 4;
        const bool begins = k_left == unit.length || work.ranges > 1;
        Quad total = begins ? Quad::empty() : smem.total[u][threadIdx.x];
        total.add(&acc[i][j]);
        smem.total[u][threadIdx.x] = total;
      }
      if (work.ranges > 1) {
        auto* sums = static_cast<Sums<Tile>*>(work.sums);
        keep_sums<Tile>(smem.total, sums + chunk * work.tiles + number<Tile>(work.p, unit.tile));
      }
    }

    if (part % kParts != 0) next_part();  // of the last stage the rest is beyond K

    if (work.ranges > 1) continue;
    const int64_t c_offset = batch_offset(work.p.batch, work.p.c, unit.tile.batch);
    store_tile<Tile>(work.p, work.by_fours, c_offset, unit.tile.row, unit.tile.col, smem.total);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    simt_tma_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(128) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty, Tile::kMultipliers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (work.ranges > 1) ptx::pdl_launch_dependents();
  if (threadIdx.x >= Tile::kMultipliers) {
    if constexpr (Tile::kMultiplierRegisters > 0) {
      ptx::setmaxnreg_dec<Tile::kCopierRegisters>();
    }
    if (threadIdx.x / 32 == Tile::kMultipliers / 32 && ptx::elect_one()) produce<Tile>(work, smem);
  } else {
    if constexpr (Tile::kMultiplierRegisters > 0) {
      ptx::setmaxnreg_inc<Tile::kMultiplierRegisters>();
    }
    consume<Tile>(work, smem);
  }
}

template <class Tile>
void run(const Problem& p, const Plan& plan, const Context& context) {
  static_assert(Tile::kBlocks * (sizeof(Smem<Tile>) + 1024) <= kMaxSharedMemory + 1024);
  const auto map = [&](const Matrix& matrix, int64_t outer, int box) {
    return tensor_map(p.batch, matrix, outer, p.k, box, Tile::kK, CU_TENSOR_MAP_SWIZZLE_NONE);
  };
  Work work{
      .p = p,
      .a = map(p.a, p.m, Tile::kM),
      .b = map(transposed(p.b), p.n, Tile::kN),
      .by_fours = stores_fours(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .scheduler = TileScheduler::of<Tile>(p),
      .ranges = static_cast<unsigned>(plan.k_splits),
      .sums = nullptr,
  };
  if (plan.k_splits > 1) {
    const int64_t chunks = ceil_div(p.k, kChunk);
    work.sums = context.allocate(chunks * work.tiles * int64_t{sizeof(Sums<Tile>)});
    if (work.sums == nullptr) work.ranges = 1;  // needs no memory
  }
  const auto kernel = simt_tma_kernel<Tile>;
  // A block goes on to other tiles, whose first stages come while it stores the last. Shared memory
  // that none uses keeps more than so many from sharing a multiprocessor: those that start while
  // operands are still being copied would gather where there is room first.
  const int64_t most = int64_t{plan.blocks_per_sm} * context.sms;
  const auto blocks = static_cast<unsigned>(std::min(work.tiles * work.ranges, most));
  const size_t smem_bytes = shared_memory_for(sizeof(Smem<Tile>), plan.blocks_per_sm);
  allow_shared_memory(kernel, kMaxSharedMemory);
  launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, work);
  if (work.ranges > 1) add_ranges<Tile>({p, work.by_fours, work.tiles, work.sums}, context);
}

}  // namespace

bool launch_simt_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  // Blocks that start while the transposition still runs gather on a few SMs, where several may
  // share one. Persistent blocks of a last wave that is not full would leave the other SMs idle
  // then.
  const int64_t wave = int64_t{plan.blocks_per_sm} * context.sms;
  const bool starts_early =
      plan.blocks_per_sm == 1 || count_tiles(p, plan.m, plan.n) * plan.k_splits <= wave;
  const std::optional<Problem> laid_out = lay_out(p, starts_early, context);
  if (!laid_out) return false;
  using namespace h200;
  return with_tile<std::size(kSimtTmaTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr SimtTmaTile kTile = kSimtTmaTiles[kIndex];
    run<Tile<kIndex, kTile.thread_m, kTile.thread_n, kTile.k, kTile.unroll, kTile.stages,
             kTile.consumer_registers, kTile.producer_registers>>(*laid_out, plan, context);
    return true;
  });
}

}  // namespace tiled::cuda
