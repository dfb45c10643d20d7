#pragma once
// Descales the sums of a chunk that a thread accumulated by wgmma or mma.sync.

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// Returns whether no row and no column is wide or coarse, and the rows' scales are moderate or 0.
// descale() is then two multiplications, and the first is exact.
template <int kPairs>
__device__ bool are_plain(const float (&row_scales)[2], const float2 (&col_scales)[kPairs]) {
  bool plain = true;
  UNROLL
  for (const float each : row_scales) {
    plain &= each == 0 || (each >= 0x1p-60f && each <= 0x1p60f);
  }
  UNROLL
  for (const float2& x2 : col_scales) plain &= x2.x >= 0 && x2.y >= 0;
  return plain;
}

// Replaces `total` by fp16x3::chunk_sum() of total and low, and leaves anything in low. Accumulator
// i belongs to row i / 2 % 2 of the thread's two, and to column i / 4 * 2 + i % 2 of the thread's.
// The inverse scales of columns come in pairs.
template <int kElements>
__device__ void descale_chunk(float (&total)[kElements], float (&low)[kElements],
                              const float (&inverse_rows)[2],
                              const float2 (&inverse_cols)[kElements / 4], int promotion) {
  float row_scales[2] = {inverse_rows[0], inverse_rows[1]};
  float2 col_scales[kElements / 4];
  UNROLL
  for (int i = 0; i < kElements / 4; ++i) col_scales[i] = inverse_cols[i];
  const auto row_scale = [&](int i) { return row_scales[i / 2 % 2]; };
  const auto col_scale = [&](int i) {
    return i % 2 == 0 ? col_scales[i / 4].x : col_scales[i / 4].y;
  };
  bool plain = are_plain(row_scales, col_scales);
  if (!plain) {
    // Beside a coarse group nothing is given back. The two parts of a total are added here. To a
    // low part of 0 nothing is given back either, so that no group needs to be coarse below.
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (fp16x3::gives_back(row_scale(i), col_scale(i))) continue;
      total[i] = fp16x3::scaled_sum(total[i], low[i], promotion, /*gives_back=*/false);
      low[i] = 0;
    }
    UNROLL
    for (float& each : row_scales) each = fp16x3::without_coarse(each);
    UNROLL
    for (float2& x2 : col_scales) {
      x2 = {fp16x3::without_coarse(x2.x), fp16x3::without_coarse(x2.y)};
    }
    plain = are_plain(row_scales, col_scales);
  }
  if (plain) {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float scaled = fp16x3::scaled_sum(total[i], low[i], promotion, /*gives_back=*/true);
      total[i] = scaled * row_scale(i) * col_scale(i);
    }
  } else {
    UNROLL
    for (int i = 0; i < kElements; ++i) {
      total[i] = fp16x3::chunk_sum(total[i], low[i], row_scale(i), col_scale(i), promotion);
    }
  }
}

}  // namespace tiled::cuda
