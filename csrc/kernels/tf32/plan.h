#pragma once
// The plan of tf32_tma: mma_tma's tiles, and the cycles of the kernel that scales both operands.

#include <cstdint>

#include "kernels/common/workspace.h"
#include "kernels/fp16x3/recompute_list_bytes.h"
#include "kernels/mma/plan.h"
#include "kernels/tf32/costs_h200.h"

namespace tiled {

inline Plan tf32_tma_plan(const Problem& p, int64_t sms) {
  Plan plan = tma_tiles_plan(p, sms);
  plan.blocks = count_tiles(p, plan.m, plan.n) * plan.k_splits;
  plan.cycles =
      h200::kLaunchTf32 + rewrite_cycles(p, sms, p.m, p.n, h200::kScaleTf32) + plan.cycles;
  return plan;
}

// The recompute list; both operands as fp16, with an inverse scale for each row in a chunk; and the
// totals of the tiles that are being computed, while chunks follow.
inline WorkspaceBytes tf32_tma_workspace(const Problem& p, const Plan& plan, int64_t sms) {
  const int64_t chunks = ceil_div(p.k, mma_order::kChunk), pitch = ceil_div(p.k, 64) * 64;
  const auto take_operand = [&](cuda::Workspace& workspace, const Matrix& matrix, int64_t rows) {
    const int64_t matrices = stored_matrices(p.batch, matrix);
    workspace.take<uint16_t>(rows * pitch * matrices);
    workspace.take<float>(chunks * ceil_div(rows, 8) * 8 * matrices);
  };
  const int64_t operands = cuda::workspace_bytes([&](cuda::Workspace& workspace) {
    take_operand(workspace, p.a, p.m);
    take_operand(workspace, p.b, p.n);
    workspace.take<float>(chunks > 1 ? sms * 128 * 256 : 0);  // the largest tile's
  });
  return {recompute_list_bytes(p, plan.n) + operands,
          plan.k_splits > 1 ? mma_sums_bytes(p, plan, h200::kMmaTmaTiles[plan.tile], sms) : 0};
}

}  // namespace tiled
