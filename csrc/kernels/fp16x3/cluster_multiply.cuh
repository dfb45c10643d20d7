#pragma once
// fp16x3_cluster: a block's shared memory, and how a warp splits an operand row and multiplies a
// warp tile. Operand rows are A's rows and B's columns.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::fp16x3_cluster {

// A warp multiplies a warp tile, 16 rows by 8 columns.
inline constexpr int kWarpTileElements = 128;

// A chunk of an operand row holds float32 until it is split in place: then each 16 bytes hold the
// hi parts of four elements and after them their lo parts. A warp splits kSplitStep elements at a
// time. The pitch of rows is half the banks more than a multiple of it, since multiply() reads two
// rows at a time.
inline constexpr int kSplitStep = 128;

// Splits a row in place, and returns its inverse scale. The whole warp calls it. The row has zeros
// from its end to a multiple of kSplitStep. Vector i of four elements comes from place i ^
// swizzle, and its parts are left at place i.
__device__ inline float split_row(float* row, int length, int swizzle) {
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const float4*>(row) + (lane ^ swizzle);
  auto* to = reinterpret_cast<uint4*>(row) + lane;
  const int vectors = (length + kSplitStep - 1) / kSplitStep;  // a lane
  uint32_t largest = 0;
  _Pragma("unroll 4") for (int i = 0; i < vectors; ++i) {
    const float4 x = from[i * 32];
    for (const float each : {x.x, x.y, x.z, x.w}) {
      largest = max(largest, fp16x3::magnitude_bits(each));
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  const float scale = fp16x3::scale(largest);
  uint32_t small_numbers = 0;
  _Pragma("unroll 2") for (int i = 0; i < vectors; ++i) {
    const float4 x = from[i * 32];
    const float scaled[] = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
    uint4 parts;  // hi, hi, lo, lo
    ptx::split_x2(scaled[0], scaled[1], parts.x, parts.z);
    ptx::split_x2(scaled[2], scaled[3], parts.y, parts.w);
    __syncwarp();  // all lanes have read
    to[i * 32] = parts;
    // Only numbers with a hi part below 2^-12, zeros included, can be small.
    const __half2 least = __hmin2(__habs2(reinterpret_cast<const __half2&>(parts.x)),
                                  __habs2(reinterpret_cast<const __half2&>(parts.y)));
    if (__hlt2_mask(least, __float2half2_rn(0x1p-12f)) != 0) {
      small_numbers += fp16x3::is_small(x.x, scaled[0]) + fp16x3::is_small(x.y, scaled[1]) +
                       fp16x3::is_small(x.z, scaled[2]) + fp16x3::is_small(x.w, scaled[3]);
    }
  }
  return fp16x3::inverse_scale(largest, __reduce_add_sync(~0u, small_numbers));
}

struct Accumulators {
  float total[4], low[4];
};

// Multiplies a warp tile: 16 operand rows from `a` on by 8 from `b` on, of which a_rows and b_rows
// exist. A lane takes four adjacent elements of each 16 along K, where mma.sync takes two and two:
// a tensor-core sum of 16 products does not depend on their order. `length` is rounded up to a
// multiple of 32 by zeros.
__device__ inline Accumulators multiply(const float* a, int a_rows, const float* b, int b_rows,
                                        int pitch, int length, int promotion) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  // Rows that do not exist are replaced, since nothing they reach is stored.
  const auto row = [&](const float* first, int index, int rows) {
    return reinterpret_cast<const uint4*>(first + min(index, rows - 1) * pitch) + q;
  };
  const uint4* from[] = {row(a, g, a_rows), row(a, g + 8, a_rows), row(b, g, b_rows)};
  struct Fragments {
    uint4 x[3];  // of 16 of K: rows g and g + 8 of A, column g of B
  };
  auto read = [&](int k) {
    Fragments fragments;
    UNROLL
    for (int i = 0; i < 3; ++i) fragments.x[i] = from[i][k / 4];
    return fragments;
  };
  Accumulators acc{};
  float part[4] = {};
  auto add = [&](const Fragments& fragments, bool promotes) {
    const auto& [upper, lower, cols] = fragments.x;
    const uint32_t a_hi[] = {upper.x, lower.x, upper.y, lower.y};
    const uint32_t a_lo[] = {upper.z, lower.z, upper.w, lower.w};
    const uint32_t b_hi[] = {cols.x, cols.y}, b_lo[] = {cols.z, cols.w};
    ptx::mma_m16n8k16(acc.low, a_lo, b_hi);
    ptx::mma_m16n8k16(part, a_hi, b_hi);
    ptx::mma_m16n8k16(acc.low, a_hi, b_lo);
    if (!promotes) return;
    UNROLL
    for (int i = 0; i < 4; ++i) acc.total[i] += part[i], part[i] = 0;
  };
  // Fragments of the next 16 of K are read before the products of these.
  Fragments even = read(0);
  _Pragma("unroll 2") for (int left = length; left > 0; left -= 32) {
    const Fragments odd = read(16);
    add(even, promotion == 16);
    UNROLL
    for (int i = 0; i < 3; ++i) from[i] += left > 32 ? 8 : 0;  // at the end, the same once more
    even = read(0);
    add(odd, true);
  }
  return acc;
}

}  // namespace tiled::cuda::fp16x3_cluster
