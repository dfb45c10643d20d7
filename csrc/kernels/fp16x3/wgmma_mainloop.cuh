#pragma once
// How a consumer warpgroup of fp16x3_wgmma multiplies a chunk. A grouped product shares it.

#include "kernels/fp16x3/wgmma_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace fp16x3_wgmma {

namespace wgmma = ptx::wgmma;

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
// `total`; `low` accumulates the two small products, and the last ones are still running on return.
// The stage of the step before, `to_release`, is released as soon as its products are finished.
// Without kALo or kBLo this operand's lo parts are all 0, and their product is left out.
template <int kPromote, bool kALo, bool kBLo>
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
      if (kALo) wgmma::mma(low, a_lo_smem + k_offset, b_hi_smem + k_offset, true);
      if (kBLo) wgmma::mma(low, a_hi_smem + k_offset, b_lo_smem + k_offset, true);
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
template <int kPromote, bool kALo, bool kBLo>
__device__ int multiply_chunk(Smem& smem, ptx::PipelineState& pipe, int steps, LoPlanes lo_planes,
                              const Consumer& me, float (&low)[Tile::kElements],
                              float (&total)[Tile::kElements]) {
  float part[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    multiply_step<kPromote, kALo, kBLo>(smem, pipe.stage, to_release, lo_planes, me, part, low,
                                        total);
    to_release = pipe.stage;
  }
  return to_release;
}

}  // namespace fp16x3_wgmma
}  // namespace tiled::cuda
