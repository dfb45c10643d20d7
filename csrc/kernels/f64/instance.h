#pragma once
// The tiles of f64_mma that are compiled for Hopper alone.

#include <iterator>

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/f64/costs_h200.h"

namespace tiled::cuda::f64_mma {

inline constexpr int kTiles = std::size(h200::kF64MmaTiles);
inline constexpr int kLargeTiles = 2;  // the first ones

void launch_large_tile(const Problem& p, const Plan& plan, const Context& context);
void launch_large_complex_tile(const Problem& p, const Plan& plan, const SignsOfB& signs,
                               const Context& context);

}  // namespace tiled::cuda::f64_mma
