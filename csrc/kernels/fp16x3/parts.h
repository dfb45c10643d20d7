#pragma once
// What the fp16x3 rungs share around their products: splitting operands beforehand, and computing
// marked elements again.

#include <cstdint>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Lays out a workspace: its parts one after another.
struct WorkspaceLayout {
  int64_t bytes = 0;

  // Where the next part of so many bytes begins.
  int64_t reserve(int64_t size) {
    const int64_t at = bytes;
    bytes += ceil_div(size, 512) * 512;
    return at;
  }
};

// Elements whose sums are NaN. A piece is the part of C that one warp holds after wgmma: 16 rows,
// 128 columns; lane l's element i (device/wgmma.cuh) is bit i of elements[l].
struct Marks {
  struct Piece {
    int64_t batch, row, col;
    uint64_t elements[32];
  };
  static constexpr int kRows = 16, kCols = 128;
  struct Place {
    int row, col;  // in the piece
  };
  HOST_DEVICE static Place place(int lane, int element) {
    return {lane / 4 + element / 2 % 2 * 8, element / 4 * 8 + lane % 4 * 2 + element % 2};
  }

  int* count;     // pieces in the list
  Piece* pieces;  // room for all of C's

  // Of pieces that have so many columns at least.
  static int64_t capacity(const Problem& p, int cols = kCols) {
    return count_tiles(p, kRows, cols);
  }
};

// Computes what is marked in the order of sum.h, stores it, and counts it where the context asks.
void launch_recompute(const Problem& p, const Marks& marks, const Context& context);

// Counts what kernels compute again by themselves, where the context asks.
class RecomputedCounter {
 public:
  explicit RecomputedCounter(const Context& context);
  unsigned long long* on_gpu() const { return on_gpu_; }  // null where it does not ask
  void read() const;                                      // waits for the stream

 private:
  const Context& context_;
  unsigned long long* on_gpu_ = nullptr;
};

}  // namespace tiled::cuda
