#pragma once
// The tiles of f64_mma that are compiled for Hopper alone.

#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled::cuda::f64_mma {

inline constexpr int kLargeTiles = 2;  // the first ones of h200::kF64MmaTiles

void launch_large_tile(const Problem& p, const Plan& plan, const Context& context);

}  // namespace tiled::cuda::f64_mma
