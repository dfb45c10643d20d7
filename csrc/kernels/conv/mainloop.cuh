#pragma once
// How a consumer warpgroup of the convolutions multiplies a chunk (core/order_fp16x3.h).

#include <cstdint>

#include "core/order_chunked.h"
#include "core/presplit.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/wgmma_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::conv {

namespace wgmma = ptx::wgmma;

constexpr int kK = Presplit::kK, kStepsOfChunk = kChunk / kK;
constexpr int kWarpgroup = 128, kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kElements = 64;  // accumulators of a thread, of 64 x 128 by a warpgroup

// Sums of chunks are kept as fp16x3_wgmma keeps them.
using fp16x3_wgmma::Accumulators;
using fp16x3_wgmma::add_to_totals;
using fp16x3_wgmma::store_chunk;
static_assert(kElements == fp16x3_wgmma::Tile::kElements);

// Descriptors of the hi and lo parts of a stage.
struct Operands {
  uint64_t a_hi, a_lo, b_hi, b_lo;
};

// Multiplies the steps of a chunk, from zero: `total` is of the hi parts, promoted every kPromote
// of K, and `low` accumulates the two small products. operands_of(stage) gives the operands;
// release(stage) says that a stage has been read. Returns the last stage, which is not yet
// released: its small products are still running.
template <int kPromote, class OperandsOf, class Release>
__device__ int multiply_chunk(uint64_t* full, ptx::PipelineState& pipe, int steps,
                              float (&low)[kElements], float (&total)[kElements],
                              const OperandsOf& operands_of, const Release& release) {
  constexpr int kNoStage = -1;
  float part[kElements];
  UNROLL
  for (int i = 0; i < kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&full[pipe.stage], pipe.parity);
    const Operands operands = operands_of(pipe.stage);
    // Unrolled, each part has registers of its own, and no two products overlap.
    NO_UNROLL
    for (int k = 0; k < kK; k += kPromote) {
      wgmma::fence_operand(part);
      wgmma::fence_operand(low);
      wgmma::fence();
      UNROLL
      for (int k16 = 0; k16 < kPromote / 16; ++k16) {
        const int offset = (k / 16 + k16) * 2;
        wgmma::mma(part, operands.a_hi + offset, operands.b_hi + offset, k16 > 0);
      }
      wgmma::commit_group();
      UNROLL
      for (int k16 = 0; k16 < kPromote / 16; ++k16) {
        const int offset = (k / 16 + k16) * 2;
        wgmma::mma(low, operands.a_hi + offset, operands.b_lo + offset, true);
        wgmma::mma(low, operands.a_lo + offset, operands.b_hi + offset, true);
      }
      wgmma::commit_group();
      wgmma::wait_group<1>();
      wgmma::fence_operand(part);
      if (k == 0 && to_release != kNoStage) release(to_release);
      UNROLL
      for (int i = 0; i < kElements; ++i) total[i] += part[i];
    }
    to_release = pipe.stage;
  }
  return to_release;
}

// Adds kCount of a thread's sums, from accumulator `first` on, over `count` blocks in order.
template <int kCount>
__device__ void add_sums(const Accumulators* from, int pitch, int count, int first, int thread,
                         float (&sum)[kCount]) {
  UNROLL
  for (float& each : sum) each = kAddIdentity<float>;
  _Pragma("unroll 4") for (int index = 0; index < count; ++index, from += pitch) {
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const float4 x4 = __ldcg(&(*from)[(first + i) / 4][thread]);
      sum[i] += x4.x, sum[i + 1] += x4.y, sum[i + 2] += x4.z, sum[i + 3] += x4.w;
    }
  }
}

}  // namespace tiled::cuda::conv
