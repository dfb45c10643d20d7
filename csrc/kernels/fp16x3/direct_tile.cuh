#pragma once
// fp16x3_direct: its tile and its shared memory.
//
// Operand rows are A's rows and B's columns. In shared memory an operand row is its hi parts, then
// its lo parts, along K; K is padded with zeros to a multiple of 16. A column of a complex B is
// loaded and split once, as a row of numbers' parts x, y, ..., and stored as two operand rows.

#include <cstdint>

#include "core/complex.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"

namespace tiled::cuda::fp16x3_direct {

template <int kIndex, bool kComplex_>
struct Tile {
  static constexpr bool kComplex = kComplex_;  // B is stored as in_place_b() describes it
  static constexpr h200::Fp16x3DirectTile kTile = h200::kFp16x3DirectTiles[kIndex];
  static constexpr int kM = kTile.m, kN = kTile.n, kOperandRows = kM + kN;
  static constexpr int kWarpM = kTile.warp_m, kWarpN = kTile.warp_n;
  static constexpr int kWarps = kTile.warps(), kThreads = kWarps * 32;
  static constexpr int kBlocksPerSm = kTile.blocks;  // by registers
};

struct OperandParams {
  const float* data;
  int64_t row_stride;  // in elements, as is k_stride
  int k_stride;
  SignsOfB signs;  // of a complex operand
};

template <class Tile>
struct Smem {
  float inverse_scale[Tile::kOperandRows];
  Range parts[2][Tile::kThreads];  // of what a thread loaded of a row, for A and for B
  uint8_t rows[];                  // (kOperandRows, fp16x3_direct_pitch(k)); then C's tile
};

HOST_DEVICE inline int padded_k(int k) { return (k + 15) / 16 * 16; }

// Stores parts of an operand row, one or more pairs along K: in that row, or in the two of a column
// of a complex B, which are `pitch` apart. The odd one is first if `swapped`.
template <bool kComplex>
struct PairStore {
  __device__ PairStore(const SignsOfB&, int, bool) {}
  template <typename Pairs>
  __device__ void operator()(uint8_t* to, const Pairs& pairs) const {
    *reinterpret_cast<Pairs*>(to) = pairs;
  }
};
template <>
struct PairStore<true> {
  ComplexColumns columns;
  int offset[2];

  __device__ PairStore(const SignsOfB& signs, int pitch, bool swapped)
      : columns(signs, swapped), offset{swapped ? pitch : 0, swapped ? 0 : pitch} {}
  template <typename Pairs>
  __device__ void operator()(uint8_t* to, const Pairs& pairs) const {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<Pairs*>(to + offset[i]) = columns.pair(pairs, i);
    }
  }
};

}  // namespace tiled::cuda::fp16x3_direct
