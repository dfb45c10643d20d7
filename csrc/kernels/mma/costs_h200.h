#pragma once
// The tiles that the kernels of mma are instantiated for, and the costs that were measured on an
// H200. All parameters of a tile are in its row of a table. common/cost_model.h has the units.

#include "kernels/common/cost_model.h"

namespace tiled::h200 {

// From the launch until the first block multiplies, and from the last block's end to the kernel's.
inline constexpr double kLaunchMmaSync = 6000, kLaunchMmaUnaligned = 2360, kLaunchMmaTma = 3500;
inline constexpr RewriteCost kAlign16Bit{0.2, 64 * 0.2};  // its launch is in kLaunchMma*

// A block computes m x n elements of C. The blocks of a cluster, one above the other, share B.
// overhead: cycles to begin and end a tile. rate, or rate_mn_major if B is loaded MN-major: of
// the 2048 FMA per cycle that the tensor cores have. It is 0 if there is no such kernel, since a
// box has at least 32 elements along its contiguous side.
//
// Narrow tiles are for a small C: more blocks, each with fewer bytes to load. Clusters of smaller
// tiles are for rows not aligned to cache lines: their boxes take more than one request a row. Two
// blocks share them. L2 merges requests for whole cache lines without a cluster.
enum class Rows { kAny, kNotAlignedToLines };
struct MmaTmaTile {
  int m, n, cluster, stages;
  int tf32_stages;  // 0 if tf32_tma has no such tile
  Rows rows;
  double overhead, rate, rate_mn_major;
};
inline constexpr MmaTmaTile kMmaTmaTiles[] = {
    {128, 256, 2, 4, 4, Rows::kAny, 3950, 1740, 1785},
    {128, 192, 1, 5, 5, Rows::kAny, 3160, 1680, 1760},
    {128, 160, 1, 5, 5, Rows::kAny, 2580, 1650, 1595},
    {128, 128, 1, 6, 6, Rows::kAny, 2170, 1640, 1695},
    {64, 192, 1, 6, 6, Rows::kAny, 1970, 1500, 1480},
    {64, 128, 1, 9, 8, Rows::kAny, 2160, 1650, 1710},
    {64, 96, 1, 9, 9, Rows::kAny, 1470, 1265, 1240},
    {64, 64, 1, 13, 13, Rows::kAny, 850, 1185, 1350},
    {64, 32, 1, 17, 0, Rows::kAny, 700, 1240, 960},
    {64, 16, 1, 20, 0, Rows::kAny, 680, 720, 0},
    {128, 192, 2, 5, 0, Rows::kNotAlignedToLines, 3700, 1730, 1920},
    {128, 128, 2, 6, 0, Rows::kNotAlignedToLines, 2400, 1380, 1660},
    {64, 128, 2, 9, 0, Rows::kNotAlignedToLines, 1730, 1340, 1680},
    {64, 96, 2, 9, 0, Rows::kNotAlignedToLines, 1320, 990, 1330},
    {64, 64, 2, 13, 0, Rows::kNotAlignedToLines, 890, 910, 1230},
};

// m rows of the longer operand, which threads copy, by n columns of the other one. stages_mn_major
// and rate_mn_major hold if the longer operand is MN-major. A warpgroup multiplies
// warpgroup_rows rows.
struct MmaUnalignedTile {
  int m, n, cluster, stages, stages_mn_major, warpgroup_rows;
  double overhead, rate, rate_mn_major;
};
inline constexpr MmaUnalignedTile kMmaUnalignedTiles[] = {
    {64, 128, 2, 8, 6, 64, 4920, 937, 900},     {128, 64, 1, 8, 6, 64, 4630, 716, 700},
    {64, 64, 1, 12, 9, 64, 3350, 553, 575},     {32, 64, 1, 16, 16, 32, 2600, 296, 351},
    {128, 128, 1, 6, 5, 64, 7610, 1060, 1195},  {64, 192, 2, 6, 5, 64, 6420, 1220, 1230},
    {128, 256, 2, 4, 4, 64, 11900, 1480, 1610}, {64, 256, 2, 5, 4, 64, 9500, 1525, 1515},
};

struct MmaSyncTile {
  int m, n, warp_m, warp_n, stages;
  double overhead, rate, rate_mn_major;
  static constexpr int cluster = 1;
};
inline constexpr MmaSyncTile kMmaSyncTiles[] = {
    {128, 128, 64, 32, 2, 4300, 484, 484},
    {64, 64, 32, 32, 4, 2600, 300, 300},
};

// mma_direct: fragments of 16 rows and of 16 columns, steps of K in flight, and blocks that share
// an SM: as many as there are registers for.
struct MmaDirectTile {
  int rows, cols, ahead, blocks;
};
inline constexpr MmaDirectTile kMmaDirectTiles[] = {
    {1, 1, 4, 4}, {1, 1, 8, 3}, {2, 2, 2, 3}, {4, 1, 2, 3}};
struct MmaDirect {
  static constexpr double kLaunch = 600;
  // A warp: for `ahead` steps of K that it waits for, and for each of its dependent products.
  static constexpr double kTrip = 2200, kProduct = 35;
  // What a tile takes of its SM: at least, to load 16 operand rows of a step, and to store 256
  // elements.
  static constexpr double kTile = 70, kLoadElements = 58, kLoadPairs = 24;
  static constexpr double kStoreX4 = 19, kStore = 200;
  static constexpr double kDram = 12;  // bandwidth
};

struct Mma {
  static constexpr double kDram = 15.6;       // bandwidth, shared by all SMs
  static constexpr double kDramBlock = 47.6;  // the part of it that one block can use
  static constexpr double kL2 = 60, kL2Block = 70;
  static constexpr double kL2Narrow = 34;        // for tiles under 64 columns, merged less by L2
  static constexpr double kReduceLaunch = 5700;  // the split-K reduction
  static constexpr double kSumsWritten = 200, kSumsRead = 37;  // bandwidths of partial sums
  // Slowdowns: boxes that overlap the next tile's; blocks that leave some pairs of SMs idle, or
  // begin a wave that is nearly empty (wave quantization).
  static constexpr double kPartialBox = 1.3, kUneven = 1.15;
  static constexpr double kSplitLine = 1.1;  // extra requests if a box's row spans two lines
  static constexpr double kSyncScalar = 2;   // mma_sync: slowdown of operands that are not aligned
  // mma_unaligned: factors of the model's cycles for a single row or column, and for an MN-major
  // operand; cycles to wait for the other operand's copy.
  static constexpr double kUnalignedSingle = 0.7, kUnalignedMnMajor = 1.04, kUnalignedWait = 200;
};

}  // namespace tiled::h200
