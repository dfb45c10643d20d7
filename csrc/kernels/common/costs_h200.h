#pragma once
// The costs that were measured on an H200, and the tiles that the kernels are instantiated for. All
// parameters of a tile are in its row of a table. benchmarks/fit_costs.py compares the model with
// results.
//
// Units: cycles of one SM; rates in FMA per cycle and SM; bandwidths in bytes per cycle and SM.

namespace tiled::h200 {

// --- launches ------------------------------------------------------------------------------------

// From the launch until the first block multiplies, and from the last block's end to the kernel's.
inline constexpr double kLaunchNaive = 6000;
inline constexpr double kLaunchSimtCpAsync = 6800, kLaunchSimtSmall = 5470;
inline constexpr double kLaunchSimtGemv = 3710;
inline constexpr double kLaunchSimtTma = 8000, kLaunchSimtSkinny = 8500;
inline constexpr double kLaunchFp16x3Wgmma = 10000, kLaunchFp16x3Small = 2760;
inline constexpr double kLaunchFp16x3Skinny = 6600, kLaunchFp16x3Fused = 17000;
inline constexpr double kLaunchMmaSync = 6000, kLaunchMmaUnaligned = 2360, kLaunchMmaTma = 3500;
inline constexpr double kLaunchTf32 = 10000;

// A kernel that rewrites operands first: cycles per element of a row, and at least per row.
struct RewriteCost {
  double element, row;
};
inline constexpr RewriteCost kTransposeFloat32{0.6, 204};
inline constexpr double kTransposeLaunch = 3000;
// The pass that writes B' of a complex B: its launch, and the bandwidth of DRAM for each SM.
inline constexpr double kPackLaunch = 3000, kPackDram = 13;
inline constexpr RewriteCost kSplitFp16x3{0.57, 193.8};
inline constexpr RewriteCost kScaleTf32{0.4, 136};
inline constexpr RewriteCost kAlign16Bit{0.2, 64 * 0.2};  // its launch is in kLaunchMma*

// --- basics --------------------------------------------------------------------------------------

inline constexpr double kRateNaive = 13;

// launch: of the kernel, and to begin and end a block. alone: cycles for one k while an SM has one
// block. With more blocks each takes `block` and its FMAs at `rate`.
struct TiledCost {
  double launch, alone, block, rate;
};
inline constexpr TiledCost kTiled16{3900, 74, 640, 15.8}, kTiled32{3640, 83, 3130, 18.1};
inline constexpr TiledCost kTiled64{6360, 143, 2930, 50.5};

// --- f64 -----------------------------------------------------------------------------------------

// A warp computes warp_m x warp_n elements of C. Registers are those of a consumer and of a
// producer thread where setmaxnreg moves them, or else 0. A block alone on its SM takes `alone`
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
struct F64Mma {
  static constexpr double kLaunch = 5700;
  // Bytes that an SM reads in a cycle, of operands that are MN-major and K-major.
  static constexpr double kDramMnMajor = 27.6, kDramKMajor = 16.3;
  static constexpr double kReduceLaunch = 430, kReduceElement = 1.9;
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

// --- simt ----------------------------------------------------------------------------------------

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

// A stage is unrolled by `unroll` of K. Registers are those of a consumer and of a producer thread
// where setmaxnreg moves them, or else 0.
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
struct SimtGemv {
  // A block that shares its SM takes kBlock, for each k kCopies if the long operand is K-major and
  // kProducts for each row of the short one, and kStridedStores for each column that it stores with
  // a sector for each row.
  static constexpr double kBlock = 333, kCopies = 20.5, kProducts = 4.3, kStridedStores = 232;
  // A block that is alone waits so long for each k: for copies of a K-major operand, or for loads.
  static constexpr double kAloneCopies = 78, kAloneLoads = 136;
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
// The same where the long operand is a complex B, of which a thread has whole numbers.
inline constexpr SimtSkinnyTile kSimtSkinnyComplexTiles[] = {
    {2, kSimtSkinnyCols, 2, 2, 2, 18, 32},
    {4, kSimtSkinnyCols, 4, 2, 2, 18, 30},
    {8, kSimtSkinnyCols, 4, 2, 2, 24, 37},
    {16, kSimtSkinnyCols, 4, 4, 2, 50, 54},
};

// rows of the short operand by 32 columns of the long one: a group, whose chunks warps share.
struct SimtThinTile {
  int rows;
  double alone;   // cycles for one k while a warp waits for itself alone
  double shared;  // and for each warp of an SM while all are busy, beside its copies
};
inline constexpr SimtThinTile kSimtThinTiles[] = {
    {1, 16, 2.3}, {2, 40, 3.8}, {4, 50, 5.7}, {8, 50, 7.3}};

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
  // simt_thin: a block, its launch included; a warp's copies for one k, by vectors along K, by
  // elements along K, by elements along columns.
  static constexpr double kThinBlock = 6000;
  static constexpr double kThinVectors = 2.4, kThinKMajor = 2.8, kThinMnMajor = 3.7;
  // simt_cp_async of a complex B in place: factors for the instructions that set signs, and of the
  // largest tile.
  static constexpr double kComplexBSigned = 1.05, kComplexBLargeTile = 1.15;
};

// --- fp16x3 --------------------------------------------------------------------------------------

// fp16x3_cluster: rows of A (16 or 32) and columns of B.
struct Fp16x3ClusterTile {
  int m, n;
};
inline constexpr Fp16x3ClusterTile kFp16x3ClusterTiles[] = {{16, 8}, {16, 16}, {16, 32},
                                                            {32, 8}, {32, 16}, {32, 32}};

// fp16x3_small: the largest tile has few warps; it serves many tiles, which hide each other's
// latency. A warp multiplies 16 rows by warp_cols columns.
struct Fp16x3SmallTile {
  int m, n, warp_cols, warps;
};
inline constexpr Fp16x3SmallTile kFp16x3SmallTiles[] = {
    {64, 64, 16, 8}, {64, 32, 16, 12}, {32, 32, 8, 12}, {32, 16, 8, 12}};

// fp16x3_direct: a warp multiplies warp_m x warp_n elements of a tile; `blocks` share an SM.
struct Fp16x3DirectTile {
  int m, n, warp_m, warp_n, blocks;
  constexpr int warps() const { return m / warp_m * (n / warp_n); }
};
inline constexpr Fp16x3DirectTile kFp16x3DirectTiles[] = {
    {64, 64, 32, 16, 2}, {32, 32, 16, 16, 4}, {16, 16, 16, 8, 10}};
inline constexpr int kFp16x3DirectMostTiles = 8;  // of a block
inline constexpr int kFp16x3DirectMostK = 511;    // whose parts are summed 16 of K at a time

struct Fp16x3 {
  static constexpr int kWgmmaTile = 128;  // rows and columns of C
  static constexpr double kWgmmaWave = 7000, kWgmmaRate = 500;
  static constexpr double kWgmmaStoreX1 = 2500;   // where C does not take pairs of a row
  static constexpr double kReduceLaunch = 10000;  // the split-K reduction
  static constexpr double kReduceChunk = 65;      // a tile's sums of a chunk, by all SMs together
  // fp16x3_cluster: a wave, the first one's launch included, and for one k: the chain, and each
  // operand row by how it is copied.
  // fp16x3_cluster. A block that is alone on an SM: for each chunk, for each k, and for each row
  // and k, by the way of copying; less where it has more threads.
  static constexpr double kClusterLaunch = 8200, kClusterAlone = 410, kClusterK = 2.4;
  static constexpr double kClusterBulk = 0.245, kClusterKMajor = 0.7, kClusterMnMajor = 0.66;
  static constexpr double kClusterMoreThreads = 0.64;
  // What a block takes of an SM that several share: for each chunk, a part of its rows, each warp
  // tile and k.
  static constexpr double kClusterShared = 3930, kClusterCopy = 0.5, kClusterTile = 3.4;
  // fp16x3_small: the chain, for one k; a tile of an SM, and for one k each of its operand rows
  // and each of its products.
  static constexpr double kSmallK = 5.96, kSmallTile = 2620, kSmallProduct = 0.0189;
  static constexpr double kSmallVectors = 0.038, kSmallElements = 0.138;
  // fp16x3_direct. A block that is alone on an SM: once, for each tile and each of its elements,
  // for each k of a tile, and for each operand row and k that a warp loads.
  static constexpr double kDirectBlock = 2900, kDirectTile = 4240, kDirectElement = 0.745;
  static constexpr double kDirectK = 3.5;
  static constexpr double kDirectKMajorAlone = 1.6, kDirectStridedAlone = 3.6;
  // What a block takes of a busy SM: for each operand row and k, for each 16 x 16 elements and k.
  static constexpr double kDirectKMajor = 0.265, kDirectStrided = 0.343, kDirectWarpTile = 1.365;
  static constexpr double kDirectDram = 9;  // bytes of operands and C per cycle and SM
  // fp16x3_skinny: a wave, and for each k by the way that the long operand is copied; more where
  // the short one has more than 16 rows. A panel of the short operand, and each of its rows for one
  // k.
  static constexpr double kSkinnyWave = 8300, kSkinnyVectors = 1.08, kSkinnyElements = 4.97;
  static constexpr double kSkinnyTwoPanels = 2.03;
  static constexpr double kSkinnyPanel = 9500, kSkinnyPanelRow = 0.23;
  static constexpr double kFusedRate = 160;
  // Factors of the cycles of kernels that read a complex B in place.
  static constexpr double kDirectComplexB = 0.85, kSkinnyComplexB = 0.9;
  // A tile of fp16x3_thin takes kThinTile, for each k kThinKMajor or kThinMnMajor by the long
  // operand, and kThinOthers for each k of each other tile of its SM. Each k of a row of the short
  // operand takes kThinShort or kThinShortMnMajor to load. The kernel that adds chunks takes
  // kThinReduce, and kThinReduceSum of an SM for each sum of a chunk.
  static constexpr double kThinLaunch = 7500, kThinTile = 3450;
  static constexpr double kThinKMajor = 1.53, kThinMnMajor = 3.74;
  static constexpr double kThinShort = 0.56, kThinShortMnMajor = 1.1, kThinOthers = 6.12;
  static constexpr double kThinReduce = 3780, kThinReduceSum = 7.25;
};

// --- mma -----------------------------------------------------------------------------------------

// A block computes m x n elements of C. The blocks of a cluster, one above the other, share B.
// overhead: cycles to begin and end a tile. rate, or rate_mn_major where B is loaded MN-major: of
// the 2048 FMA per cycle that the tensor cores have. It is 0 where there is no such kernel, since a
// box has at least 32 elements along its contiguous side.
//
// Narrow tiles are for a small C: more blocks, each with fewer bytes to load. Clusters of smaller
// tiles are for rows not aligned to cache lines, whose boxes take more than one request a row: two
// blocks share them. L2 merges requests for whole cache lines without a cluster.
enum class Rows { kAny, kNotAlignedToLines };
struct MmaTmaTile {
  int m, n, cluster, stages;
  int tf32_stages;  // 0 where tf32_tma has no such tile
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
// and rate_mn_major hold where the longer operand is MN-major. A warpgroup multiplies
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
  static constexpr double kSplitLine = 1.1;  // extra requests where a box's row spans two lines
  static constexpr double kSyncScalar = 2;   // mma_sync: slowdown of operands that are not aligned
  // mma_unaligned: factors of the model's cycles for a single row or column, and for an MN-major
  // operand; cycles to wait for the other operand's copy.
  static constexpr double kUnalignedSingle = 0.7, kUnalignedMnMajor = 1.04, kUnalignedWait = 200;
};

}  // namespace tiled::h200
