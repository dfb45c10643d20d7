#pragma once
// The costs of the kernels of basics on an H200. common/cost_model.h has the units.

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
// The course runs by name, so these need only be in order.
inline constexpr TiledCost kPadded32 = kTiled32;
inline constexpr TiledCost kRegisterTile{6360, 234, 2930, 70}, kVectorized{6360, 205, 2930, 80};
inline constexpr TiledCost kDoubleBuffered{6360, 156, 2930, 105}, kTensorCore{6360, 16, 2930, 1100};

}  // namespace tiled::h200
