#pragma once
// The tiles that the kernels of f64 are instantiated for, and the costs that were measured on an
// H200. All parameters of a tile are in its row of a table. common/cost_model.h has the units.

namespace tiled::h200 {

// A warp computes warp_m x warp_n elements of C. Registers are of a consumer and of a
// producer thread if setmaxnreg moves them, or else 0. A block alone on its SM takes `alone`
// cycles for one k, and blocks that share an SM have `rate` together. `overhead`: cycles of a tile
// beside its products.
struct F64MmaTile {
  int m, n, warp_m, warp_n, stages, producer_threads, consumer_registers, producer_registers;
  int blocks;  // that share an SM, at most
  double alone, rate, overhead;
};
inline constexpr F64MmaTile kF64MmaTiles[] = {
    {128, 128, 64, 32, 3, 128, 232, 40, 1, 87, 138, 10600},
    {128, 64, 32, 32, 4, 64, 0, 0, 1, 27, 128, 6500},
    {64, 64, 32, 32, 3, 64, 0, 0, 2, 41, 110, 5800},
    {32, 32, 16, 16, 4, 64, 0, 0, 4, 28.6, 69, 3100},
    {16, 64, 16, 16, 6, 64, 0, 0, 3, 27.8, 60, 2900},
    {64, 16, 16, 16, 6, 64, 0, 0, 3, 30.8, 57.6, 2800},
};
// f64_tma: a warp computes warp_m x warp_n elements of C, with fragments in `places` places. The
// stages are those beside totals in shared memory. If setmaxnreg moves registers, a consumer thread
// has consumer_registers, or else 0. The costs are as above.
struct F64TmaTile {
  int m, n, warp_m, warp_n, places, stages, consumer_registers;
  int blocks;
  double alone, rate, overhead;
};
inline constexpr F64TmaTile kF64TmaTiles[] = {
    {128, 128, 64, 32, 1, 3, 232, 1, 116, 141, 7200}, {128, 64, 32, 32, 2, 4, 0, 1, 65, 131, 4200},
    {64, 64, 32, 32, 2, 5, 0, 2, 44, 122, 2400},      {64, 32, 32, 16, 2, 4, 0, 3, 26, 104, 2200},
    {32, 32, 16, 16, 2, 5, 0, 4, 20.8, 96, 1200},
};
struct F64Mma {
  static constexpr double kLaunch = 5700;
  // Bytes that an SM reads in a cycle, of operands that are MN-major and K-major.
  static constexpr double kDramMnMajor = 27.6, kDramKMajor = 16.3;
};
struct F64Tma {
  static constexpr double kLaunch = 2850, kDram = 20;  // bytes
  // A tile takes these cycles more if K is short and its sums pass through shared memory.
  static constexpr double kStagedStore = 5000;
  static constexpr int64_t kShortK = 64;
};
// The reduction of chunk sums, and each of them.
struct F64Reduce {
  static constexpr double kLaunch = 430, kElement = 1.9;
};

// A warp of f64_direct computes m x n elements of C, with `ahead` steps of 8 of K in flight. It
// takes `alone` cycles for a step and `overhead` beside them, and an SM is busy for `shared` cycles
// of a warp's step and `tile` beside them.
struct F64DirectTile {
  int m, n, ahead;
  int blocks;  // of four warps that share an SM, at most
  double alone, overhead, shared, tile;
};
inline constexpr F64DirectTile kF64DirectTiles[] = {
    {8, 8, 22, 2, 146, 1260, 12.1, 560},  {8, 8, 10, 4, 225, 200, 10.1, 200},
    {16, 8, 8, 3, 275, 200, 19.6, 217},   {16, 16, 4, 4, 402, 290, 27.3, 200},
    {16, 32, 3, 3, 600, 2500, 56.6, 330},
};
struct F64Direct {
  static constexpr double kLaunch = 3300;
  static constexpr double kDram = 18.8, kL2 = 33.4;  // bytes
};

// A warp of f64_gemv alone takes `alone` cycles for a stage and kOverhead beside them; an SM is
// busy with it for `shared` and kWarp. Bytes that an SM reads in a cycle.
struct F64GemvCost {
  double alone, shared;
};
struct F64Gemv {
  static constexpr F64GemvCost kOneSum{441, 161}, kTwoSums{569, 182};  // of a lane
  static constexpr double kLaunch = 2960, kOverhead = 371, kWarp = 246;
  static constexpr double kDramMnMajor = 22.8, kDramKMajor = 21.5;
};

}  // namespace tiled::h200
