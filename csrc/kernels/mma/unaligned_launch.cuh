#pragma once
// Defines launch() of unaligned_launch.h, for the translation units that instantiate it.

#include <iterator>

#include "kernels/common/dispatch.h"
#include "kernels/mma/host_launch.h"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/unaligned_epilogue.cuh"
#include "kernels/mma/unaligned_launch.h"
#include "kernels/mma/unaligned_layout.cuh"
#include "kernels/mma/unaligned_mainloop.cuh"

namespace tiled::cuda::mma_unaligned {

template <class Tile>
bool launch_tile(EpilogueParams params, int64_t k_splits, const Context& context) {
  static_assert(kFitsRegisters<Tile>, "consumers would wait forever for registers");
  const Problem& p = params.p;
  params.b = mma_tma::b_tensor_maps<Tile>({p.batch, transposed(p.b)}, p, Tile::kK);
  return mma_tma::launch_persistent<Tile, Epilogue>(mma_unaligned_kernel<Tile, Epilogue<Tile>>,
                                                    params, k_splits, context);
}

template <class T, bool kAMnMajor, bool kBMnMajor>
bool launch(const EpilogueParams& params, const Plan& plan, const Context& context) {
  return with_tile<std::size(h200::kMmaUnalignedTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr h200::MmaUnalignedTile kTile = h200::kMmaUnalignedTiles[kIndex];
    return launch_tile<Tile<T, kIndex, kTile.stages, kTile.stages_mn_major, kAMnMajor, kBMnMajor,
                            kTile.warpgroup_rows>>(params, plan.k_splits, context);
  });
}

}  // namespace tiled::cuda::mma_unaligned
