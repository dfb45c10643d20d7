#include "cpu/presplit.h"

#include <algorithm>
#include <cstring>

#include "core/order_chunked.h"
#include "cpu/group.h"

namespace tiled::cpu {
namespace {

constexpr int kRows = 8;  // split at a time: what padded_rows() is a multiple of

// Where a row's hi half of k lies; its lo half lies `plane` bytes further on.
struct Place {
  uint8_t* hi;
  int plane;
};

Place place(const Presplit& presplit, int64_t row, int64_t k) {
  const int64_t tile = row / Presplit::kRows;
  uint8_t* step = presplit.hi_lo + presplit.step_offset(0, tile, k / Presplit::kK);
  const int in_tile = static_cast<int>(row % Presplit::kRows);
  const int in_step = static_cast<int>(k % Presplit::kK);
  const int half = in_step % 8 * static_cast<int>(sizeof(Half));
  return {step + Presplit::swizzle(in_tile, in_step / 8) + half,
          Presplit::plane_bytes(presplit.tile_rows(tile))};
}

float* undo_scale_of(const Presplit& presplit, int64_t row, int64_t chunk) {
  return presplit.inverse_scales + chunk * presplit.padded_rows() + row;
}

// kRows rows of a chunk. What pads them is zero before it is scaled, as it is on the GPU.
void pack_rows(const Matrix& source, const Presplit& presplit, int64_t first_row, int64_t chunk) {
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
      const fp16x3::Split halves = fp16x3::split(x[i][k] * group.scale);
      const auto [hi, plane] = place(presplit, row, begin + k);
      std::memcpy(hi, &halves.hi, sizeof(Half));
      std::memcpy(hi + plane, &halves.lo, sizeof(Half));
    }
    *undo_scale_of(presplit, row, chunk) = group.inverse_scale;
  }
}

}  // namespace

void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context) {
  const int64_t chunks = ceil_div(presplit.k, kChunk);
  context.parallel_for(presplit.padded_rows() / kRows * chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pack_rows(source, presplit, i / chunks * kRows, i % chunks);
  });
}

fp16x3::Split PresplitRow::at(int64_t k) const {
  const auto [hi, plane] = place(presplit, row, k);
  fp16x3::Split halves;
  std::memcpy(&halves.hi, hi, sizeof(Half));
  std::memcpy(&halves.lo, hi + plane, sizeof(Half));
  return halves;
}

float PresplitRow::inverse_scale(int64_t chunk) const {
  return *undo_scale_of(presplit, row, chunk);
}

}  // namespace tiled::cpu
