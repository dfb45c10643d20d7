#pragma once
// The tiles that the kernels of naive and tiled are instantiated for, and the costs that were
// measured on an H200. All parameters of a tile are in its row of a table. common/cost_model.h has
// the units.

namespace tiled::h200 {

// From the launch until the first block multiplies, and from the last block's end to the kernel's.
inline constexpr double kLaunchNaive = 6000;
inline constexpr double kRateNaive = 13;

// launch: of the kernel, and to begin and end a block. alone: cycles for one k while an SM has one
// block. With more blocks each takes `block` and its FMAs at `rate`.
struct TiledCost {
  double launch, alone, block, rate;
};
inline constexpr TiledCost kTiled16{3900, 74, 640, 15.8}, kTiled32{3640, 83, 3130, 18.1};
inline constexpr TiledCost kTiled64{6360, 143, 2930, 50.5};

}  // namespace tiled::h200
