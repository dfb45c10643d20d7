#pragma once
namespace tiled::h200 {
// simt_cluster: rows of the short operand, and of the long one.
struct SimtClusterTile {
  int rows, cols;
};
inline constexpr SimtClusterTile kSimtClusterTiles[] = {{4, 16}, {8, 8}, {8, 32}};

// Cycles of a launch, and of a cluster's barrier. Of a chunk that a block sums alone on its SM:
// kAlone, kChain for each k, and kCopyAlone for each copy of a thread. Of an SM, for each block
// that shares it: kShared, kCopyShared for each copy of a thread, and kRead for 32 elements and
// each k.
struct SimtCluster {
  static constexpr double kLaunch = 3900, kCluster = 700;
  static constexpr double kAlone = 1170, kChain = 5, kCopyAlone = 73;
  static constexpr double kShared = 1170, kCopyShared = 113, kRead = 0.86;
};
}  // namespace tiled::h200
