#pragma once
// f64_mma: the kernel, from operands to C or to the partial sums of split-K, and its launch. mma.cu
// draws its barriers.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/f64/fragment.cuh"
#include "kernels/f64/plan.h"
#include "kernels/f64/split_k_reduce.cuh"
#include "kernels/f64/store.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_f64.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"

namespace tiled::cuda::f64_mma {

inline constexpr int kMmaK = 8;  // of K in a product
inline constexpr int kTiles = std::size(h200::kF64MmaTiles);

// A warp computes kWarpM x kWarpN of the tile: kMmasM x kMmasN products of 16 x 8.
template <int kIndex, bool kComplex_ = false>
struct Tile {
  static constexpr bool kComplex = kComplex_;  // B has complex numbers
  static constexpr h200::F64MmaTile kTile = h200::kF64MmaTiles[kIndex];
  static constexpr int kM = kTile.m, kN = kTile.n, kStages = kTile.stages;
  static constexpr int kK = 16;  // of a stage
  // Consumers of a complex B take more registers.
  static constexpr int kBlocks = std::min(kTile.blocks, kComplex ? 3 : 4);  // that share an SM
  static constexpr int kWarpM = kTile.warp_m, kWarpN = kTile.warp_n, kWarpsM = kM / kWarpM;
  static constexpr int kMmasM = kWarpM / 16, kMmasN = kWarpN / 8;
  static constexpr int kConsumers = kWarpsM * (kN / kWarpN) * 32,
                       kProducers = kTile.producer_threads;
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kPairs = kMmasM * kMmasN * 2;  // of adjacent sums, of a thread
  static constexpr int kRasterRows = 8;

  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0);
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of stages");
  static_assert(kK / kMmaK % 2 == 0, "a stage begins in the same place of B's fragments");
};

template <class Tile>
struct Smem {
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  Stage<Tile> stage[Tile::kStages];
  WarpSums<Tile::kWarpM, Tile::kWarpN> totals[Tile::kConsumers / 32];
};

// If K is split, C is the sums of the first chunk in the workspace (to_partial_sums()), and the
// sums of other chunks follow.
struct Params {
  Problem p;
  TileScheduler scheduler;
  bool a_in_pairs, b_in_pairs;
  int k_splits;
  FastDivmod tiles;      // of C, if K is split
  int64_t work_tiles;    // tiles of C, times K splits
  int64_t chunk_stride;  // elements of C
  SignsOfB signs_of_b;   // of a complex B, stored as in_place_b() describes it
};

// A block's share of the work: a tile of C, and chunks of K. Persistent blocks take every
// gridDim.x-th one.
template <class Tile>
struct WorkTile {
  TileCoord tile;
  ChunkRange chunks;

  __device__ static WorkTile of(const Params& params, int64_t index) {
    const int64_t split = params.k_splits == 1 ? 0 : params.tiles.divide(index);
    return {locate<Tile>(params.scheduler, index - split * params.tiles.by),
            ChunkRange(params.p.k, static_cast<int>(split), params.k_splits)};
  }
};

// Loads the stages of a work tile.
template <class Tile>
__device__ void produce(const Params& params, const WorkTile<Tile>& work, ptx::PipelineState& pipe,
                        Smem<Tile>& smem) {
  const auto& [tile, chunks] = work;
  const Problem& p = params.p;
  const BatchOffsets offsets(p, tile.batch);
  const int thread = static_cast<int>(threadIdx.x) - Tile::kConsumers;
  const double* a = static_cast<const double*>(p.a.data) + offsets.a + tile.row * p.a.row_stride +
                    chunks.k * p.a.col_stride;
  const double* b = static_cast<const double*>(p.b.data) + offsets.b + tile.col * p.b.col_stride +
                    chunks.k * p.b.row_stride;
  CpAsyncLoader<double, Tile::kM, Stage<Tile>::kPitchA, Tile::kK, Tile::kProducers> load_a(
      a, p.a.row_stride, p.a.col_stride, params.a_in_pairs, p.m - tile.row, thread);
  using ElementOfB = typename Stage<Tile>::ElementOfB;
  constexpr int kParts = Stage<Tile>::kParts;
  CpAsyncLoader<ElementOfB, Tile::kN / kParts, Stage<Tile>::kPitchB, Tile::kK / kParts,
                Tile::kProducers>
      load_b(reinterpret_cast<const ElementOfB*>(b), p.b.col_stride, p.b.row_stride,
             params.b_in_pairs, (p.n - tile.col) / kParts, thread);
  for (int64_t left = chunks.length; left > 0; left -= Tile::kK, pipe.advance()) {
    ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
    Stage<Tile>& stage = smem.stage[pipe.stage];
    load_a.load(stage.a, left);
    load_b.load(stage.b, left / kParts);
    if (left >= Tile::kK || Tile::kComplex) {
      ptx::cp_async_mbarrier_arrive_noinc(&smem.full[pipe.stage]);
      continue;
    }
    // The loaders fill both operands with zeros. In B they become -0, which changes no sum.
    if constexpr (!Tile::kComplex) {
      __pipeline_commit();
      __pipeline_wait_prior(0);
      ptx::named_barrier_sync(2, Tile::kProducers);
      for (int k = static_cast<int>(left); k < Tile::kK; ++k) {
        for (int col = thread; col < Tile::kN; col += Tile::kProducers) {
          stage.b[k][col] = kPadB<double>;
        }
      }
      ptx::mbarrier_arrive(&smem.full[pipe.stage]);
    }
  }
}

