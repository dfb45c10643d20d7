#pragma once
// The shape of mma_tma's kernels, at compile time.

#include <cstdint>

#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/mma/plan.h"

namespace tiled::cuda::mma_tma {

// A block's tile of C, (kM, kN), loaded kK of K at a time. A consumer warpgroup multiplies kRows
// rows: 64, or fewer, which leaves a part of each wgmma unused.
template <class T_, int kM_, int kN_, int kCluster_, int kStages_, bool kAMnMajor_, bool kBMnMajor_,
          int kRows_ = 64>
struct TileOf {
  using T = T_;  // Half or BFloat16
  static constexpr int kM = kM_, kN = kN_, kRows = kRows_;
  static constexpr int kK = 64;  // of a stage: 128 bytes, which is what the swizzle covers
  static constexpr int kStages = kStages_;
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr int kCluster = kCluster_;  // blocks
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = kM / kRows;  // warpgroups
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kThreads = kWarpgroup + kConsumerThreads;
  static constexpr int kElements = kN / 2;       // of C, a consumer thread
  static constexpr int kBoxBytes = 64 * kK * 2;  // of 64 rows or columns in a stage
  static constexpr int kABytes = kM * kK * 2;
  // Ping-pong: the second warpgroup multiplies the last steps of a chunk after the first has issued
  // all of its own, and keeps the tensor cores busy while the first runs its epilogue. The second
  // then holds all stages but one, in which the first goes on to the next tile.
  static constexpr int kSoloSteps = kConsumers == 2 ? kStages - 1 : 0;
  // Where B is MN-major: columns of the narrower box, if any, and columns that are loaded.
  static constexpr int kNarrowBox = kBMnMajor ? mma_narrow_box(kN) : 0;
  static constexpr int kBCols = kBMnMajor ? (kN - kNarrowBox + 63) / 64 * 64 + kNarrowBox : kN;
  // The tile that the split-K reduction is instantiated for: one for all layouts whose accumulators
  // are in the same order.
  using ReduceTile = TileOf<T, kM, kN, kCluster, kStages, false, (kNarrowBox > 0)>;

  static_assert(kM % kRows == 0 && kN % 16 == 0 && mma_order::kChunk % kK == 0);
  static_assert(kCluster <= 2, "each block loads half of B for both");
  static_assert(kNarrowBox == 0 || (kNarrowBox == 32 && (kN == 96 || kN == 32)),
                "column_in_tile()");
};

// The tile of that index in the cost model's table.
template <class T, int kIndex, int kStages, bool kAMnMajor, bool kBMnMajor>
using Tile = TileOf<T, h200::kMmaTmaTiles[kIndex].m, h200::kMmaTmaTiles[kIndex].n,
                    h200::kMmaTmaTiles[kIndex].cluster, kStages, kAMnMajor, kBMnMajor>;

// The column in the tile of accumulators `i` to i + 31 of a row of kN, for a tile whose first
// column is `first`. Boxes begin at multiples of their own width, so that none begins in the middle
// of a cache line: a tile of 96 columns that begins at an odd multiple of 32 has its narrow box
// first. The accumulators of the narrow box are the last in either case.
template <int kN, int kNarrowBox>
__device__ int column_in_tile(int i, int64_t first) {
  if (kNarrowBox == 0 || kNarrowBox == kN || first % 64 == 0) return i;
  return i < 64 ? i + 32 : i - 64;
}

// The K of a stage that is loaded and multiplied, where `left` of K are left: whole wgmmas. Beyond
// the end of K, TMA fills boxes with zeros.
__host__ __device__ constexpr int stage_depth(int64_t left) {
  return left >= 64 ? 64 : static_cast<int>(ceil_div(left, mma_order::kDepth) * mma_order::kDepth);
}

}  // namespace tiled::cuda::mma_tma
