#pragma once
// How many parts of the keys a block of a kernel of few queries takes. Blocks that share keys store
// the sums of each part, which a second kernel joins.

#include <algorithm>
#include <cstdint>

#include "core/element.h"

namespace tiled::cuda::attention {

// In the time of a part: what a block takes before its parts, a part whose sums are stored, and the
// second kernel.
struct SharingCosts {
  double start, stored, join;
};

// blocks: without sharing; at_once: those that run together; most_waves: of blocks, that are tried
inline int64_t choose_parts_per_block(int64_t parts, int64_t blocks, int64_t at_once,
                                      int most_waves, const SharingCosts& costs) {
  const auto cost_of = [&](int64_t all_blocks, double each) {
    return static_cast<double>(ceil_div(all_blocks, at_once)) * (each + costs.start);
  };
  int64_t best = parts;
  double least = cost_of(blocks, static_cast<double>(parts));
  for (int64_t waves = 1; waves <= most_waves; ++waves) {
    const int64_t shares = std::clamp<int64_t>(waves * at_once / blocks, 1, parts);
    const int64_t each = ceil_div(parts, shares);
    const double stored = static_cast<double>(each) * costs.stored;
    const double cost = cost_of(blocks * ceil_div(parts, each), stored) + costs.join;
    if (cost < least) best = each, least = cost;
  }
  return best;
}

}  // namespace tiled::cuda::attention
