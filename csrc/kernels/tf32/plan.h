#pragma once
// The plan of tf32_tma: mma_tma's tiles, and the cycles of the kernel that scales both operands.

#include <cstdint>

#include "kernels/common/workspace.h"
#include "kernels/fp16x3/recompute_list.h"
#include "kernels/mma/plan.h"
#include "kernels/tf32/costs_h200.h"
#include "kernels/tf32/scale.h"

namespace tiled {

inline Plan tf32_tma_plan(const Problem& p, int64_t sms) {
  Plan plan = tma_tiles_plan(p, sms);
  plan.blocks = count_tiles(p, plan.m, plan.n) * plan.k_splits;
  plan.cycles =
      h200::kLaunchTf32 + rewrite_cycles(p, sms, p.m, p.n, h200::kScaleTf32) + plan.cycles;
  return plan;
}

// The buffers of tf32_tma besides the operands and C: the recompute list, both operands as fp16,
// and the totals of finished chunks, if registers and shared memory do not suffice.
struct Tf32Buffers {
  cuda::RecomputeList recompute;
  cuda::ScaledOperand a, b;
  float* totals;

  Tf32Buffers(const Problem& p, int tile_cols, int64_t sms, cuda::Workspace& workspace)
      : recompute(cuda::RecomputeList::take(workspace, p, tile_cols)),
        a(cuda::scaled_operand(p.batch, p.a, p.m, p.k)),
        b(cuda::scaled_operand(p.batch, transposed(p.b), p.n, p.k)) {
    for (cuda::ScaledOperand* x : {&a, &b}) {
      x->fp16 = workspace.take<uint16_t>(x->matrix_elements() * x->batch.count).data();
      x->inverse_scales = workspace.take<float>(x->matrix_groups() * x->batch.count).data();
    }
    constexpr int64_t kTotals = 128 * 256;  // of the largest tile
    totals = workspace.take<float>(p.k > mma_order::kChunk ? sms * kTotals : 0).data();
  }
};
inline int64_t tf32_buffer_bytes(const Problem& p, int tile_cols, int64_t sms) {
  return cuda::workspace_bytes(
      [&](cuda::Workspace& workspace) { Tf32Buffers(p, tile_cols, sms, workspace); });
}
inline WorkspaceBytes tf32_tma_workspace(const Problem& p, const Plan& plan, int64_t sms) {
  return {tf32_buffer_bytes(p, plan.n, sms),
          plan.k_splits > 1 ? mma_sums_bytes(p, plan, h200::kMmaTmaTiles[plan.tile], sms) : 0};
}

}  // namespace tiled
