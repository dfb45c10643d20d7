#pragma once
// fp16x3_wgmma: the split-K reduction, which adds the sums of chunks in order and stores the
// totals.
//
// A block reduces the part of a tile that one consumer warpgroup accumulated. Each of its
// warpgroups adds some elements of each thread, and the first one stores them all.

#include "kernels/fp16x3/wgmma_epilogue.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::fp16x3_wgmma {

inline constexpr int kReduceWarpgroups = 4, kReduceThreads = kReduceWarpgroups * Tile::kWarpgroup;

__global__ void __launch_bounds__(kReduceThreads)
    fp16x3_split_k_reduce_kernel(const __grid_constant__ Params params) {
  constexpr int kVectors = Tile::kElements / 4 / kReduceWarpgroups;
  __shared__ Accumulators sums;
  __shared__ float bias[Tile::kN];
  ptx::pdl_launch_dependents();
  const int64_t tile = blockIdx.x / Tile::kConsumers;
  const int consumer = blockIdx.x % Tile::kConsumers;
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, thread = threadIdx.x % Tile::kWarpgroup;
  const int chunks = static_cast<int>(ceil_div(params.p.k, kChunk));
  ptx::pdl_wait();
  constexpr float kEmpty = kAddIdentity<float>;
  float4 sum[kVectors];
  UNROLL
  for (float4& each : sum) each = {kEmpty, kEmpty, kEmpty, kEmpty};
  _Pragma("unroll 4") for (int chunk = 0; chunk < chunks; ++chunk) {
    const Accumulators& from = partial_sums(params, tile, chunk, consumer);
    UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const float4 x4 = __ldcg(&from[warpgroup * kVectors + i][thread]);
      sum[i].x += x4.x, sum[i].y += x4.y, sum[i].z += x4.z, sum[i].w += x4.w;
    }
  }
  UNROLL
  for (int i = 0; i < kVectors; ++i) sums[warpgroup * kVectors + i][thread] = sum[i];
  __syncthreads();
  if (warpgroup > 0) return;

  float total[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    const auto [x, y, z, w] = sums[i / 4][thread];
    total[i] = x, total[i + 1] = y, total[i + 2] = z, total[i + 3] = w;
  }
  const ThreadCoord coord(locate<Tile>(params.scheduler, tile), consumer, thread);
  store_tile(params, coord, 1, total, bias, sums);
}

}  // namespace tiled::cuda::fp16x3_wgmma
