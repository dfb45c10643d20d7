#pragma once
// Launches of kernels that consume() work tiles: tensor maps, the grid, the workspace, and the
// split-K reduction. Defines run_mma_tma_tile() for the translation units in tma_instances/.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "core/order_mma.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/plan.h"
#include "kernels/mma/tma_epilogue.cuh"
#include "kernels/mma/tma_instance.h"
#include "kernels/mma/tma_kernel.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"

namespace tiled::cuda::mma_tma {

// --- The split-K reduction -----------------------------------------------------------------------

// The part of a tile that a block reduces: all rows of Epilogue::kReducedCols columns, so that a C
// of few tiles has blocks for all SMs. To the epilogue it is a tile.
template <class Tile_, template <class> class EpilogueOf>
struct ReducedPart {
  static constexpr int kN = EpilogueOf<Tile_>::kReducedCols;
  static constexpr int kParts = Tile_::kN / kN;
  static_assert(Tile_::kN % kN == 0);
  struct Columns : Tile_ {
    static constexpr int kN = ReducedPart::kN, kElements = kN / 2, kNarrowBox = 0;
  };
  using Tile = std::conditional_t<kParts == 1, Tile_, Columns>;
};

// The split-K reduction: adds the chunks of a tile in order, from +0, and runs the epilogue. A
// thread has elements of the consumer thread that computed them.
template <class Tile, template <class> class EpilogueOf>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_split_k_reduce_kernel(const __grid_constant__ typename EpilogueOf<Tile>::Params params) {
  using Part = ReducedPart<Tile, EpilogueOf>;
  using Epilogue = EpilogueOf<typename Part::Tile>;
  // Elements of kChunks chunks are loaded before any is added.
  constexpr int kElements = Part::Tile::kElements;
  constexpr int kAtOnce = kElements < 16 ? kElements : 16, kChunks = 4;
  __shared__ typename Epilogue::Smem smem;
  constexpr bool kMovesRegisters = Part::kParts == 1;
  if (threadIdx.x < Tile::kWarpgroup) {
    if constexpr (kMovesRegisters) ptx::setmaxnreg_dec<kProducerRegisters>();
    return;
  }
  if constexpr (kMovesRegisters) ptx::setmaxnreg_inc<kConsumerRegisters>();
  const unsigned cluster = blockIdx.x / Tile::kCluster;
  const int part = static_cast<int>(cluster % Part::kParts);
  const int64_t index = cluster / Part::kParts;
  TileCoord tile = locate_in_cluster<Tile>(params.scheduler, index);
  const int64_t chunk_stride = partial_sums<Tile>(params, 1, 0) - partial_sums<Tile>(params, 0, 0);
  const float4* from =
      partial_sums<Tile>(params, 0, index) + part * (kElements / 4) * Tile::kConsumerThreads;
  tile.col += column_in_tile<Tile::kN, Tile::kNarrowBox>(part * Part::kN, tile.col);
  const auto chunks = static_cast<int>(ceil_div(params.p.k, mma_order::kChunk));
  Epilogue epilogue(params, smem);
  ptx::pdl_wait();
  epilogue.begin_tile(tile);
  float acc[kElements];
  UNROLL
  for (int first = 0; first < kElements; first += kAtOnce) {
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) acc[first + i] = 0;
    const float4* next = from + first / 4 * Tile::kConsumerThreads;
    NO_UNROLL
    for (int chunk = 0; chunk < chunks; chunk += kChunks) {
      float4 x4[kChunks][kAtOnce / 4];
      UNROLL
      for (int i = 0; i < kChunks; ++i, next += chunk_stride) {
        UNROLL
        for (int j = 0; j < kAtOnce / 4 && chunk + i < chunks; ++j) {
          x4[i][j] = __ldcg(next + j * Tile::kConsumerThreads);
        }
      }
      UNROLL
      for (int i = 0; i < kChunks; ++i) {
        UNROLL
        for (int j = 0; j < kAtOnce / 4 && chunk + i < chunks; ++j) {
          add_x4(&acc[first + j * 4], x4[i][j]);
        }
      }
    }
  }
  epilogue.end_tile(tile, acc);
  epilogue.finish();
}

// --- Launches ------------------------------------------------------------------------------------

