#pragma once
// The plan of a convolution: its tile, and how many blocks share the chunks of one.

#include <algorithm>
#include <cstdint>

#include "core/convolution.h"
#include "core/order_chunked.h"

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

}  // namespace tiled
