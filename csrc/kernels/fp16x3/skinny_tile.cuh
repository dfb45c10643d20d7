#pragma once
// fp16x3_skinny: its tile and its shared memory.

#include <cstdint>
#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.cuh"

namespace tiled::cuda::fp16x3_skinny {

// Each warpgroup of a block has work tiles and stages of its own.
struct Tile {
  static constexpr int kMaxRows = 32;  // of a panel
  static constexpr int kCols = 32;     // of a work tile
  static constexpr int kWarpgroups = 4, kWarpgroup = 128, kThreads = kWarpgroups * kWarpgroup;
};

// A stage of the long operand in shared memory, K-major or MN-major as in global memory. Vectors of
// 16 bytes are permuted so that no two lanes of load_fragment() share a bank. The elements of a
// complex operand are its numbers. Each stands for two columns and two of K (core/complex.h).
template <bool kKMajor_, bool kComplex_>
struct LongStage {
  static constexpr bool kKMajor = kKMajor_, kComplex = kComplex_;
  using Element = std::conditional_t<kComplex, float2, float>;
  static constexpr int kParts = kComplex ? 2 : 1, kVector = 4 / kParts;
  static constexpr int kCols = Tile::kCols / kParts, kK = kStageK / kParts;  // in elements
  static constexpr int kBytes = kCols * kK * int{sizeof(Element)};

  // The offset of an element, in bytes.
  static __device__ constexpr int offset(int col, int k) {
    if (kComplex) return (kKMajor ? col * kK + k : k * kCols + (col ^ k / 2 % 4 * 4)) * 8;
    return kKMajor ? (col * kStageK + (k / 4 ^ col % 2 * 4) * 4 + k % 4) * 4
                   : (k * kCols + (col / 4 ^ k / 4 % 4 * 2) * 4 + col % 4) * 4;
  }
};

// 16 rows by 16 of K of the short operand. It holds float32 elements, row by row, until it is split
// in place; then the hi parts, 16 bytes a lane as mma.sync takes them, and after them the lo parts.
struct ShortFragment {
  uint8_t bytes[1024];
};

// A panel has kRowTiles times 16 rows.
template <int kRowTiles>
struct Smem {
  static constexpr int kStages = kRowTiles == 1 ? 4 : 3;  // of real elements
  alignas(1024) ShortFragment short_operand[kChunk / 16][kRowTiles];
  uint8_t long_operand[Tile::kWarpgroups][kStages * LongStage<true, false>::kBytes];
  // Range of the panel's rows; `bits` has the last 16 bits of `largest`.
  uint32_t largest[Tile::kMaxRows], smallest[Tile::kMaxRows], bits[Tile::kMaxRows];
  float inverse_scale[Tile::kMaxRows];
};
static_assert(sizeof(Smem<1>) <= kMaxSharedMemory && sizeof(Smem<2>) <= kMaxSharedMemory);

}  // namespace tiled::cuda::fp16x3_skinny
