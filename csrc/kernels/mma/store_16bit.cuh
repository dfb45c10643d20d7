#pragma once
// Stores a warp's accumulators as 16-bit floats to rows of unit stride, through shared memory
// (stmatrix).

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "kernels/mma/tile.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::mma_tma {

// A warp's 16 rows by the columns that it stores at a time, padded against bank conflicts.
constexpr int kStagedCols16Bit = 64;
using RowStaging16Bit = uint16_t[16][kStagedCols16Bit + 8];

// Packs a thread's elements of 16 columns, from accumulator column `col` on, for stmatrix_x4():
// for each eight columns an 8 x 8 matrix of rows 0 to 7, then one of rows 8 to 15.
template <class Tile>
__device__ void pack_16bit(int col, const float (&acc)[Tile::kElements], uint32_t (&packed)[4]) {
  UNROLL
  for (int i = 0; i < 4; ++i) {
    packed[i] = ptx::pack_x2<std::is_same_v<typename Tile::T, BFloat16>>(acc[col / 2 + i * 2],
                                                                         acc[col / 2 + i * 2 + 1]);
  }
}

// Stores a warp's 16 rows of a tile, from (row, col) on, by eight elements of a row at a time if
// kVectorizedX8, or else one by one.
template <class Tile, bool kVectorizedX8>
__device__ void store_16bit(const Problem& p, typename Tile::T* c, int64_t row, int64_t col,
                            RowStaging16Bit& staging, const float (&acc)[Tile::kElements]) {
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  c += row * p.c.row_stride + col;
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStagedCols16Bit) {
    const int begin = column_in_tile<Tile::kN, Tile::kNarrowBox>(first, col);
    const int width = min(kStagedCols16Bit, Tile::kN - first), inside = min(width, cols - begin);
    UNROLL
    for (int right = 0; right < width; right += 16) {
      uint32_t packed[4];
      pack_16bit<Tile>(first + right, acc, packed);
      ptx::stmatrix_x4(&staging[lane % 16][right + lane / 16 * 8], packed);
    }
    __syncwarp();
    if constexpr (kVectorizedX8) {
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8, right = lane % 8 * 8;
        if (down < rows && right < inside) {
          __stcg(reinterpret_cast<uint4*>(c + down * p.c.row_stride + begin + right),
                 *reinterpret_cast<const uint4*>(&staging[down][right]));
        }
      }
    } else {
      // Several rows are read before any is stored, which hides the latency of the reads. The reads
      // are volatile, or ptxas would move each one down to its store.
      constexpr int kAtOnce = 8;
      auto* to = reinterpret_cast<uint16_t*>(c + begin + lane);
      const bool first_inside = lane < inside, second_inside = 32 + lane < inside;
      UNROLL
      for (int i = 0; i < 16; i += kAtOnce) {
        uint16_t first_of[kAtOnce], second_of[kAtOnce];
        UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const volatile uint16_t* from = &staging[i + j][lane];
          first_of[j] = from[0], second_of[j] = from[32];
        }
        UNROLL
        for (int j = 0; j < kAtOnce; ++j, to += p.c.row_stride) {
          if (i + j < rows && first_inside) to[0] = first_of[j];
          if (i + j < rows && second_inside) to[32] = second_of[j];
        }
      }
    }
    __syncwarp();
  }
}

}  // namespace tiled::cuda::mma_tma
