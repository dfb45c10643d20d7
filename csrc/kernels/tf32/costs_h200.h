#pragma once
// The costs of tf32 that were measured on an H200. Its tiles are mma_tma's.

#include "kernels/common/cost_model.h"

namespace tiled::h200 {

inline constexpr double kLaunchTf32 = 10000;
inline constexpr RewriteCost kScaleTf32{0.4, 136};

}  // namespace tiled::h200
