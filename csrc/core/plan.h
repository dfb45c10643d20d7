#pragma once
// How a kernel would solve a problem, and how long that takes by its cost model. Plans are made by
// kernels/*/plan.h, compared by select/ladder.h, and carried out by the kernel's launcher.

#include <array>
#include <cstdint>

namespace tiled {

// Shared memory that a block may use on Hopper, and that the blocks of an SM share, in bytes.
inline constexpr int kMaxSharedMemory = 227 << 10, kSharedMemoryOfSm = 228 << 10;

struct Plan {
  int tile = 0;             // index in the kernel's table of tiles, if it has one
  int m = 0, n = 0;         // rows and columns of C in a tile
  int64_t k_splits = 1;     // parts of K, of whole chunks, that different blocks sum
  int blocks_per_sm = 1;    // that share an SM; no more than the tile allows
  int64_t blocks = 0;       // work tiles, K splits included
  double cycles = 0;        // of the busiest SM, with the launch and copies of operands
  int tiles_per_block = 1;  // that a block computes one after another
};

// The bytes of each allocation that a launch of a plan makes, if there is memory for all of them.
// The launcher takes its sizes from the functions that return these, so they cannot differ.
using WorkspaceBytes = std::array<int64_t, 2>;

}  // namespace tiled
