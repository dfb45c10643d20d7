#pragma once
// The tiles of mma_tma.cuh's kernels, and what those are told of a problem.

#include <cstdint>

#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/plan.h"

namespace tiled::cuda::mma_tma {

// kAMnMajor: neighbours lie along A's rows, across K, or else along K; kBMnMajor likewise B's
// columns. kRows: of a warpgroup, 64 or less, which leaves some idle.
template <class T_, int kM_, int kN_, int kCluster_, int kStages_, bool kAMnMajor_, bool kBMnMajor_,
          int kRows_ = 64>
struct TileOf {
  using T = T_;
  static constexpr int kM = kM_, kN = kN_, kRows = kRows_;
  static constexpr int kK = 64;  // of a stage: a line of 128 bytes
  static constexpr int kStages = kStages_;
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr int kCluster = kCluster_;  // blocks
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = kM / kRows;                 // warpgroups
  static constexpr int kMultipliers = kConsumers * kWarpgroup;  // threads
  static constexpr int kThreads = kWarpgroup + kMultipliers;
  static constexpr int kElements = kN / 2;    // of C a thread
  static constexpr int kBlock = 64 * kK * 2;  // bytes of 64 rows in a stage
  static constexpr int kABytes = kM * kK * 2;
  // The last steps of a chunk, which the second warpgroup multiplies when the first has asked for
  // all of its own: alone it is as fast as both, and the first ends its sums meanwhile. Of the
  // stages that it has not released another is left, so that the first goes on.
  static constexpr int kAlone = kConsumers == 2 ? kStages - 1 : 0;
  // Columns of B of a narrower box, and how many are brought.
  static constexpr int kNarrow = kBMnMajor ? mma_narrow_box(kN) : 0;
  static constexpr int kBCols = kBMnMajor ? (kN - kNarrow + 63) / 64 * 64 + kNarrow : kN;
  // What the kernel that adds sums of chunks has to know, which is one for all layouts that have
  // their sums in the same order.
  using Added = TileOf<T, kM, kN, kCluster, kStages, false, (kNarrow > 0)>;

  static_assert(kM % kRows == 0 && kN % 16 == 0 && mma_order::kChunk % kK == 0);
  static_assert(kCluster <= 2, "each block copies half of B for both");
  static_assert(kNarrow == 0 || (kNarrow == 32 && (kN == 96 || kN == 32)), "in_tile()");
};

template <class T, int kIndex, int kStages, bool kAMnMajor, bool kBMnMajor>
using Tile = TileOf<T, h200::kMmaTmaTiles[kIndex].m, h200::kMmaTmaTiles[kIndex].n,
                    h200::kMmaTmaTiles[kIndex].cluster, kStages, kAMnMajor, kBMnMajor>;

// Boxes begin at multiples of their own width, so that no line of L2 is asked for twice: of a tile
// of 96 columns that begins in the middle of 64, the narrow one is the first. Its sums are the last
// all the same. Tells of 32 sums of a row of a tile's kN, from sum `i` on, where in the tile they
// lie that begins at column `first`.
template <int kN, int kNarrow>
__device__ int in_tile(int i, int64_t first) {
  if (kNarrow == 0 || kNarrow == kN || first % 64 == 0) return i;
  return i < 64 ? i + 32 : i - 64;
}

// The tiles of a cluster, one above the other, which share B. TileScheduler are eight clusters of
// tiles of 128 rows, or four of 64, of which more run at a time.
template <class Tile>
struct ClusterTile {
  static constexpr int kM = Tile::kCluster * Tile::kM, kN = Tile::kN;
  static constexpr int kRasterRows = Tile::kM / 16;
};

// The block in its cluster, and the tile that it has of its cluster's.
template <class Tile>
__device__ int rank() {
  return static_cast<int>(blockIdx.x % Tile::kCluster);
}

template <class Tile>
__device__ TileCoord locate_own(const TileScheduler& scheduler, int64_t index) {
  TileCoord at = locate<ClusterTile<Tile>>(scheduler, index);
  at.row += rank<Tile>() * Tile::kM;
  return at;
}

// Of an operand: boxes of a tile's part, and of what the last tile has of it; or, where its
// neighbours lie across K, of 64 of them, and narrow ones. Of a box that lies in the matrix in part
// the engine fills each line with zeros, which takes it longer than to bring it; so those of lines
// across K go on into what follows in memory, but for the last steps of K, which nothing may
// follow.
struct Maps {
  CUtensorMap whole, last;
  CUtensorMap whole_at_end, last_at_end;
};

// Of a stage: steps of K that are multiplied, and brought where lines lie across K, since those
// that are not there would be filled likewise.
__host__ __device__ constexpr int steps_of(int64_t left) {
  return left >= 64 ? 64 : static_cast<int>(ceil_div(left, mma_order::kDepth) * mma_order::kDepth);
}

// What a kernel reads first comes first, since each line of its parameters is waited for.
struct Work {
  TileScheduler scheduler;
  uint32_t ranges = 1;    // that K is cut in
  int64_t length = 0;     // of each, but for the last
  int64_t tiles = 0;      // of clusters
  FastDivmod by_tiles{};  // where K is cut
  Problem p;
  Maps a, b;
  // Where there are several chunks: of each block's threads, kInMemory; or, where K is cut, of each
  // chunk of each tile, all.
  float4* totals = nullptr;
};

// What a block works off at once: a tile's sums over a range of K.
struct Unit {
  TileCoord tile;
  int64_t index;  // of the cluster's tile
  int64_t begin, end;
};

template <class Tile>
__device__ Unit locate_unit(const Work& work, int64_t index) {
  uint32_t range = 0;
  if (work.ranges > 1) {
    range = work.by_tiles.divide(static_cast<uint32_t>(index));
    index -= range * work.tiles;
  }
  const int64_t begin = range * work.length;
  return {locate_own<Tile>(work.scheduler, index), index, begin,
          min(begin + work.length, work.p.k)};
}

}  // namespace tiled::cuda::mma_tma
