#pragma once
// The plan of tf32_tma: mma_tma's tiles, and the cycles of the kernel that scales both operands.

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

}  // namespace tiled
