// mma_sync: products of 16-bit floats by mma.sync, whatever their strides.
//
// Idea:  the warps of a block load steps of K of both operands to shared memory, as they are
//        stored, and multiply by mma.sync: ldmatrix reads K-major data as it is, and transposes
//        MN-major data. If rows are 16-byte aligned, cp.async copies eight elements at once. If
//        they are not, a thread loads the two aligned words that hold the eight and shifts
//        them. Elements without unit stride are gathered one by one. The kernel also runs on
//        Ampere and Ada: their tensor cores round differently (docs/guide/numerics.md).
// Limit: issue slots, which ldmatrix and mma.sync share, and registers, which hold the fragments.
// Next:  mma_tma: TMA loads both operands, and wgmma reads them from shared memory.
//
//   all warps
//   ------------------------------------------------------------------------------------
//   wait for the thread's own cp.async of stage s
//   __syncthreads()           stage s is there for all warps, and all have read stage s - 1
//   begin to load             stage s - 1 + kStages, in the place of stage s - 1
//   ldmatrix, mma.sync        stage s
//   finish the load           store to the stage what has come to registers

#include <cstdint>
#include <iterator>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/plan.h"
#include "kernels/mma/sync_kernel.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace mma_sync {
namespace {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    mma_sync_kernel(const __grid_constant__ Params params, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  ptx::pdl_launch_dependents();
  const auto locate = [&]() -> WorkTile {
    const Problem& p = params.p;
    const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
    const auto* biases = static_cast<const uint16_t*>(p.epilogue.bias);
    return {.a = batch_offset(p.batch, p.a, tile.batch) + tile.row * p.a.row_stride,
            .b = batch_offset(p.batch, p.b, tile.batch) + tile.col * p.b.col_stride,
            .c = batch_offset(p.batch, p.c, tile.batch) + tile.row * p.c.row_stride +
                 tile.col * p.c.col_stride,
            .bias = biases == nullptr ? nullptr : biases + tile.col * p.epilogue.bias_stride,
            .rows = p.m - tile.row,
            .cols = p.n - tile.col,
            .k = p.k};
  };
  compute_tile<Tile>(params, locate, dynamic_smem);
}

template <class Tile>
void launch_tile(const Problem& p, const Context& context) {
  const Params params{
      .p = p,
      .a = load_mode(p, p.a, Tile::kAMnMajor, p.m),
      .b = load_mode(p, transposed(p.b), Tile::kBMnMajor, p.n),
  };
  const auto kernel = mma_sync_kernel<Tile>;
  allow_shared_memory(kernel, kSmemBytes<Tile>);
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kSmemBytes<Tile>, context, params, first);
  });
}

}  // namespace
}  // namespace mma_sync

bool launch_mma_sync(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  with_mma_kind(p, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    with_tile<std::size(h200::kMmaSyncTiles)>(plan.tile, [&]<int kIndex>() {
      mma_sync::launch_tile<mma_sync::TileOf<T, kIndex, kAMnMajor, kBMnMajor>>(p, context);
      return true;
    });
  });
  return true;
}

}  // namespace tiled::cuda