// The size of the clusters that a kernel without clusters is launched in. Their blocks start close
// to each other in the GPU, and L2 merges more of their requests; this pays if one wave of
// blocks fills more than half of the GPU.
template <class Tile, class Kernel>
unsigned launch_cluster(Kernel kernel, size_t smem_bytes, int64_t blocks, int64_t sms) {
  if (Tile::kCluster > 1) return Tile::kCluster;
  if (blocks > sms || 2 * blocks <= sms) return 1;
  // Asking takes longer than a launch, so each kernel keeps the answer for the last number of SMs.
  struct Known {
    int32_t sms, active_x4;
  };
  static std::atomic<Known> known{};
  Known now = known.load();
  if (now.sms != sms) {
    const int active_x4 = max_active_clusters(kernel, 4, Tile::kThreads, smem_bytes);
    known = now = {static_cast<int32_t>(sms), active_x4};
  }
  return ceil_div(blocks, 4) <= now.active_x4 ? 4 : 2;
}

// Launches a kernel that consumes work tiles of params.p with the epilogue EpilogueOf<Tile>. The
// caller has set its other parameters. Splits K if there is memory for the partial sums. Returns
// false if the caller has set no workspace for running totals, and there is no memory for one.
template <class Tile, template <class> class EpilogueOf>
bool launch_persistent(void (*kernel)(typename EpilogueOf<Tile>::Params),
                       typename EpilogueOf<Tile>::Params params, int64_t k_splits,
                       const Context& context) {
  using Epilogue = EpilogueOf<Tile>;
  constexpr size_t kSmem = sizeof(Smem<Tile, Epilogue>);
  static_assert(kSmem <= kMaxSharedMemory);
  const Problem& p = params.p;
  params.scheduler = TileScheduler::of<ClusterTile<Tile>>(p);
  params.tiles = count_tiles(p, Tile::kCluster * Tile::kM, Tile::kN);
  params.k_per_split = p.k;
  const int64_t chunks = ceil_div(p.k, mma_order::kChunk);
  constexpr MmaClusterShape kShape{Tile::kM, Tile::kN, Tile::kCluster,
                                   Tile::kElements * Tile::kConsumerThreads};
  if (k_splits > 1) {
    void* partial_sums = context.allocate(mma_partial_sums_bytes(p, kShape));
    if (partial_sums != nullptr) {
      params.workspace = static_cast<float4*>(partial_sums);
      params.k_splits = static_cast<uint32_t>(k_splits);
      params.k_per_split = ceil_div(chunks, k_splits) * mma_order::kChunk;
      params.by_tiles = FastDivmod::of(static_cast<uint32_t>(params.tiles));
    }
  }
  const int64_t work_tiles = params.tiles * params.k_splits;
  const auto clusters = std::min<int64_t>(work_tiles, context.sms / Tile::kCluster);
  constexpr int64_t kTotals = kTotalInWorkspace<Tile, Epilogue> * Tile::kConsumerThreads;
  if (chunks > 1 && kTotals > 0 && params.workspace == nullptr) {
    void* totals = context.allocate(mma_totals_bytes(p, kShape, kTotals, context.sms));
    if (totals == nullptr) return false;
    params.workspace = static_cast<float4*>(totals);
  }
  allow_shared_memory(kernel, kSmem);
  const unsigned cluster = launch_cluster<Tile>(kernel, kSmem, work_tiles, context.sms);
  const auto blocks = static_cast<unsigned>(ceil_div(clusters * Tile::kCluster, cluster)) * cluster;
  launch_clusters_pdl(kernel, cluster, blocks, Tile::kThreads, kSmem, context, params);
  if (params.k_splits > 1) {
    using ReduceTile = typename Tile::ReduceTile;
    const auto parts = static_cast<unsigned>(params.tiles * Tile::kCluster) *
                       ReducedPart<ReduceTile, EpilogueOf>::kParts;
    launch_pdl(mma_split_k_reduce_kernel<ReduceTile, EpilogueOf>, parts, ReduceTile::kThreads, 0,
               context, params);
  }
  return true;
}

// An operand that TMA can load. The matrix's rows are A's rows or B's columns.
struct TmaOperand {
  Batch batch;
  Matrix matrix;
};

