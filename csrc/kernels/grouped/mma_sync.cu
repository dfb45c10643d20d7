// mma_sync of a grouped product: 16-bit floats, groups along any side, any strides.
//
// Idea:  A block computes a tile by the main loop of mma_sync (mma/sync_kernel.cuh). It takes from
//        the list of the groups' tiles, or from the ends of a few groups, where the tile begins and
//        ends, so no tile has rows of two groups, and none has k of two. A group begins at any
//        element: if that is along the contiguous side of an operand, its elements are loaded by
//        aligned words and shifted, as if the operand were not aligned.
// Limit: that of mma_sync. The grid has a block for each tile that there may be, and those that are
//        not in the list exit.
// Next:  mma_tma_sm90.cu: TMA loads both operands, and wgmma reads them from shared memory.

#include <cstdint>

#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/grouped/work_tile.cuh"
#include "kernels/mma/instance.h"
#include "kernels/mma/sync_kernel.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace mma_sync {
namespace {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    grouped_mma_sync_kernel(const __grid_constant__ Params params,
                            const __grid_constant__ GroupTiles tiles, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  __shared__ GroupedWorkTile tile;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();  // the list is there, and the operands
  const Problem& p = params.p;
  if (threadIdx.x == 0) tile = locate_grouped<Tile>(p, tiles, first_tile + blockIdx.x);
  __syncthreads();
  if (tile.rows == 0 || tile.cols == 0) return;
  const auto locate = [&]() -> WorkTile {
    const auto* biases = static_cast<const uint16_t*>(p.epilogue.bias);
    return {.a = tile.a,
            .b = tile.b,
            .c = tile.c,
            .bias = biases != nullptr && tile.has_group ? biases + tile.bias : nullptr,
            .rows = tile.rows,
            .cols = tile.cols,
            .k = tile.k};
  };
  compute_tile<Tile>(params, locate, dynamic_smem);
}

template <class Tile>
bool launch_tile(const Problem& p, const Context& context) {
  const auto mode = [&](const Matrix& matrix, bool mn_major, int64_t mn, GroupedSide mn_side) {
    const bool is_cut = p.groups.side == (mn_major ? mn_side : GroupedSide::kK);
    return load_mode(p, matrix, mn_major, mn, is_cut);
  };
  const Params params{
      .p = p,
      .a = mode(p.a, Tile::kAMnMajor, p.m, GroupedSide::kM),
      .b = mode(transposed(p.b), Tile::kBMnMajor, p.n, GroupedSide::kN),
  };
  const auto kernel = grouped_mma_sync_kernel<Tile>;
  allow_shared_memory(kernel, kSmemBytes<Tile>);
  return with_group_tiles<Tile>(p, context, [&](const GroupTiles& tiles) {
    for_grids(most_grouped_tiles<Tile>(p, tiles), [&](int64_t first, unsigned blocks) {
      launch_pdl(kernel, blocks, Tile::kThreads, kSmemBytes<Tile>, context, params, tiles, first);
    });
  });
}

}  // namespace
}  // namespace mma_sync

bool launch_grouped_mma_sync(const Problem& p, const Context& context) {
  if (p.m == 0 || p.n == 0) return true;
  bool launched = false;
  with_mma_kind(p, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    using Large = mma_sync::TileOf<T, 0, kAMnMajor, kBMnMajor>;
    using Small = mma_sync::TileOf<T, 1, kAMnMajor, kBMnMajor>;
    launched = has_small_groups(p, 64) ? mma_sync::launch_tile<Small>(p, context)
                                       : mma_sync::launch_tile<Large>(p, context);
  });
  return launched;
}

}  // namespace tiled::cuda
