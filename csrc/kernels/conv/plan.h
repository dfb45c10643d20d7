#pragma once
// The plans of a convolution and of the gradient of its filters: tiles, and what blocks share.

#include <algorithm>
#include <cstdint>

#include "core/convolution.h"
#include "core/order_chunked.h"
#include "core/order_convolution.h"

namespace tiled {

struct ConvPlan {
  int filters;  // of a tile
  int64_t tiles, k_splits;
  double time;  // in units of a chunk of a tile

  ConvPlan(const Convolution& conv, int of_filters, int64_t sms) : filters(of_filters) {
    const int windows = 128 * 128 / filters;
    tiles = ceil_div(conv.windows(), windows) * ceil_div(conv.filters, filters);
    const int64_t chunks = ceil_div(conv.k(), kChunk);
    const double length = static_cast<double>(conv.k()) / static_cast<double>(kChunk);
    // The reduction reads and writes each sum once more.
    constexpr double kReduce = 0.25, kReduceEach = 0.03;
    k_splits = 1;
    time = static_cast<double>(ceil_div(tiles, sms)) * length;
    const double reduce =
        kReduce + kReduceEach * static_cast<double>(ceil_div(tiles * chunks, sms));
    for (int64_t splits = 2; splits <= chunks; ++splits) {
      // Blocks with fewer chunks, or with the last one, which may be short, fill the gaps.
      const int64_t longest = ceil_div(chunks, splits);
      const int64_t long_ones =
          tiles * (splits * longest == chunks ? splits - 1 : splits - (splits * longest - chunks));
      const double waves = static_cast<double>(ceil_div(std::max(long_ones, tiles), sms) * longest);
      const double work = static_cast<double>(tiles) * length / static_cast<double>(sms);
      if (std::max(waves, work) + reduce >= time) continue;
      k_splits = splits, time = std::max(waves, work) + reduce;
    }
  }
};

// Tiles of 64 filters, if they leave less of the last one empty.
inline ConvPlan conv_plan(const Convolution& conv, int64_t sms) {
  const ConvPlan wide(conv, 128, sms), narrow(conv, 64, sms);
  return narrow.time < wide.time ? narrow : wide;
}

// The gradient of filters: whole tiles for every block, and spans of the rest.
struct FilterGradientPlan {
  static constexpr int kGroup = 64;  // channels of a tap, which follow one another in a tile
  int filters;                       // of a tile
  int64_t row_tiles, tiles, whole_tiles, blocks, spans;
  bool spans_are_chunks;
  double time;  // in units of a tile

  FilterGradientPlan(const FilterGradient& gradient, int of_filters, int64_t sms)
      : filters(of_filters), blocks(sms) {
    const Convolution& conv = gradient.conv;
    const int64_t columns = int64_t{128} * 128 / filters / kGroup;
    row_tiles = ceil_div(conv.filters, int64_t{filters});
    tiles =
        row_tiles * ceil_div(conv.all_taps() * ceil_div(conv.channels, int64_t{kGroup}), columns);
    const Spans of_k(gradient.k());
    spans = of_k.count(), spans_are_chunks = spans == of_k.chunks;
    whole_tiles = tiles / sms * sms;
    time = static_cast<double>(whole_tiles / sms);
    if (whole_tiles == tiles) return;
    // The spans of what is left take their waves, and the reduction of their sums.
    constexpr double kReduce = 0.1;
    const int64_t waves = ceil_div((tiles - whole_tiles) * spans, sms);
    const double split = static_cast<double>(waves) / static_cast<double>(spans) + kReduce;
    if (split > 1) whole_tiles = tiles;
    time += std::min(split, 1.0);
  }
  int64_t split_tiles() const { return tiles - whole_tiles; }
};

// Tiles of 64 filters, if they leave less of the last one empty.
inline FilterGradientPlan filter_gradient_plan(const FilterGradient& gradient, int64_t sms) {
  const FilterGradientPlan wide(gradient, 128, sms), narrow(gradient, 64, sms);
  return narrow.time < wide.time ? narrow : wide;
}

}  // namespace tiled
