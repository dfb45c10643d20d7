#include "cpu/presplit.h"

#include <algorithm>
#include <cstring>

#include "core/order_chunked.h"
#include "cpu/group.h"

namespace tiled::cpu {
namespace {

constexpr int kRows = 8;  // that are split at a time; padded_rows() is a multiple of it

// The address of an element's hi part; its lo part is `plane_bytes` after it.
struct PartAddress {
  uint8_t* hi;
  int plane_bytes;
};

PartAddress part_address(const Presplit& presplit, int64_t row, int64_t k) {
  const int64_t tile = row / Presplit::kRows;
  uint8_t* step = presplit.hi_lo + presplit.step_offset(0, tile, k / Presplit::kK);
  const int in_tile = static_cast<int>(row % Presplit::kRows);
  const int in_step = static_cast<int>(k % Presplit::kK);
  const int in_unit = in_step % 8 * static_cast<int>(sizeof(Half));
  return {step + Presplit::swizzle(in_tile, in_step / 8) + in_unit,
          Presplit::plane_bytes(presplit.tile_rows(tile))};
}

float* inverse_scale_address(const Presplit& presplit, int64_t row, int64_t chunk) {
  return presplit.inverse_scales + chunk * presplit.padded_rows() + row;
}

// Splits kRows rows of a chunk. The padding is zero before it is scaled, as on the GPU.
void split_rows(const Matrix& source, const Presplit& presplit, int64_t first_row, int64_t chunk) {
  const int64_t begin = chunk * kChunk;
  const int64_t depth = std::min<int64_t>(presplit.k - begin, kChunk);
  const int64_t padded_depth = std::min<int64_t>(presplit.padded_k() - begin, kChunk);
  const int64_t rows = std::min<int64_t>(presplit.rows - first_row, kRows);
  const float* data = static_cast<const float*>(source.data) + first_row * source.row_stride +
                      begin * source.col_stride;
  float x[kRows][kChunk] = {};
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t i = 0; i < rows; ++i)
      x[i][k] = data[i * source.row_stride + k * source.col_stride];
  }
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t row = first_row + i;
    const Group group = measure(depth, [&](int64_t k) { return x[i][k]; });
    for (int64_t k = 0; k < padded_depth; ++k) {
      const fp16x3::Split parts = fp16x3::split(x[i][k] * group.scale);
      const auto [hi, plane_bytes] = part_address(presplit, row, begin + k);
      std::memcpy(hi, &parts.hi, sizeof(Half));
      std::memcpy(hi + plane_bytes, &parts.lo, sizeof(Half));
    }
    *inverse_scale_address(presplit, row, chunk) = group.inverse_scale;
  }
}

}  // namespace

void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context) {
  const int64_t chunks = ceil_div(presplit.k, kChunk);
  context.parallel_for(presplit.padded_rows() / kRows * chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      split_rows(source, presplit, i / chunks * kRows, i % chunks);
  });
}

fp16x3::Split PresplitRow::at(int64_t k) const {
  const auto [hi, plane_bytes] = part_address(presplit, row, k);
  fp16x3::Split parts;
  std::memcpy(&parts.hi, hi, sizeof(Half));
  std::memcpy(&parts.lo, hi + plane_bytes, sizeof(Half));
  return parts;
}

float PresplitRow::inverse_scale(int64_t chunk) const {
  return *inverse_scale_address(presplit, row, chunk);
}

}  // namespace tiled::cpu
