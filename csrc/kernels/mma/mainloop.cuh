#pragma once
// The kernel of mma_tma, which tf32_tma shares: persistent and warp-specialized, TMA and wgmma.
// tma_sm90.cu draws its barriers. The files that it includes are its parts: tile, work_tile,
// pipeline, producer, chunk_totals, split_k, consumer.
//
// An Epilogue turns accumulators into C:
//
//   Epilogue::Params            the kernel's parameters, derived from MainloopParams
//   Epilogue::Smem              a block's shared memory
//   Epilogue::kAccRegisters     registers of a thread for accumulators and the running total
//   Epilogue::kSharedTotal      elements of the running total that Smem has room for between tiles,
//                               a thread
//   Epilogue(params, smem)      is constructed by every consumer thread
//   batch_coords(p, matrix, i)  static: the coordinates of matrix i of the batch in its tensor map
//   begin_tile(tile)            is called before the tile is multiplied
//   end_chunk(tile, k, acc)     may change the accumulators of the chunk that begins at k
//   end_tile(tile, acc)         stores the tile
//   shared_total()              the first float4 of kSharedTotal; each next one is 32 float4 later
//   finish()                    is called before the block exits

#include "kernels/mma/consumer.cuh"
#include "kernels/mma/producer.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::mma_tma {

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_tma_kernel(const __grid_constant__ typename Epilogue::Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile, Epilogue>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty,
                              Tile::kConsumers * 4 * Tile::kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  ptx::pdl_launch_dependents();
  // nvcc places the else branch first, so the first loads do not wait for instruction fetches.
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<Tile, Epilogue>(params, smem, [&](const WorkTile&, bool, auto&... args) {
      return multiply_chunk<Tile, Epilogue>(smem, args...);
    });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp < kProducers<Tile> && ptx::elect_one()) {
      produce<Tile, Epilogue>(params, smem, warp);
    }
  }
}

}  // namespace tiled::cuda::mma_tma
