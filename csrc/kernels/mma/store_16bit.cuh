#pragma once
// The fast path of mma_tma's epilogue, for 16-bit results in rows of unit stride: the epilogue is
// applied in registers, and stmatrix brings the results to shared memory.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/mma/tile.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::mma_tma {

// A warp's 16 rows by the columns that it stores at a time, padded against bank conflicts.
constexpr int kStagedCols16Bit = 64;
using RowStaging16Bit = uint16_t[16][kStagedCols16Bit + 8];

// Applies an epilogue that is more than bias and ReLU, and does not read C, to accumulators in
// place. The loop is not unrolled: it takes the first accumulators and moves the others down, so
// that each activation is compiled once.
template <class Tile>
__device__ void apply_in_registers(const tiled::Epilogue& epilogue, int64_t col,
                                   const float (&biases)[Tile::kN], float (&acc)[Tile::kElements]) {
  constexpr int kAtOnce = Tile::kElements < 16 ? Tile::kElements : 16;
  static_assert(Tile::kElements % kAtOnce == 0);
  NO_UNROLL
  for (int first = 0; first < Tile::kN; first += 2 * kAtOnce) {
    const float* bias = &biases[column_in_tile<Tile::kN, Tile::kNarrowBox>(first, col)];
    float x[kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const float own =
          epilogue.bias == nullptr ? 0 : bias[i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
      x[i] = combine(epilogue, acc[i], own, 0.0f);
    }
    activate_each(epilogue.activation, x);
    UNROLL
    for (int i = 0; i + kAtOnce < Tile::kElements; ++i) acc[i] = acc[i + kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) acc[Tile::kElements - kAtOnce + i] = x[i];
  }
}

// Packs a thread's elements of 16 columns, from accumulator column `col` on, for stmatrix_x4():
// matrices of eight rows by eight columns, the lower rows second. kBiasRelu: applies the bias,
// where there is one, and ReLU, where it is the activation; `biases` are those of the 16 columns.
template <class Tile, bool kBiasRelu>
__device__ void pack_16bit(const Problem& p, int col, const float (&acc)[Tile::kElements],
                           const float* biases, uint32_t (&packed)[4]) {
  const bool relu = p.epilogue.activation == Activation::kRelu;
  UNROLL
  for (int i = 0; i < 2; ++i, col += 8) {
    float2 bias{};
    if (kBiasRelu && p.epilogue.bias != nullptr) {
      bias = *reinterpret_cast<const float2*>(&biases[i * 8 + threadIdx.x % 4 * 2]);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      float x = acc[col / 2 + j * 2], y = acc[col / 2 + j * 2 + 1];
      if (kBiasRelu && p.epilogue.bias != nullptr) x += bias.x, y += bias.y;
      if (kBiasRelu && relu) x = activate(Activation::kRelu, x), y = activate(Activation::kRelu, y);
      packed[i * 2 + j] = ptx::pack_x2<std::is_same_v<typename Tile::T, BFloat16>>(x, y);
    }
  }
}

// Stores a warp's 16 rows of a tile, from (row, col) on: eight elements of a row at a time, or one.
template <class Tile, bool kBiasRelu, bool kVectorizedX8>
__device__ void store_16bit(const Problem& p, typename Tile::T* c, int64_t row, int64_t col,
                            const float (&acc)[Tile::kElements], RowStaging16Bit& staging,
                            const float (&biases)[Tile::kN]) {
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
      pack_16bit<Tile, kBiasRelu>(p, first + right, acc, &biases[begin + right], packed);
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
      // Several rows are read before any is stored, which hides the latency of the reads. They are
      // volatile, or ptxas would move each read down to its store.
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
