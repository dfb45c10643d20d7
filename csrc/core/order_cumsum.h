#pragma once
// The running sums of a row, specified to the bit: y_i is the sum of x_0 to x_i, and depends on
// those alone, not on the row's length. A chunk of kChunk elements has segments of kSegment, and a
// segment has groups of kGroup adjacent elements.
//
//   p_i   the sum of the elements of i's group up to i, ascending
//   t_g   the sum of group g and the groups before it in the segment: first the sum of the group,
//         then t_g = t_{g - w} + t_g for all g >= w at once, with w = 1, 2, 4, ...
//   c     the sums of the segments before i's in its chunk, added to +0, ascending. A chunk's sum
//         is that of all its segments.
//   a     the sums of the chunks before i's in its superchunk of kChunk chunks, added to +0,
//         ascending. A superchunk's sum is that of all its chunks.
//   f     the sums of the superchunks before i's, added to +0, ascending
//   y_i = ((f + a) + (c + t_{g - 1})) + p_i, with g the group of i, and +0 for t_{-1}
//
// Elements of 16 bits are widened to float32, and the results are rounded. The running sums of a
// reversed row begin with its last element.

#include "core/element.h"
#include "core/rows.h"

namespace tiled {

namespace cumsum {
inline constexpr int kChunk = 1024, kSegment = 128, kGroup = 4;
}

// The running sums of rows. `out` is contiguous.
struct CumSumProblem {
  bool is_reversed = false;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0;
  Rows x;
  void* out = nullptr;
};

}  // namespace tiled
