#pragma once
// How mma_unaligned keeps A in shared memory: as it lies in global memory, misalignment included.
//
// A stored row is contiguous in memory: a row of A where A is K-major, a column of A (one k of all
// rows) where it is MN-major.
//
//   K-major    a stage is one cache line of each row of the tile. The stages of a row are adjacent:
//              a step of 64 k begins anywhere in one stage and ends in the next.
//
//                row r   | line of stage 0 | line of stage 1 | ... | line of the last stage | pad |
//                               [   a step's 64 k   ]
//
//   MN-major   a stage is 64 stored rows, each with as many elements as the tile has rows. A stored
//              row lies as far beyond a multiple of kAlignment bytes as in global memory.
//
//                k       | misalignment | row 0, row 1, ... |

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/tile.cuh"

namespace tiled::cuda::mma_unaligned {

constexpr int kCopyBytes = 16;  // one cp.async, aligned on both sides
constexpr int kWarpgroup = 128;
constexpr int kCacheLine = static_cast<int>(kCacheLineBytes);

// A stage of an MN-major A. If kAlignment_ is a cache line, copies of one cache line go to 128
// aligned bytes of shared memory and are one request to L2. Else they mostly span two such pieces
// and are two requests.
template <int kRows, int kAlignment_>
struct MnMajorStage {
  static constexpr int kAlignment = kAlignment_;
  static constexpr int kStoredRows = 64, kPitch = kRows * 2 + kAlignment;
  static constexpr int kBytes = kStoredRows * kPitch;
  // A stored row is copied in segments. A segment begins anywhere in its first 16 bytes, so it
  // needs one copy more than its length.
  static constexpr int kSegment = kRows < 64 ? kRows : 64, kSegments = kRows / kSegment;
  static constexpr int kCopies = kSegment * 2 / kCopyBytes + 1;
};

// True if MN-major stages keep the alignment to cache lines. In the largest tiles only three such
// stages would fit into shared memory, and tiles of 32 rows gain nothing by it.
template <class Tile>
constexpr bool kKeepsCacheLines = Tile::kM * Tile::kN <= 128 * 128 && Tile::kM > 32;

// A tile has kStagesKMajor stages where A is K-major, else kStagesMnMajor.
template <class T, int kIndex, int kStagesKMajor, int kStagesMnMajor, bool kAMnMajor,
          bool kBMnMajor, int kRows>
struct Tile
    : mma_tma::TileOf<T, h200::kMmaUnalignedTiles[kIndex].m, h200::kMmaUnalignedTiles[kIndex].n,
                      h200::kMmaUnalignedTiles[kIndex].cluster,
                      kAMnMajor ? kStagesMnMajor : kStagesKMajor, kAMnMajor, kBMnMajor, kRows> {
  using MnMajorStage =
      mma_unaligned::MnMajorStage<Tile::kM, kKeepsCacheLines<Tile> ? kCacheLine : kCopyBytes>;
  // Producer warpgroups are the block's first and, if there are two, its last. One alone copies a
  // step of K slower than the consumers multiply it, but the largest accumulators leave no
  // registers for a second.
  static constexpr int kProducerWarpgroups = Tile::kM * Tile::kN > 128 * 128 ? 1 : 2;
  static constexpr int kThreads = kProducerWarpgroups * kWarpgroup + Tile::kConsumerThreads;
  static constexpr int kRowBytes = Tile::kStages * kCacheLine;  // of all stages, where K-major
  static constexpr int kABytes =
      kAMnMajor ? MnMajorStage::kBytes
                : Tile::kM * (kCacheLine + ceil_div(kCopyBytes, Tile::kStages));
  using ReduceTile = mma_tma::TileOf<T, Tile::kM, Tile::kN, Tile::kCluster, Tile::kStages,
                                     kAMnMajor, false, kRows>;
};

// Bytes between the last multiple of kAlignment and the address.
template <int kAlignment>
__device__ int misalignment(const uint8_t* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kAlignment);
}
template <int kAlignment>
__device__ const uint8_t* align_down(const uint8_t* address) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(address) &
                                          ~uintptr_t{kAlignment - 1});
}

// The stored rows of A in global memory, from the tile's first row and k = `begin` on.
template <bool kAMnMajor>
struct StoredRows {
  const uint8_t* data;
  int64_t pitch;       // bytes
  const uint8_t* end;  // of the matrix
  __device__ StoredRows(const Problem& p, const TileCoord& tile, int64_t begin)
      : pitch((kAMnMajor ? p.a.col_stride : p.a.row_stride) * 2) {
    const auto* matrix = reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.a.data) +
                                                          batch_offset(p.batch, p.a, tile.batch));
    data = matrix + (kAMnMajor ? begin : tile.row) * pitch + (kAMnMajor ? tile.row : begin) * 2;
    end = matrix + ((kAMnMajor ? p.k : p.m) - 1) * pitch + (kAMnMajor ? p.m : p.k) * 2;
  }
};

// Avoids bank conflicts of the consumers' loads. It permutes the rows of the tile, so that other
// rows are multiplied together, and moves stored rows apart in shared memory. Where A is K-major, a
// warp loads four adjacent words of eight rows. Where it is MN-major, a warp loads one element of
// eight rows from each of four stored rows, which are two apart.
//
//   K-major               The eight rows are 2^log_stride apart. They are equally misaligned to 16
//                         bytes, but begin in eight different 16 bytes of a cache line.
//   MN-major, kAlignment  The pitch of stored rows puts the four 32 bytes apart, and the eight rows
//   of 16 bytes           are adjacent.
//   MN-major, kAlignment  The four stored rows are an odd multiple of 2^log_stride words apart. The
//   of a cache line       eight rows fill the words in between; a thread's two rows share a word.
template <class Tile>
struct BankLayout {
  static constexpr bool kPairsRows = Tile::kAMnMajor && kKeepsCacheLines<Tile>;
  int log_stride = 0;
  int padding = 0;         // bytes between the stages of two rows, where K-major
  bool staggered = false;  // MN-major: the four stored rows are moved 32 bytes apart

  __device__ explicit BankLayout(const Problem& p) {
    if (kPairsRows) {
      log_stride = min(__ffsll(p.a.col_stride) - 1, 3);
      staggered = p.a.col_stride % 16 == 0;
    } else if (!Tile::kAMnMajor) {
      const auto bytes = static_cast<int>(p.a.row_stride * 2 % 32);
      log_stride = min(5 - __ffs(bytes % 16 | 16), Tile::kM == 32 ? 2 : 3);
      if (bytes == 0) padding = kCopyBytes;
    }
  }
  // The offset in its pitch of an MN-major stored row, which is at `from` in global memory.
  __device__ int offset(const uint8_t* from, int stored_row) const {
    return staggered ? misalignment<kCopyBytes>(from) + stored_row / 2 % 4 * 32
                     : misalignment<Tile::MnMajorStage::kAlignment>(from);
  }
  // The row of the tile that is row `i` of the products.
  __device__ int row(int i) const {
    const int group = i / 8;
    if (kPairsRows) {  // within 64 rows
      const int warp = i / 16 % 4, lane = i % 8, low = lane & ((1 << log_stride) - 1);
      return i / 64 * 64 + group % 2 + (low << 1) + (warp << (1 + log_stride)) +
             (lane >> log_stride << (3 + log_stride));
    }
    return (group >> log_stride << (log_stride + 3)) + (group & ((1 << log_stride) - 1)) +
           (i % 8 << log_stride);
  }
};

}  // namespace tiled::cuda::mma_unaligned
