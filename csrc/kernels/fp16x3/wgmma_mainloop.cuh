#pragma once
// fp16x3_wgmma: the producer, which loads steps of K, and the main loop of a consumer, which
// multiplies them.

#include "kernels/fp16x3/wgmma_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::fp16x3_wgmma {

namespace wgmma = ptx::wgmma;

// Loads the steps of all of the block's tiles; one thread. A step of an operand is contiguous.
__device__ inline void produce(const Params& params, Smem& smem) {
  constexpr int64_t kStepsPerChunk = kChunk / Tile::kK;
  const KSplit split(params.p);
  const int64_t first = split.first * kStepsPerChunk;
  const int64_t end = min(split.end * kStepsPerChunk, ceil_div(params.p.k, Tile::kK));
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const TileCoord tile = locate<Tile>(params.scheduler, index);
    const int64_t a_tile = tile.row / Tile::kM, b_tile = tile.col / Tile::kN;
    const int64_t a_matrix = batch_offset(params.p.batch, params.a.matrix, tile.batch);
    const int64_t b_matrix = batch_offset(params.p.batch, params.b.matrix, tile.batch);
    const Presplit &a_presplit = params.a.presplit, &b_presplit = params.b.presplit;
    const uint8_t* a = a_presplit.hi_lo + a_presplit.step_offset(a_matrix, a_tile, first);
    const uint8_t* b = b_presplit.hi_lo + b_presplit.step_offset(b_matrix, b_tile, first);
    const int a_bytes = 2 * Presplit::plane_bytes(a_presplit.tile_rows(a_tile));
    const int b_bytes = 2 * Presplit::plane_bytes(b_presplit.tile_rows(b_tile));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int64_t step = first; step < end; ++step, pipe.advance()) {
      Smem::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, a_bytes + b_bytes);
      ptx::bulk_load(stage.a, a, a_bytes, full);
      ptx::bulk_load(stage.b, b, b_bytes, full);
      a += a_bytes, b += b_bytes;
    }
  }
}

// A thread of a consumer warpgroup.
struct Consumer {
  int warpgroup, thread;  // which consumer, and the thread in it
  __device__ Consumer()
      : warpgroup(threadIdx.x / Tile::kWarpgroup - 1), thread(threadIdx.x % Tile::kWarpgroup) {}
  // Tells the producer that this warp has read a stage.
  __device__ void release(Smem& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

// The offsets of the lo planes in Stage::a and Stage::b. They depend on the tile, since the last
// tile of an operand may have fewer rows.
struct LoPlanes {
  int a, b;
};

inline constexpr int kNoStage = -1;

// Multiplies a step of K. `part` accumulates hi_a hi_b over kPromote of K and is then added to
// `total`; `low` accumulates the two small products, the last of which are still running on return.
// The stage of the step before, `to_release`, is released as soon as its products are finished.
template <int kPromote>
__device__ void multiply_step(Smem& smem, int stage_index, int to_release, LoPlanes lo_planes,
                              const Consumer& me, float (&part)[Tile::kElements],
                              float (&low)[Tile::kElements], float (&total)[Tile::kElements]) {
  const Smem::Stage& stage = smem.stage[stage_index];
  const int first_row = me.warpgroup * Presplit::plane_bytes(64);
  const uint64_t a_hi_smem = wgmma::descriptor(stage.a + first_row);
  const uint64_t a_lo_smem = wgmma::descriptor(stage.a + lo_planes.a + first_row);
  const uint64_t b_hi_smem = wgmma::descriptor(stage.b);
  const uint64_t b_lo_smem = wgmma::descriptor(stage.b + lo_planes.b);
  // When this loop is unrolled, ptxas gives each part registers of its own, runs out of them, and
  // lets no two products overlap.
  _Pragma("unroll 1") for (int k = 0; k < Tile::kK; k += kPromote) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int k_offset = (k / 16 + k16) * 2;
      wgmma::mma(part, a_hi_smem + k_offset, b_hi_smem + k_offset, k16 > 0);
    }
    wgmma::commit_group();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int k_offset = (k / 16 + k16) * 2;
      wgmma::mma(low, a_lo_smem + k_offset, b_hi_smem + k_offset, true);
      wgmma::mma(low, a_hi_smem + k_offset, b_lo_smem + k_offset, true);
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    if (k == 0 && to_release != kNoStage) me.release(smem, to_release);
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] += part[i];
  }
}

// Multiplies the steps of a chunk, from zero. Returns the stage of the last step, which is not yet
// released: its small products, which `low` accumulates, are still running.
template <int kPromote>
__device__ int multiply_chunk(Smem& smem, ptx::PipelineState& pipe, int steps, LoPlanes lo_planes,
                              const Consumer& me, float (&low)[Tile::kElements],
                              float (&total)[Tile::kElements]) {
  float part[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    multiply_step<kPromote>(smem, pipe.stage, to_release, lo_planes, me, part, low, total);
    to_release = pipe.stage;
  }
  return to_release;
}

}  // namespace tiled::cuda::fp16x3_wgmma
