#pragma once
// A chunk of a tile in the order of order_fp16x3.h, for the kernels of the host.

#include <cstdint>

#include "core/element.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "cpu/group.h"
#include "cpu/presplit.h"
#include "cpu/tensor_core.h"

namespace tiled::cpu {

inline constexpr int kFp16x3Tile = 32;  // rows and columns of C

// A row of A or a column of B in one chunk, and its scale there.
struct OperandRow {
  static constexpr int kDepth = 16;  // products of a tensor-core sum

  const float* data = nullptr;  // the chunk's beginning
  int64_t stride = 0;           // along K
  PresplitRow presplit = {};    // the whole row, if it was split beforehand
  int64_t begin = 0;            // of the chunk, in K
  Group group = {};

  float at(int64_t k) const { return data[k * stride]; }

  void set_scale(int64_t chunk) {
    if (presplit.presplit.hi_lo != nullptr) {
      group.inverse_scale = presplit.inverse_scale(begin / kChunk);
    } else {
      group = measure(chunk, [this](int64_t k) { return at(k); });
    }
  }

  fp16x3::Split split(int64_t k, bool exists) const {
    if (presplit.presplit.hi_lo != nullptr) return presplit.at(begin + k);
    return fp16x3::split((exists ? at(k) : 0.0f) * group.scale);
  }

  // Splits kDepth elements, with zeros from `k_left` on, to column n of `hi` and `lo`.
  template <int kN>
  void split(int64_t from, int64_t k_left, Factors<kN>& hi, Factors<kN>& lo, int n) const {
    for (int k = 0; k < kDepth; ++k) {
      const fp16x3::Split parts = split(from + k, k < k_left);
      hi.set(k, n, parts.hi);
      lo.set(k, n, parts.lo);
    }
  }
};

using Fp16x3Sums = float[kFp16x3Tile][kFp16x3Tile];

// Adds a chunk's sums to `total`, of the promoted hi products, and to `low`, of the two small ones;
// both are 0 before.
void multiply_fp16x3_chunk(const OperandRow (&rows)[kFp16x3Tile], int row_count,
                           const OperandRow (&cols)[kFp16x3Tile], int col_count, int64_t chunk,
                           int promotion, Fp16x3Sums& total, Fp16x3Sums& low);

}  // namespace tiled::cpu