// The maps of an operand of `outer` rows: box_rows of them in a K-major box, or boxes of 64 and of
// narrow_box in an MN-major one. Its last stage of K has `tail_depth`.
template <class Tile>
TensorMaps tensor_maps(const TmaOperand& operand, int64_t outer, int64_t k, int box_rows,
                       bool mn_major, int narrow_box, int tail_depth) {
  const auto map = [&](int64_t rows, int box_rows, int box_k, CUtensorMapSwizzle swizzle) {
    return tensor_map(operand.batch, operand.matrix, rows, k, box_rows, box_k, swizzle,
                      DType::kFloat16);
  };
  constexpr auto kSwizzle = CU_TENSOR_MAP_SWIZZLE_128B, kNarrow = CU_TENSOR_MAP_SWIZZLE_64B;
  if (!mn_major) {
    const auto edge = static_cast<int>(outer % box_rows);
    return {map(outer, box_rows, Tile::kK, kSwizzle),
            map(outer, edge == 0 ? box_rows : edge, Tile::kK, kSwizzle),
            {},
            {}};
  }
  const int64_t readable =
      mma_reads_past_end(operand.matrix, outer, k) ? ceil_div(outer, 64) * 64 : outer;
  TensorMaps maps{};
  maps.box = map(readable, 64, Tile::kK, kSwizzle);
  maps.box_k_tail = map(outer, 64, tail_depth, kSwizzle);
  if (narrow_box > 0) {
    maps.edge_box = map(readable, narrow_box, Tile::kK, kNarrow);
    maps.edge_box_k_tail = map(outer, narrow_box, tail_depth, kNarrow);
  }
  return maps;
}
template <class Tile>
TensorMaps b_tensor_maps(const TmaOperand& b, const Problem& p, int tail_depth) {
  return tensor_maps<Tile>(b, p.n, p.k, Tile::kN / Tile::kCluster, Tile::kBMnMajor,
                           Tile::kNarrowBox, tail_depth);
}

// launch_persistent() of mma_tma_kernel for these operands.
template <class Tile, template <class> class EpilogueOf>
bool launch(typename EpilogueOf<Tile>::Params params, int64_t k_splits, const TmaOperand& a,
            const TmaOperand& b, const Context& context) {
  const int tail_depth = stage_depth((params.p.k - 1) % Tile::kK + 1);
  params.a = tensor_maps<Tile>(a, params.p.m, params.p.k, Tile::kM, Tile::kAMnMajor, 0, tail_depth);
  params.b = b_tensor_maps<Tile>(b, params.p, tail_depth);
  return launch_persistent<Tile, EpilogueOf>(mma_tma_kernel<Tile, EpilogueOf<Tile>>, params,
                                             k_splits, context);
}

}  // namespace tiled::cuda::mma_tma

namespace tiled::cuda {

// --- mma_tma -------------------------------------------------------------------------------------

template <class T, int kIndex>
bool run_mma_tma_tile(const Problem& p, int64_t k_splits, const Context& context) {
  bool launched = false;
  with_majors(p, [&]<bool kAMnMajor, bool kBMnMajor>() {
    constexpr h200::MmaTmaTile kTile = h200::kMmaTmaTiles[kIndex];
    if constexpr (kBMnMajor && kTile.rate_mn_major == 0) {
      fail_no_tile("mma_tma", kIndex);
    } else {
      using Tile = mma_tma::Tile<T, kIndex, kTile.stages, kAMnMajor, kBMnMajor>;
      launched = mma_tma::launch<Tile, mma_tma::Epilogue>(
          mma_tma::epilogue_params<Tile>(p, context.sms), k_splits, {p.batch, p.a},
          {p.batch, transposed(p.b)}, context);
    }
  });
  return launched;
}

}  // namespace tiled::cuda

// Instantiates the kernels of a tile for both types.
#define MMA_TMA_TILE(m, n, cluster)                                                              \
  template bool run_mma_tma_tile<Half, mma_tma_tile(m, n, cluster)>(const Problem&, int64_t,     \
                                                                    const Context&);             \
  template bool run_mma_tma_tile<BFloat16, mma_tma_tile(m, n, cluster)>(const Problem&, int64_t, \
                                                                        const Context&)
