#pragma once
// The tiles that the kernels of fp16x3 are instantiated for, and the costs that were measured on an
// H200. All parameters of a tile are in its row of a table. common/cost_model.h has the units.

#include "kernels/common/cost_model.h"

namespace tiled::h200 {

// From the launch until the first block multiplies, and from the last block's end to the kernel's.
inline constexpr double kLaunchFp16x3Wgmma = 10000, kLaunchFp16x3Small = 2540;
inline constexpr double kLaunchFp16x3Skinny = 5200, kLaunchFp16x3Fused = 22700;
inline constexpr RewriteCost kSplitFp16x3{0.57, 193.8};

// fp16x3_cluster: rows of A and columns of B. 24 columns share 256 among eleven clusters of seven,
// of which fifteen run at once. The last tiles fit beside a 16-bit operand, or if K is short.
struct Fp16x3ClusterTile {
  int m, n;
};
inline constexpr Fp16x3ClusterTile kFp16x3ClusterTiles[] = {{16, 8},  {16, 16}, {16, 24}, {16, 32},
                                                            {32, 8},  {32, 16}, {32, 32}, {64, 8},
                                                            {64, 16}, {16, 64}};

// The SMs of 132 that run clusters of one to eight blocks, one on each SM.
inline constexpr int kFp16x3ClusterSms[] = {132, 132, 117, 120, 110, 102, 105, 120};

// fp16x3_small: the largest tile has few warps; it serves many tiles, which hide each other's
// latency. A warp multiplies 16 rows by warp_cols columns.
struct Fp16x3SmallTile {
  int m, n, warp_cols, warps;
};
inline constexpr Fp16x3SmallTile kFp16x3SmallTiles[] = {
    {64, 64, 16, 8}, {64, 32, 16, 12}, {32, 32, 8, 12}, {32, 16, 8, 12}};

// fp16x3_direct: a warp multiplies warp_m x warp_n elements of a tile; `blocks` share an SM. A tile
// has more warps if shared memory has room for `most_room` blocks or fewer on an SM.
struct Fp16x3DirectTile {
  int m, n, warp_m, warp_n, blocks, least_room, most_room;
  constexpr int warps() const { return m / warp_m * (n / warp_n); }
};
inline constexpr Fp16x3DirectTile kFp16x3DirectTiles[] = {{64, 64, 32, 16, 2, 2, 99},
                                                          {64, 64, 16, 16, 1, 1, 1},
                                                          {32, 32, 16, 16, 4, 3, 99},
                                                          {32, 32, 16, 8, 2, 1, 2},
                                                          {16, 16, 16, 8, 10, 1, 99}};
inline constexpr int kFp16x3DirectMostTiles = 8;  // of a block
inline constexpr int kFp16x3DirectMostK = 511;    // sums of parts have 16 of K

// fp16x3_rows: the longest K, the warpgroups of a block, by registers, the columns that one
// multiplies at once, and the cycles of a busy SM for each k of 64 columns of a row tile. A
// warpgroup takes kFp16x3RowsOfTile rows at a time.
struct Fp16x3RowsTile {
  int k, warpgroups, cols;
  double busy_piece;
};
inline constexpr Fp16x3RowsTile kFp16x3RowsTiles[] = {{128, 3, 32, 14}, {256, 2, 64, 9.5}};
inline constexpr int kFp16x3RowsOfTile = 64;
inline constexpr int kFp16x3RowsMostK = 256;

struct Fp16x3 {
  static constexpr int kWgmmaTile = 128;  // rows and columns of C
  static constexpr double kWgmmaWave = 7000, kWgmmaRate = 500;
  static constexpr double kWgmmaStoreX1 = 2500;   // if C does not take pairs of a row
  static constexpr double kReduceLaunch = 10000;  // the split-K reduction
  static constexpr double kReduceChunk = 65;      // a tile's sums of a chunk, by all SMs together
  // fp16x3_cluster. A block that is alone on an SM: for each chunk, for each k, and for each row
  // and k, by the way of copying; less if it has more threads.
  static constexpr double kClusterLaunch = 4860, kClusterAlone = 4200, kClusterK = 3.28;
  static constexpr double kClusterBulk = 0.34, kClusterElements = 0.61;
  static constexpr double kClusterMoreThreads = 0.63;
  // The same for each k beside a 16-bit operand, and for its rows.
  static constexpr double kClusterNarrowK = 1.37, kClusterNarrow = 0.18;
  // What a block takes of an SM that several share: for each chunk, a part of its rows, each warp
  // tile and k.
  static constexpr double kClusterShared = 11000, kClusterCopy = 0.59, kClusterTile = 1.5;
  // fp16x3_small: the chain, for one k; a tile of an SM, and for one k each of its operand rows
  // and each of its products.
  static constexpr double kSmallK = 5.48, kSmallTile = 2410, kSmallProduct = 0.0174;
  static constexpr double kSmallVectors = 0.035, kSmallElements = 0.127;
  // fp16x3_direct. A block that is alone on an SM: once, for each tile and each of its elements,
  // for each k of a tile, and for each operand row and k that a warp loads.
  static constexpr double kDirectBlock = 2900, kDirectTile = 4240, kDirectElement = 0.745;
  static constexpr double kDirectK = 3.5;
  static constexpr double kDirectKMajorAlone = 1.6, kDirectStridedAlone = 3.6;
  // What a block takes of a busy SM: for each operand row and k, for each 16 x 16 elements and k.
  static constexpr double kDirectKMajor = 0.265, kDirectStrided = 0.343, kDirectWarpTile = 1.365;
  static constexpr double kDirectDram = 9;  // bytes of operands and C per cycle and SM
  // fp16x3_rows: the launches of both kernels; a block, with the parts that it loads, for each k; a
  // row tile of a warpgroup, for each k, and for each k of 64 columns; and each k of a busy SM.
  static constexpr double kRowsLaunch = 8000, kRowsBlock = 2500, kRowsBlockK = 8;
  static constexpr double kRowsTile = 1800, kRowsK = 7, kRowsPiece = 400, kRowsPieceK = 7.5;
  static constexpr double kRowsBusyK = 29;
  static constexpr double kRowsDram = 13;  // bytes of operands and C per cycle and SM
  // fp16x3_skinny: a panel of the short operand, and each of its rows for one k; a tile that waits
  // alone, and each k of it; each k of a tile of a busy SM, with 16 or 32 rows, and more if the
  // long operand is copied by elements.
  static constexpr double kSkinnyPanel = 14600, kSkinnyPanelRow = 0.24;
  static constexpr double kSkinnyTile = 6700, kSkinnyK = 2.8;
  static constexpr double kSkinnyBusy16 = 8.3, kSkinnyBusy32 = 11.1, kSkinnyElements = 2.15;
  // fp16x3_fused: a wave of blocks with 64 or 128 rows, and each k of it; a sum of a chunk, of an
  // SM.
  static constexpr double kFusedWave64 = 11800, kFusedWave128 = 42900;
  static constexpr double kFusedK64 = 35, kFusedK128 = 23.3, kFusedSum = 0.81;
  // Factors of the cycles of kernels that read a complex B in place.
  static constexpr double kDirectComplexB = 0.85, kSkinnyComplexB = 0.9;
  // A tile of fp16x3_thin takes kThinTile, for each k kThinKMajor or kThinMnMajor by the long
  // operand, and kThinOthers for each k of each other tile of its SM. Each k of a row of the short
  // operand takes kThinShort or kThinShortMnMajor to load. The kernel that adds chunks takes
  // kThinReduce, and kThinReduceSum of an SM for each sum of a chunk.
  static constexpr double kThinLaunch = 7500, kThinTile = 3450;
  static constexpr double kThinKMajor = 1.53, kThinMnMajor = 3.74, kThinComplexMnMajor = 2.6;
  static constexpr double kThinShort = 0.56, kThinShortMnMajor = 1.1, kThinOthers = 6.12;
  static constexpr double kThinReduce = 3780, kThinReduceSum = 7.25;
};

}  // namespace tiled::h200
