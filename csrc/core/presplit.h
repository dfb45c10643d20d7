#pragma once
// An operand split for fp16x3, as it lies in memory. "Rows" are A's rows or B's columns.
//
// Rows come in tiles of kRows; the last may be shorter, by multiples of 8. A tile is a sequence of
// steps of kK along K, a step its hi halves, then its lo halves, each (rows, kK) in the order that
// wgmma reads from shared memory with a swizzle of 64 bytes: so a step is copied there as it lies.
// K is padded to kK with zeros, rows to 8 with zeros.
//
// Beside the halves, undo is (chunks, padded rows): fp16x3::inverse_scale of every group.

#include <cstdint>

#include "core/host_device.h"
#include "core/order_chunked.h"

namespace tiled {

struct Presplit {
  static constexpr int kRows = 128, kK = 32;

  uint8_t* hi_lo = nullptr;
  float* inverse_scales = nullptr;
  int64_t rows = 0, k = 0;  // of the matrix
  // Matrices of a batch lie one after another.

  HOST_DEVICE int64_t padded_rows() const { return ceil_div(rows, 8) * 8; }
  HOST_DEVICE int64_t padded_k() const { return ceil_div(k, kK) * kK; }
  HOST_DEVICE int64_t matrix_bytes() const { return padded_rows() * padded_k() * 4; }
  HOST_DEVICE int64_t matrix_groups() const { return padded_rows() * ceil_div(k, kChunk); }

  // Rows in the tile, and bytes of one of its planes in a step.
  HOST_DEVICE int tile_rows(int64_t tile) const {
    const int64_t left = padded_rows() - tile * kRows;
    return static_cast<int>(left < kRows ? left : kRows);
  }
  HOST_DEVICE static constexpr int plane_bytes(int tile_rows) { return tile_rows * kK * 2; }

  // Where a step of a tile begins, in bytes.
  HOST_DEVICE int64_t step_offset(int64_t matrix, int64_t tile, int64_t step) const {
    return matrix * matrix_bytes() + tile * kRows * padded_k() * 4 +
           step * 2 * plane_bytes(tile_rows(tile));
  }
  // Where the 8 halves of k8 * 8 .. k8 * 8 + 7 of a step lie in a plane, in bytes: rows of 64
  // bytes, whose four pieces of 16 change places by row pairs.
  HOST_DEVICE static constexpr int swizzle(int row, int k8) {
    return row * kK * 2 + (k8 ^ (row / 2 % 4)) * 16;
  }
};

}  // namespace tiled
