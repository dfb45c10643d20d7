#pragma once
// A chunk's sums as a thread holds them after wgmma (device/wgmma.cuh) or mma.sync.

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// Scaled back: from total and low, to total. Element i is of row i / 2 % 2 of two, and of column
// i / 4 * 2 + i % 2; undo_col are the columns' in pairs.
template <int kElements>
__device__ void finish_chunk(float (&total)[kElements], const float (&low)[kElements],
                             const float (&undo_row)[2], const float2 (&undo_col)[kElements / 4]) {
  // Rows whose scales are moderate, and nothing wide: chunk_sum() is then two multiplications, the
  // first of them exact.
  bool plain = true;
  UNROLL
  for (const float each : undo_row) plain &= each >= 0x1p-60f && each <= 0x1p60f;
  UNROLL
  for (const float2& two : undo_col) plain &= two.x > 0 && two.y > 0;
  if (plain) {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float scaled = fmaf(low[i], 0x1p-11f, total[i]);
      total[i] =
          scaled * undo_row[i / 2 % 2] * (i % 2 == 0 ? undo_col[i / 4].x : undo_col[i / 4].y);
    }
  } else {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      total[i] = fp16x3::chunk_sum(total[i], low[i], undo_row[i / 2 % 2],
                                   i % 2 == 0 ? undo_col[i / 4].x : undo_col[i / 4].y);
    }
  }
}

}  // namespace tiled::cuda
