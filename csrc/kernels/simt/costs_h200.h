#pragma once
// The tiles that the kernels of simt are instantiated for, and the costs that were measured on an
// H200. All parameters of a tile are in its row of a table. common/cost_model.h has the units.

#include "kernels/common/cost_model.h"

namespace tiled::h200 {

// From the launch until the first block multiplies, and from the last block's end to the kernel's.
inline constexpr double kLaunchSimtCpAsync = 6800, kLaunchSimtSmall = 5470;
inline constexpr double kLaunchSimtGemv = 3710;
inline constexpr double kLaunchSimtTma = 8000, kLaunchSimtSkinny = 8500;
inline constexpr RewriteCost kTransposeFloat32{0.6, 204};
inline constexpr double kTransposeLaunch = 3000;

// A block, or a team of simt_small, computes m x n elements of C, and a thread thread_m x thread_n
// of them. A warp has lanes_m lanes along M. A stage has k of K.
struct SimtCpAsyncTile {
  int m, n, thread_m, thread_n, lanes_m, k, stages, producer_threads;
  int blocks;    // that share an SM, at most
  double alone;  // cycles for a step of K while a block has an SM to itself
  double rate;   // of all blocks that share an SM
};
inline constexpr SimtCpAsyncTile kSimtCpAsyncTiles[] = {
    {128, 64, 8, 8, 8, 16, 4, 64, 2, 104, 97}, {64, 64, 8, 4, 8, 32, 3, 64, 2, 61, 86},
    {64, 32, 4, 4, 8, 32, 4, 64, 3, 36, 77},   {32, 32, 4, 4, 8, 32, 4, 64, 4, 29, 45},
    {16, 128, 4, 4, 4, 32, 4, 64, 2, 39, 69},  {32, 128, 4, 8, 8, 32, 3, 64, 2, 61, 84},
};

// A stage is unrolled by `unroll` of K. Registers are of a consumer and of a producer thread
// if setmaxnreg moves them, or else 0.
struct SimtTmaTile {
  int m, n, thread_m, thread_n, k, unroll, stages, consumer_registers, producer_registers;
  int blocks;
  double alone, rate;
};
inline constexpr SimtTmaTile kSimtTmaTiles[] = {
    {256, 128, 8, 16, 16, 8, 4, 232, 40, 1, 304, 108},
    {128, 64, 8, 8, 16, 16, 4, 0, 0, 2, 92, 103},
    {64, 64, 8, 4, 32, 32, 3, 0, 0, 3, 47, 96},
    {64, 32, 4, 4, 32, 32, 4, 0, 0, 3, 25, 86},
};

// A block has `teams`; `blocks` counts the teams that share an SM. `overhead`: cycles of a tile
// beside its products.
struct SimtSmallTile {
  int m, n, thread_m, thread_n, lanes_m, k, stages, teams;
  int blocks;
  double alone, rate, overhead;
};
inline constexpr SimtSmallTile kSimtSmallTiles[] = {
    {16, 16, 4, 4, 4, 8, 4, 8, 56, 107, 39, 40},
    {32, 32, 4, 8, 8, 16, 2, 4, 20, 84, 85, 203},
    {64, 64, 8, 8, 8, 16, 3, 1, 8, 142, 85, 590},
};

// A block has `cols` rows of the short operand; `blocks` share an SM's registers.
struct SimtGemvTile {
  int cols, blocks;
};
inline constexpr SimtGemvTile kSimtGemvTiles[] = {{1, 12}, {2, 12}, {4, 10}, {8, 8}};
inline constexpr int kSimtGemvComplexTiles = 3;  // the first ones, in complex numbers
struct SimtGemv {
  // A block that shares its SM takes kBlock, for each k kCopies if the long operand is K-major and
  // kProducts for each row of the short one, and kStridedStores for each float of a column that it
  // stores with a sector for each row.
  static constexpr double kBlock = 333, kCopies = 20.5, kProducts = 4.3, kStridedStores = 232;
  static constexpr double kComplexProducts = 8;
  // A block that is alone waits so long for each k: for copies of a K-major operand, or of others.
  static constexpr double kAloneCopies = 78, kAloneLoads = 136;
  static constexpr double kComplexAlone = 55;  // in any layout
};

// Bandwidths of DRAM for operands that are copied by vectors and by elements, and for C that is
// stored by vectors and by elements.
struct SimtDram {
  double vectors, elements, c_vectors, c_elements;
};
inline constexpr SimtDram kSimtDram{16.5, 16.5, 16.5, 16.5};          // all copies reach it
inline constexpr SimtDram kSimtDramOfThreads{16.5, 9.5, 16.5, 16.5};  // threads copy both operands
inline constexpr SimtDram kSimtDramOfTeams{8.7, 6.4, 13.6, 8.9};      // simt_small
inline constexpr SimtDram kSimtDramOf16x16{4, 6.4, 13.6, 8.9};      // simt_small, 64 bytes of a row
inline constexpr SimtDram kSimtDramOfRows{11.7, 11.7, 11.7, 11.7};  // simt_gemv

// m rows of the short operand by n columns of the long one.
struct SimtSkinnyTile {
  int m, n, thread_m, thread_n;
  int blocks;
  double alone, rate;
};
inline constexpr int kSimtSkinnyCols = 128;
inline constexpr SimtSkinnyTile kSimtSkinnyTiles[] = {
    {2, kSimtSkinnyCols, 2, 1, 2, 18, 32},
    {4, kSimtSkinnyCols, 4, 1, 2, 18, 64},
    {8, kSimtSkinnyCols, 4, 2, 2, 24, 73},
    {16, kSimtSkinnyCols, 4, 4, 2, 58, 54},
};
// The same if the long operand is a complex B: a thread has whole numbers of it.
inline constexpr SimtSkinnyTile kSimtSkinnyComplexTiles[] = {
    {2, kSimtSkinnyCols, 2, 2, 2, 18, 32},
    {4, kSimtSkinnyCols, 4, 2, 2, 18, 30},
    {8, kSimtSkinnyCols, 4, 2, 2, 24, 37},
    {16, kSimtSkinnyCols, 4, 4, 2, 50, 54},
};

// simt_cluster: rows of the short operand, and of the long one.
struct SimtClusterTile {
  int rows, cols;
};
inline constexpr SimtClusterTile kSimtClusterTiles[] = {{4, 16}, {8, 8}, {8, 32}};
struct SimtCluster {
  static constexpr double kLaunch = 4400;
  // A block that is alone on an SM: for each chunk, for each k, at least or by the warps that read
  // shared memory, and for each copy of a thread.
  static constexpr double kAlone = 680, kChain = 6, kWarpReads = 4, kCopyAlone = 54;
  // What a block takes of an SM that several share: for each chunk, and each copy of a thread.
  static constexpr double kShared = 1080, kCopyShared = 104;
};

struct Simt {
  // Cycles of a scalar copy of an element, in whole tiles and in those at the edge of C.
  static constexpr double kScalarCopy = 1.0 / 32, kScalarCopyAtEdge = 1.0 / 12;
  static constexpr double kReduceLaunch = 3000;  // the split-K reduction
  static constexpr double kReduceElement = 0.2;  // to store and read an element's sum of a chunk
  static constexpr double kNextTile = 12000;     // cp_async: from one wave of blocks to the next
  static constexpr double kNextTilePersistent = 4000, kNextTileSplitK = 3000;
  static constexpr double kSmallScalarCopies = 0.057;  // simt_small: of an element, as kScalarCopy
  static constexpr double kSkinnyReduce = 4000, kSkinnyNextTile = 6000;
  // simt_cp_async of a complex B in place: factors for the instructions that set signs, and of the
  // largest tile.
  static constexpr double kComplexBSigned = 1.05, kComplexBLargeTile = 1.15;
};

}  // namespace tiled::h200
