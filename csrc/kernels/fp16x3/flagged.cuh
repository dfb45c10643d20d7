#pragma once
// Elements whose sums are NaN: the list of those to be computed again.

#include <cstdint>

#include "kernels/fp16x3/parts.h"

namespace tiled::cuda {

// Appends the marked elements of a warp, in a piece that begins at lane 0's row and column; all of
// its threads call it.
inline __device__ void list_marked(const Marks& marks, int64_t batch, int64_t row, int64_t col,
                                   uint64_t marked) {
  if (!__any_sync(~0u, marked != 0)) return;
  const int lane = threadIdx.x % 32;
  int index = lane == 0 ? atomicAdd(marks.count, 1) : 0;
  index = __shfl_sync(~0u, index, 0);
  Marks::Piece& piece = marks.pieces[index];
  piece.elements[lane] = marked;
  if (lane == 0) piece.batch = batch, piece.row = row, piece.col = col;
}

}  // namespace tiled::cuda
