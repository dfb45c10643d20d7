#pragma once
// The definition of run_mma_tma_tile(), for the translation units in tma_instances/.

#include "kernels/common/dispatch.h"
#include "kernels/mma/host_launch.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/tma_epilogue.cuh"
#include "kernels/mma/tma_instance.h"

namespace tiled::cuda {

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
