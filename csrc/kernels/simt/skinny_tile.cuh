#pragma once
// simt_skinny's tile, shared memory, parameters and work tiles.
//
// The kernel sees a skinny product from the side of its longer operand, whichever of A and B that
// is. `row` counts rows of the short operand, C's short side; `col` counts rows of the long
// operand, C's long side. Where the long operand is A, that is C transposed.

#include "core/complex.h"
#include "core/order_chunked.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/simt/plan.h"

namespace tiled::cuda::simt_skinny {

// kKMajor_: the long operand is K-major, or else MN-major. kComplex_: it is a complex B as it lies,
// whose numbers stand for two columns and two k (core/complex.h). A stage has their parts, which is
// half of the elements, so there are more stages.
template <int kIndex, bool kKMajor_, bool kComplex_>
struct Tile {
  static constexpr bool kKMajor = kKMajor_, kComplex = kComplex_;
  static constexpr h200::SimtSkinnyTile kTile =
      kComplex ? h200::kSimtSkinnyComplexTiles[kIndex] : h200::kSimtSkinnyTiles[kIndex];
  static constexpr int kRows = kTile.m, kCols = h200::kSimtSkinnyCols;
  static constexpr int kK = 32;  // of a step
  static constexpr int kStages = kComplex ? 8 : 6, kBlocksPerSm = kTile.blocks;
  static constexpr int kThreadRows = kTile.thread_m, kThreadCols = kTile.thread_n;
  static constexpr int kParts = kComplex ? 2 : 1;  // of an element of the long operand
  static constexpr int kBoxCols = kCols / (kKMajor ? kParts : 1);
  static constexpr int kBoxK = kK / (kKMajor ? 1 : kParts);
  static constexpr int kLaneRows = kRows / kThreadRows, kLaneCols = 32 / kLaneRows;  // of a warp
  static constexpr int kConsumers = kCols / (kLaneCols * kThreadCols) * 32;          // threads
  static constexpr int kProducers = 32;
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kPitch = kK + 4;  // rows of the short operand lie in different banks

  static_assert(kThreadCols % kParts == 0, "a thread has both columns of a number");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

template <class Tile>
struct Smem {
  alignas(1024) float long_smem[Tile::kStages][Tile::kBoxCols * Tile::kBoxK];  // as TMA loads a box
  alignas(16) float short_smem[Tile::kStages][Tile::kRows][Tile::kPitch];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// The kernel sees C with the long operand's side as its columns.
struct Params : LongAndShort {
  Problem p;
  CUtensorMap long_map;
  bool short_vectorized;
  FastDivmod row_tiles, col_tiles, chunks;
  int64_t work_tiles;
  SignsOfB signs_of_b;  // of a complex B
  float* partial_sums;  // (matrices, chunks, short_count, partial_pitch()), where there are several
                        // chunks

  HOST_DEVICE int64_t partial_pitch() const {
    return int64_t{col_tiles.by} * h200::kSimtSkinnyCols;
  }
};

// A (kRows, kCols) tile of C, summed over one chunk of K. Row tiles are counted first, so that
// blocks that run together read the same part of the long operand.
template <class Tile>
struct WorkTile {
  int64_t matrix;
  unsigned chunk;
  int row, col;  // of the first element
  int length;    // of the chunk

  __device__ WorkTile(const Params& params, int64_t index) {
    const int64_t col_tile = params.row_tiles.divide(index);  // over all chunks and matrices
    const int64_t chunk_index = params.col_tiles.divide(col_tile);
    matrix = params.chunks.divide(chunk_index);
    row = static_cast<int>(index - col_tile * params.row_tiles.by) * Tile::kRows;
    col = static_cast<int>(col_tile - chunk_index * params.col_tiles.by) * Tile::kCols;
    chunk = static_cast<unsigned>(chunk_index - matrix * params.chunks.by);
    length = static_cast<int>(min(params.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}));
  }
};

}  // namespace tiled::cuda::simt_skinny