// A consumer's fragments, and its sums. Fragments of the next kMmaK of K take the place of
// A's fragments that are done with, and the other place of B.
template <class Tile>
struct Accumulators {
  double a[Tile::kMmasM][2][2], b[2][Tile::kMmasN][2];
  double sums[Tile::kMmasM][Tile::kMmasN][4] = {};
  ComplexLane<Stage<Tile>::kPitchB> complex;

  __device__ explicit Accumulators(const Params& params) : complex(params.signs_of_b) {}

  __device__ void read_a(const Stage<Tile>& stage, int row, int k, int i) {
    read_fragment_a(&stage.a[k], row + i * 16, a[i]);
  }
  // `k_left` of the stage's k are the problem's.
  __device__ void read_b(const Stage<Tile>& stage, int col, int k, int k_left, int place) {
    UNROLL
    for (int j = 0; j < Tile::kMmasN; ++j) {
      if constexpr (Tile::kComplex) {
        complex.read_fragment(&stage.b[k / 2][(col + j * 8) / 2], k_left - k, b[place][j]);
      } else {
        read_fragment_b(&stage.b[k], col + j * 8, b[place][j]);
      }
    }
  }
  __device__ void multiply(int i, int place) {
    UNROLL
    for (int j = 0; j < Tile::kMmasN; ++j) ptx::mma_m16n8k8_f64(sums[i][j], a[i], b[place][j]);
  }
  // Adds a chunk's sums to the warp's totals, and begins the next chunk.
  __device__ void add_to(WarpSums<Tile::kWarpM, Tile::kWarpN>& totals, bool first) {
    const int lane = threadIdx.x % 32;
    const int place = totals.place(row_of_pair(lane / 4), lane % 4 * 2);
    UNROLL
    for (int pair = 0; pair < Tile::kPairs; ++pair) {
      const int i = pair / 2 / Tile::kMmasN, j = pair / 2 % Tile::kMmasN, h = pair % 2;
      double &x = sums[i][j][h * 2], &y = sums[i][j][h * 2 + 1];
      double2& total = totals.pair(place ^ totals.place(i * 16 + h, j * 8));
      total = first ? make_double2(x, y) : make_double2(total.x + x, total.y + y);
      x = y = 0;
    }
  }
};

