#pragma once
// The consumers of mma_tma: warpgroups that multiply stages by wgmma.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_mma.h"
#include "kernels/mma/chunk_totals.cuh"
#include "kernels/mma/pipeline.cuh"
#include "kernels/mma/split_k.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::mma_tma {

namespace wgmma = ptx::wgmma;

// The named barrier of the ping-pong. The epilogue has one for each warpgroup, from 1 on.
template <class Tile>
inline constexpr int kPingPongBarrier = 1 + Tile::kConsumers;

// Issues the wgmmas of a stage: a warpgroup's rows of the tile by all columns. kIsKTail: the stage
// has `depth` of K only.
template <bool kIsKTail, class Tile, class Epilogue>
__device__ void multiply_stage(const Smem<Tile, Epilogue>& smem, int stage, int depth,
                               int warpgroup, float (&acc)[Tile::kElements]) {
  // The distance of 16 of K in a descriptor, in units of 16 bytes.
  constexpr int kA16 = Tile::kAMnMajor ? 128 : 2;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2, kWide = (Tile::kN - Tile::kNarrowBox) / 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t a =
      wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.a[stage] + warpgroup * Tile::kBoxBytes);
  const uint64_t b = wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.b[stage]);
  const uint64_t b_narrow = wgmma::swizzled_descriptor<Tile::kNarrowBox * 128, 32>(
      smem.b[stage] + (Tile::kN - Tile::kNarrowBox) * 128);
  wgmma::fence_operand(acc);
  wgmma::fence();
  UNROLL
  for (int i = 0; i < Tile::kK / mma_order::kDepth; ++i) {
    if (kIsKTail && i * mma_order::kDepth >= depth) break;
    if (kIsKTail && i > 0) {  // after a branch, ptxas would begin a new group by itself
      wgmma::commit_group();
      wgmma::fence();
    }
    if constexpr (kWide > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[kWide]>(acc), a + i * kA16, b + i * kB16, true);
    }
    if constexpr (Tile::kNarrowBox > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[Tile::kNarrowBox / 2]>(acc[kWide]), a + i * kA16,
          b_narrow + i * Tile::kNarrowBox * 2, true);
    }
  }
  wgmma::commit_group();
}

// Multiplies a chunk of `length` of K. The wgmmas of its last stage are left unfinished; that stage
// is returned, to be released.
template <class Tile, class Epilogue>
__device__ int multiply_chunk(Smem<Tile, Epilogue>& smem, ptx::PipelineState& pipe, int length,
                              int warpgroup, int lane, float (&acc)[Tile::kElements]) {
  constexpr int kNone = -1;
  UNROLL
  for (float& each : acc) each = 0;
  // Neither warpgroup is a chunk ahead of the other where a chunk has as many steps as the pipeline
  // has stages, so each phase of the ping-pong barrier belongs to one chunk.
  const bool ping_pong = Tile::kSoloSteps > 0 && length >= Tile::kStages * Tile::kK;
  const int solo_k = ping_pong && warpgroup == 1
                         ? (ceil_div(length, Tile::kK) - Tile::kSoloSteps) * Tile::kK
                         : kNone;
  int to_release = kNone;
  const auto multiply = [&]<bool kIsKTail>(int depth) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    multiply_stage<kIsKTail, Tile>(smem, pipe.stage, depth, warpgroup, acc);
    wgmma::wait_group<1>();
    if (to_release != kNone) release(smem, to_release, lane);
    to_release = pipe.stage;
    pipe.advance();
  };
  const int whole = kHasKTail<Tile> ? length / Tile::kK * Tile::kK : length;
  NO_UNROLL
  for (int k = 0; k < whole; k += Tile::kK) {
    if (k == solo_k) ptx::named_barrier_sync(kPingPongBarrier<Tile>, Tile::kConsumerThreads);
    multiply.template operator()<false>(Tile::kK);
  }
  if (kHasKTail<Tile> && whole < length) multiply.template operator()<true>(length - whole);
  if (ping_pong && warpgroup == 0) {
    ptx::named_barrier_arrive(kPingPongBarrier<Tile>, Tile::kConsumerThreads);
  }
  return to_release;
}

// The loop of the consumer warpgroups. multiply(work_tile, is_last, pipe, length, warpgroup, lane,
// acc) does what multiply_chunk() does; is_last: the chunk is the work tile's last.
template <class Tile, class Epilogue, class Multiply>
__device__ void consume(const typename Epilogue::Params& params, Smem<Tile, Epilogue>& smem,
                        const Multiply& multiply) {
  constexpr int kBlock = kTotalInWorkspace<Tile, Epilogue> / 4 * Tile::kConsumerThreads;
  const int warpgroup = ptx::warp_uniform(threadIdx.x / Tile::kWarpgroup) - 1;
  const int lane = threadIdx.x % 32;
  const Problem& p = params.p;
  constexpr unsigned kCluster = Tile::kCluster;
  Epilogue epilogue(params, smem.epilogue);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  ptx::pdl_wait();
  const int64_t work_tiles = params.tiles * params.k_splits;
  for (int64_t index = blockIdx.x / kCluster; index < work_tiles; index += gridDim.x / kCluster) {
    const WorkTile work_tile = locate_work_tile<Tile>(params, index);
    const TileCoord& tile = work_tile.tile;
    if (params.k_splits == 1) epilogue.begin_tile(tile);
    float acc[Tile::kElements], total[kTotalInRegisters<Tile, Epilogue> + 1];
    for (int64_t chunk = work_tile.k_begin; chunk < work_tile.k_end; chunk += mma_order::kChunk) {
      const auto length =
          static_cast<int>(min(work_tile.k_end - chunk, int64_t{mma_order::kChunk}));
      const bool is_last = chunk + length == work_tile.k_end;
      const int last_stage = multiply(work_tile, is_last, pipe, length, warpgroup, lane, acc);
      // The total in the workspace is prefetched while the last wgmmas finish.
      float4* workspace =
          params.workspace + int64_t{blockIdx.x} * kBlock + (threadIdx.x - Tile::kWarpgroup);
      float4 prefetched[kPrefetched / 4];
      if (kTotalInWorkspace<Tile, Epilogue> > 0 && chunk > 0 && params.k_splits == 1) {
        prefetch_total<Tile>(workspace, kTotalInWorkspace<Tile, Epilogue>, prefetched);
      }
      wgmma::wait_group<0>();
      wgmma::fence_operand(acc);
      release(smem, last_stage, lane);
      epilogue.end_chunk(tile, chunk, acc);
      if (params.k_splits > 1) {
        store_partial_sums<Tile>(params, chunk / mma_order::kChunk, work_tile.index, acc);
        continue;
      }
      if (chunk == 0) {
        UNROLL
        for (float& each : acc) each += 0.0f;  // chunks are added from +0: a -0 becomes +0
      }
      if (p.k <= mma_order::kChunk) continue;
      add_earlier_chunks<Tile>(epilogue, p, chunk, total, prefetched, workspace, acc);
    }
    if (params.k_splits == 1) epilogue.end_tile(tile, acc);
  }
  epilogue.finish();
}

}  // namespace tiled::cuda::mma_tma
