#pragma once
// The stages in shared memory between producers and consumers.

#include <cstdint>

#include "kernels/mma/work_tile.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

namespace tiled::cuda::mma_tma {

template <class Tile, class Epilogue>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kABytes];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kBCols * Tile::kK * 2];
  typename Epilogue::Smem epilogue;
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// The last stage of K is multiplied apart, unless both operands are K-major: beyond the end of K
// those are zero.
template <class Tile>
inline constexpr bool kHasKTail = Tile::kAMnMajor || Tile::kBMnMajor;

// Tells the producers of every block that loads into a stage that this consumer warp has read it.
template <class Tile, class Epilogue>
__device__ void release(Smem<Tile, Epilogue>& smem, int stage, int lane) {
  if constexpr (Tile::kCluster == 1) {  // a block may be in a cluster with which it shares nothing
    if (lane == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  } else {
    if (lane < Tile::kCluster) ptx::mbarrier_arrive_cluster(&smem.empty[stage], lane);
  }
}

// Waits until every kProducers'th stage from `first` on is empty. No block of a cluster may exit
// before the other's last arrivals at its barriers.
template <int kProducers, class Tile, class Epilogue>
__device__ void drain(Smem<Tile, Epilogue>& smem, ptx::PipelineState pipe, int first) {
  if constexpr (Tile::kCluster > 1) {
    for (int i = 0; i < Tile::kStages; ++i, pipe.advance()) {
      if (pipe.stage % kProducers == first)
        ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
    }
  }
}

}  // namespace tiled::cuda::mma_tma
