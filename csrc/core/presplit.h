#pragma once
// A float32 operand split into hi and lo fp16 parts, as the fp16x3 kernels read it. Its rows are
// A's rows or B's columns.
//
// Rows come in tiles of kRows; the last tile may be shorter, by multiples of 8. A tile is a
// sequence of steps of kK along K; a step holds the hi plane, then the lo plane, each (rows, kK) in
// the order in which wgmma reads shared memory with 64-byte swizzle, so that a step is loaded by
// one bulk copy. K is padded to kK and rows to 8 with zeros.
//
// Beside them, inverse_scales is (chunks, padded rows): fp16x3::inverse_scale of every group.

#include <cstdint>

#include "core/host_device.h"
#include "core/order_chunked.h"

namespace tiled {

struct Presplit {
  static constexpr int kRows = 128, kK = 32;

  uint8_t* hi_lo = nullptr;
  float* inverse_scales = nullptr;
  int64_t rows = 0, k = 0;  // of one matrix; the matrices of a batch follow one another

  bool operator==(const Presplit&) const = default;

  HOST_DEVICE int64_t padded_rows() const { return ceil_div(rows, 8) * 8; }
  HOST_DEVICE int64_t padded_k() const { return ceil_div(k, kK) * kK; }
  HOST_DEVICE int64_t matrix_bytes() const { return padded_rows() * padded_k() * 4; }
  HOST_DEVICE int64_t matrix_groups() const { return padded_rows() * ceil_div(k, kChunk); }

  // The rows of a tile, and the bytes of one plane of one of its steps.
  HOST_DEVICE int tile_rows(int64_t tile) const {
    const int64_t left = padded_rows() - tile * kRows;
    return static_cast<int>(left < kRows ? left : kRows);
  }
  HOST_DEVICE static constexpr int plane_bytes(int tile_rows) { return tile_rows * kK * 2; }

  // The offset of a tile's step, in bytes.
  HOST_DEVICE int64_t step_offset(int64_t matrix, int64_t tile, int64_t step) const {
    return matrix * matrix_bytes() + tile * kRows * padded_k() * 4 +
           step * 2 * plane_bytes(tile_rows(tile));
  }
  // The offset in a plane, in bytes, of elements k8 * 8 .. k8 * 8 + 7 of a step's row: rows have 64
  // bytes, in four 16-byte units that are permuted by pairs of rows (64-byte swizzle).
  HOST_DEVICE static constexpr int swizzle(int row, int k8) {
    return row * kK * 2 + (k8 ^ (row / 2 % 4)) * 16;
  }
};

}  // namespace tiled
