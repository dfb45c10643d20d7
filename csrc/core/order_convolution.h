#pragma once
// Convolutions as three float16 products, specified to the bit: docs/guide/convolutions.md.
//
// A convolution is the product of the matrix of windows by that of filters, in the order of
// order_fp16x3.h, except for the scale of windows. K counts taps row by row, and the channels of
// each, padded with zeros to whole steps (core/convolution.h). All windows of an image have the
// scale of the image, in all chunks: its largest magnitude decides. A chunk of a window is coarse
// if the image is. It has the small numbers of all channels of the pixels that it touches, but at
// most kChunk.

#include <cstdint>

#include "core/order_chunked.h"
#include "core/order_fp16x3.h"

namespace tiled {

// The scale of an image, from the bits of its largest magnitude, the bits less 1 of its least one
// except 0, and the bitwise or of all.
struct ImageScale {
  uint32_t largest;
  bool is_coarse, is_wide;

  HOST_DEVICE ImageScale(uint32_t largest, uint32_t least_less_1, uint32_t bits)
      : largest(largest) {
    const float least = float_of(least_less_1 + 1);
    is_coarse = fp16x3::is_coarse(bits, least * scale());
    is_wide = largest != 0 && fp16x3::is_small(least, least * scale());
  }
  HOST_DEVICE float scale() const { return fp16x3::scale(largest); }
  HOST_DEVICE float inverse_scale(uint64_t small_numbers) const {
    const uint64_t most = kChunk;
    const auto counted = static_cast<uint32_t>(small_numbers < most ? small_numbers : most);
    return fp16x3::inverse_scale(largest, counted, is_coarse);
  }
};

// The spans of chunks of a gradient of filters.
struct Spans {
  static constexpr int kMost = 64;
  int64_t chunks;

  HOST_DEVICE explicit Spans(int64_t k) : chunks(ceil_div(k, kChunk)) {}
  HOST_DEVICE int count() const { return static_cast<int>(chunks < kMost ? chunks : kMost); }
  // The first chunk of a span, or the end of the last one.
  HOST_DEVICE int64_t first_chunk(int64_t span) const { return span * chunks / count(); }
  // The first span that begins at a chunk, or behind it.
  HOST_DEVICE int64_t span_from(int64_t chunk) const { return ceil_div(chunk * count(), chunks); }
  // Whether a span ends before a chunk.
  bool end_before(int64_t chunk) const { return first_chunk(span_from(chunk)) == chunk; }
};

}  // namespace tiled
