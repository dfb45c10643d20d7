#pragma once
// Descales the sums of a chunk that a thread accumulated by wgmma or mma.sync.

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// Replaces `total` by fp16x3::chunk_sum() of total and low. Accumulator i belongs to row
// i / 2 % 2 of the thread's two, and to column i / 4 * 2 + i % 2 of the thread's, whose inverse
// scales come in pairs.
template <int kElements>
__device__ void descale_chunk(float (&total)[kElements], const float (&low)[kElements],
                              const float (&row_scales)[2],
                              const float2 (&col_scales)[kElements / 4], int promotion) {
  // Without wide groups, and if the rows' scales are moderate or 0, descale() is two
  // multiplications, the first of which is exact.
  bool plain = true;
  UNROLL
  for (const float each : row_scales) {
    plain &= each == 0 || (each >= 0x1p-60f && each <= 0x1p60f);
  }
  UNROLL
  for (const float2& x2 : col_scales) plain &= x2.x >= 0 && x2.y >= 0;
  if (plain) {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float scaled = fp16x3::scaled_sum(total[i], low[i], promotion);
      total[i] =
          scaled * row_scales[i / 2 % 2] * (i % 2 == 0 ? col_scales[i / 4].x : col_scales[i / 4].y);
    }
  } else {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      total[i] =
          fp16x3::chunk_sum(total[i], low[i], row_scales[i / 2 % 2],
                            i % 2 == 0 ? col_scales[i / 4].x : col_scales[i / 4].y, promotion);
    }
  }
}

}  // namespace tiled::cuda
