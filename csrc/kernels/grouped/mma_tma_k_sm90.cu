// mma_tma of a product with groups along K: 16-bit floats, both operands MN-major, as the gradient
// of the weights has them.
//
// Idea:  A group is a matrix of a batch with a K of its own, from the list of groups. The consumers
//        are mma_tma's. A producer loads whole stages as mma_tma does. The last one of a group ends
//        within a box, and what follows there belongs to the next group: it is loaded by boxes of
//        32, 16, ... 1 of K, and filled up to whole wgmmas by boxes beyond the matrix, which TMA
//        fills with zeros.
// Limit: that of mma_tma. A group of short K has as many boxes to load as one of some hundred.
// Next:  K splits for a few long groups.

#include <algorithm>
#include <cstdint>

#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/grouped/mma_tma.cuh"
#include "kernels/mma/instance.h"
#include "kernels/mma/tma_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {

namespace mma_tma {

// --- Work tiles ----------------------------------------------------------------------------------

constexpr int kPieces = 6;  // boxes of 1, 2, ... 32 of K

struct GroupedKParams : GroupedParams {
  CUtensorMap a_pieces[kPieces], b_pieces[kPieces];
};

// Both threads that produce and threads that consume wait for the list.
template <class Tile>
__device__ int64_t count_work_tiles(const GroupedKParams& params) {
  ptx::pdl_wait();
  return params.tiles;
}

template <class Tile>
__device__ GroupedWorkTile locate_work_tile(const GroupedKParams& params, int64_t index) {
  const Problem& p = params.p;
  const TileCoord tile = locate_in_cluster<Tile>(params.scheduler, index);
  const GroupRange range = params.list.ranges[tile.batch];
  return {{tile, static_cast<int>(p.m), static_cast<int>(p.n), true},
          index,
          range.begin,
          range.end,
          left_in_matrix(p.m, tile.row),
          left_in_matrix(p.n, tile.col)};
}

// --- Producers -----------------------------------------------------------------------------------

// Loads `size` of K, from `k` on, of the boxes of a tile that are in the matrix. `to`: of the first
// one.
template <int kRows>
__device__ void load_boxes(uint8_t* to, const CUtensorMap& map, int first, int left, int k,
                           uint64_t* full) {
  UNROLL
  for (int i = 0; i < kRows; i += 64) {
    const int coords[] = {first + i, k, 0, 0, 0};
    if (i < left) ptx::tma_load(to + i * 128, &map, coords, full);
  }
}

// The loop of producer `warp`, by its elected thread.
template <class Tile, class Epilogue>
__device__ void produce_groups(const GroupedKParams& params, Smem<Tile, Epilogue>& smem, int warp) {
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  const int64_t work_tiles = count_work_tiles<Tile>(params);
  for (int64_t index = blockIdx.x; index < work_tiles; index += gridDim.x) {
    const GroupedWorkTile work_tile = locate_work_tile<Tile>(params, index);
    const int row = work_tile.tile.row, col = work_tile.tile.col;
    const int boxes = static_cast<int>(ceil_div(min(work_tile.rows, Tile::kM), 64) +
                                       ceil_div(min(work_tile.cols, Tile::kN), 64));
    const int end = static_cast<int>(work_tile.k_end);
    for (int k = static_cast<int>(work_tile.k_begin); k < end; k += Tile::kK, pipe.advance()) {
      if (pipe.stage % kProducers<Tile> != warp) continue;
      uint64_t* full = &smem.full[pipe.stage];
      const auto load = [&](const CUtensorMap& of_a, const CUtensorMap& of_b, int at, int from) {
        load_boxes<Tile::kM>(smem.a[pipe.stage] + at * 128, of_a, row, work_tile.rows, from, full);
        load_boxes<Tile::kN>(smem.b[pipe.stage] + at * 128, of_b, col, work_tile.cols, from, full);
      };
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      const int left = end - k, depth = stage_depth(left);
      ptx::arrive_expect_tx(full, boxes * 128 * depth);
      if (left >= Tile::kK) {
        load(params.a.box, params.b.box, 0, k);
        continue;
      }
      for (int at = 0; at < depth;) {
        const bool in_group = at < left;
        const int piece = 31 - __clz(in_group ? left - at : depth - at);  // of 2^piece
        load(params.a_pieces[piece], params.b_pieces[piece], at,
             in_group ? k + at : static_cast<int>(params.p.k));
        at += 1 << piece;
      }
    }
  }
}

// --- The kernel and its launch -------------------------------------------------------------------

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    grouped_mma_tma_k_kernel(const __grid_constant__ GroupedKParams params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile, Epilogue>&>(dynamic_smem);
  init_barriers(smem, 1);
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<Tile, Epilogue>(params, smem, [&](const auto&, bool, auto&... args) {
      return multiply_chunk<Tile, Epilogue>(smem, args...);
    });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp < kProducers<Tile> && ptx::elect_one())
      produce_groups<Tile, Epilogue>(params, smem, warp);
  }
}

template <class Tile>
bool launch_grouped_k_tile(const Problem& p, const Context& context) {
  using Epilogue = GroupedEpilogue<Tile, GroupedKParams>;
  static_assert(Tile::kCluster == 1 && Tile::kAMnMajor && Tile::kBMnMajor && Tile::kNarrowBox == 0);
  // Running totals of a block's tile, if a group may have several chunks.
  constexpr int64_t kTotals = kTotalInWorkspace<Tile, Epilogue> / 4 * Tile::kConsumerThreads;
  const int64_t totals = p.k > mma_order::kChunk ? kTotals * context.sms : 0;
  constexpr int kNoTile = 1 << 30;  // the list's ranges are read alone

  GroupedKParams params{{epilogue_params<Tile>(p, context.sms), {}}, {}, {}};
  params.by_tma = false;
  const auto take_buffers = [&](Workspace& workspace) {
    params.list = GroupTiles::take(p, kNoTile, workspace);
    params.workspace = workspace.take<float4>(totals).data();
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  take_buffers(workspace);
  params.scheduler = TileScheduler::of<ClusterTile<Tile>>(p);
  params.tiles = count_tiles(p, Tile::kM, Tile::kN);
  const auto map = [&](const Matrix& matrix, int64_t rows, int box_k) {
    return tensor_map(p.batch, matrix, rows, p.k, 64, box_k, CU_TENSOR_MAP_SWIZZLE_128B,
                      DType::kFloat16);
  };
  params.a.box = map(p.a, p.m, Tile::kK);
  params.b.box = map(transposed(p.b), p.n, Tile::kK);
  for (int i = 0; i < kPieces; ++i) {
    params.a_pieces[i] = map(p.a, p.m, 1 << i);
    params.b_pieces[i] = map(transposed(p.b), p.n, 1 << i);
  }
  launch_group_tiles(p, kNoTile, 1, params.list, context);

  constexpr size_t kSmem = sizeof(Smem<Tile, Epilogue>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = grouped_mma_tma_k_kernel<Tile, Epilogue>;
  allow_shared_memory(kernel, kSmem);
  launch_pdl(kernel, static_cast<unsigned>(std::min<int64_t>(params.tiles, context.sms)),
             Tile::kThreads, kSmem, context, params);
  return true;
}

}  // namespace mma_tma

bool launch_grouped_mma_tma_k(const Problem& p, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  bool launched = false;
  with_16bit_type(p.dtype, [&]<class T>() {
    launched =
        mma_tma::launch_grouped_k_tile<mma_tma::TileOf<T, 128, 128, 1, 6, true, true>>(p, context);
  });
  return launched;
}

}  // namespace tiled::cuda
