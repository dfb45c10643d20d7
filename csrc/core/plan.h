#pragma once
// How a rung that has several tiles goes about a problem: simt.h and mma.h plan, the rungs do so,
// and the ladder's cost model knows how long it takes.

#include <cstdint>

namespace tiled {

struct Plan {
  int tile;        // its index
  int m, n;        // of C, that it has
  int64_t ranges;  // of K
  int blocks;      // that share a multiprocessor: at most the tile's
  double clocks;   // of the busiest multiprocessor
};

}  // namespace tiled
