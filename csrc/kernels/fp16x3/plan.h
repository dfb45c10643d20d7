#pragma once
// Into how many ranges of chunks fp16x3_wgmma cuts K, where it has too few tiles for all
// multiprocessors: all sums of chunks then go to memory, and another kernel adds them in order. The
// rung asks how many, and the ladder's cost model how long it takes.

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "core/order_chunked.h"

namespace tiled {

// On an H200, in clocks of a multiprocessor.
struct BulkCost {
  static constexpr int kTile = 128;      // rows and columns of C
  static constexpr double kWave = 7000;  // to begin and end a tile
  static constexpr double kRate = 500;   // multiply-adds a clock
  // Where K is cut: one kernel more, and a tile's sums of a chunk written and read by all.
  static constexpr double kStart = 10000, kSums = 65;
};

struct Ranges {
  int64_t count;
  double clocks;  // of the busiest multiprocessor
};

inline Ranges bulk_ranges(const Problem& p, int64_t sms) {
  using Cost = BulkCost;
  const int64_t tiles = count_tiles(p, Cost::kTile, Cost::kTile);
  const int64_t chunks = std::max<int64_t>(ceil_div(p.k, kChunk), 1);
  Ranges best{};
  for (int64_t count = 1; count != 0 && count <= sms; count = next_k_splits(chunks, count)) {
    const int64_t longest = std::min(ceil_div(chunks, count) * kChunk, p.k);
    const double each =
        Cost::kWave + Cost::kTile * Cost::kTile * static_cast<double>(longest) / Cost::kRate;
    const double sums =
        count == 1 ? 0 : Cost::kStart + Cost::kSums * static_cast<double>(tiles * chunks);
    const double clocks = static_cast<double>(ceil_div(tiles * count, sms)) * each + sums;
    if (count == 1 || clocks < best.clocks) best = {count, clocks};
  }
  return best;
}

}  // namespace tiled