// Multiplies a work tile, and stores its sums.
template <class Tile>
__device__ void consume(const Params& params, const WorkTile<Tile>& work, ptx::PipelineState& pipe,
                        Accumulators<Tile>& acc, Smem<Tile>& smem) {
  const auto& [tile, chunks] = work;
  const Problem& p = params.p;
  const int warp = threadIdx.x / 32;
  auto& totals = smem.totals[warp];
  const int warp_row = warp % Tile::kWarpsM * Tile::kWarpM;
  const int warp_col = warp / Tile::kWarpsM * Tile::kWarpN;
  auto stages_left = static_cast<int>(ceil_div(chunks.length, Tile::kK));
  // How many k of a stage there are, if `after` stages follow it.
  const int k_of_last = static_cast<int>((chunks.length - 1) % Tile::kK) + 1;
  const auto k_of_stage = [&](int after) { return after > 0 ? Tile::kK : k_of_last; };
  // Multiplies the stage; its first fragments have been read. Reads the next stage's.
  const auto multiply_stage = [&] {
    --stages_left;
    UNROLL
    for (int k = 0; k < Tile::kK; k += kMmaK) {
      const int place = k / kMmaK % 2, next_k = (k + kMmaK) % Tile::kK;
      if (next_k == 0) {
        __syncwarp();  // all lanes have read the stage
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.empty[pipe.stage]);
        pipe.advance();
        if (stages_left > 0) ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
      }
      const Stage<Tile>& next = smem.stage[pipe.stage];  // after the last one, it is not used
      const int after = next_k == 0 ? stages_left - 1 : stages_left;
      acc.read_b(next, warp_col, next_k, k_of_stage(after), place ^ 1);
      UNROLL
      for (int i = 0; i < Tile::kMmasM; ++i) {
        acc.multiply(i, place);
        acc.read_a(next, warp_row, next_k, i);
      }
    }
  };
  const bool splits_k = params.k_splits > 1;
  ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
  acc.read_b(smem.stage[pipe.stage], warp_col, 0, k_of_stage(stages_left - 1), 0);
  UNROLL
  for (int i = 0; i < Tile::kMmasM; ++i) acc.read_a(smem.stage[pipe.stage], warp_row, 0, i);
  NO_UNROLL
  for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    NO_UNROLL
    for (int stages = min(stages_left, kChunk / Tile::kK); stages > 0; --stages) multiply_stage();
    acc.add_to(totals, splits_k || chunk == 0);
    if (!splits_k && chunk < chunks.end - 1) continue;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch) + chunk * params.chunk_stride;
    totals.store(p, c_offset, int64_t{tile.row} + warp_row, int64_t{tile.col} + warp_col);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    f64_mma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (params.k_splits > 1) ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, Tile::kProducers, smem.empty,
                              Tile::kConsumers / 32);
  }
  __syncthreads();
  ptx::pdl_wait();
  constexpr bool kMovesRegisters = Tile::kTile.consumer_registers > 0;
  const bool produces = threadIdx.x >= Tile::kConsumers;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = produces ? 1 : 0};
  if (produces) {
    if constexpr (kMovesRegisters) ptx::setmaxnreg_dec<Tile::kTile.producer_registers>();
    NO_UNROLL
    for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
      produce<Tile>(params, WorkTile<Tile>::of(params, index), pipe, smem);
    }
  } else {
    if constexpr (kMovesRegisters) ptx::setmaxnreg_inc<Tile::kTile.consumer_registers>();
    Accumulators<Tile> acc(params);
    NO_UNROLL
    for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
      consume<Tile>(params, WorkTile<Tile>::of(params, index), pipe, acc, smem);
    }
  }
}

// --- The launch of a tile ------------------------------------------------------------------------

// Without memory for the partial sums, or with too many tiles to count, K is not split. A complex B
// is stored as in_place_b() describes it.
template <class Tile>
void run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  constexpr int64_t kBytes = sizeof(double);
  const int64_t tiles = count_tiles(p, Tile::kM, Tile::kN);
  constexpr int64_t kMostTiles = int64_t{1} << 31;
  Params params{
      .p = p,
      .scheduler = TileScheduler::of<Tile>(p),
      .a_in_pairs = is_vector_aligned(p.batch, p.a, p.a.row_stride, p.a.col_stride, 2, kBytes),
      .b_in_pairs = !Tile::kComplex &&
                    is_vector_aligned(p.batch, p.b, p.b.col_stride, p.b.row_stride, 2, kBytes),
      .k_splits = static_cast<int>(plan.k_splits),
      .tiles = FastDivmod::of(static_cast<uint32_t>(std::min(tiles, kMostTiles))),
      .work_tiles = tiles * plan.k_splits,
      .chunk_stride = 0,
      .signs_of_b = signs_of_b,
  };
  double* partial_sums = nullptr;
  if (plan.k_splits > 1) {
    if (tiles <= kMostTiles) {
      const int64_t bytes = f64_partial_sums_bytes(p, ceil_div(p.k, kChunk));
      partial_sums = static_cast<double*>(context.allocate(bytes));
    }
    if (partial_sums == nullptr) {
      Plan not_split = plan;
      not_split.k_splits = 1;
      return run<Tile>(p, not_split, signs_of_b, context);
    }
    params.p = to_partial_sums(p, partial_sums);
    params.chunk_stride = p.batch.count * p.m * p.n;
  }
  static_assert(sizeof(Smem<Tile>) <= kMaxSharedMemory);
  const auto kernel = f64_mma_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  const int64_t blocks = std::min(params.work_tiles, int64_t{Tile::kBlocks} * context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem<Tile>), context,
             params);
  if (plan.k_splits > 1) launch_split_k_reduce(p, partial_sums, context);
}

// Launches the plan's tile, one of the kCount tiles from kFirst on.
template <int kFirst, int kCount, bool kComplex>
void run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  with_tile<kCount>(std::max(plan.tile, kFirst) - kFirst, [&]<int kIndex>() {
    using ThisTile = Tile<kFirst + kIndex, kComplex>;
    static_assert(kFirst < kF64MmaLargeTiles || sizeof(Smem<ThisTile>) <= 99 << 10,
                  "a block of compute capability 8.6 or 8.9 has at most 99 KiB of shared memory");
    run<ThisTile>(p, plan, signs_of_b, context);
    return true;
  });
}

// Launches one of the large tiles.
void launch_large_tile(const Problem& p, const Plan& plan, const Context& context);

}  // namespace tiled::cuda::f64_mma
