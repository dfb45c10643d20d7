#pragma once
// Split-K: consumers store the partial sums of each chunk, and a second kernel adds them in order.

#include <cstdint>

#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/mma/chunk_totals.cuh"
#include "kernels/mma/work_tile.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"

namespace tiled::cuda::mma_tma {

// Registers of a consumer and a producer thread: those of three warpgroups that start with 168.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;

// The first of a consumer thread's partial sums of a chunk of a tile.
template <class Tile>
__device__ float4* partial_sums(const MainloopParams& params, int64_t chunk, int64_t tile) {
  constexpr int kBlock = Tile::kElements / 4 * Tile::kConsumerThreads;
  const int64_t block = (chunk * params.tiles + tile) * Tile::kCluster + rank<Tile>();
  return params.workspace + block * kBlock + (threadIdx.x - Tile::kWarpgroup);
}

template <class Tile>
__device__ void store_partial_sums(const MainloopParams& params, int64_t chunk, int64_t tile,
                                   const float (&acc)[Tile::kElements]) {
  float4* to = partial_sums<Tile>(params, chunk, tile);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, to += Tile::kConsumerThreads) {
    __stcg(to, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
  }
}

// The split-K reduction: adds the chunks of a tile in order, from +0, and runs the epilogue. A
// thread has the elements of the consumer thread that computed them.
template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_split_k_reduce_kernel(const __grid_constant__ typename Epilogue::Params params) {
  // Elements of kChunks chunks are loaded before any is added.
  constexpr int kAtOnce = Tile::kElements < 16 ? Tile::kElements : 16, kChunks = 4;
  __shared__ typename Epilogue::Smem smem;
  if (threadIdx.x < Tile::kWarpgroup) return ptx::setmaxnreg_dec<kProducerRegisters>();
  ptx::setmaxnreg_inc<kConsumerRegisters>();
  const int64_t index = blockIdx.x / Tile::kCluster;
  const TileCoord tile = locate_in_cluster<Tile>(params.scheduler, index);
  const auto chunks = static_cast<int>(ceil_div(params.p.k, mma_order::kChunk));
  const int64_t chunk_stride = partial_sums<Tile>(params, 1, 0) - partial_sums<Tile>(params, 0, 0);
  const float4* from = partial_sums<Tile>(params, 0, index);
  Epilogue epilogue(params, smem);
  ptx::pdl_wait();
  epilogue.begin_tile(tile);
  float acc[Tile::kElements];
  UNROLL
  for (int first = 0; first < Tile::kElements; first += kAtOnce) {
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

}  // namespace tiled::cuda::mma_tma
