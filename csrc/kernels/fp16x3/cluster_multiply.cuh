#pragma once
// fp16x3_cluster: a block's shared memory, and how a warp splits an operand row and multiplies a
// warp tile. Operand rows are A's rows and B's columns.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::fp16x3_cluster {

inline constexpr int kMaxChunks = 8;  // the largest cluster that every Hopper GPU has

// A warp multiplies a warp tile, 16 rows by 8 columns.
inline constexpr int kMaxRows = 48;  // operand rows of a tile
inline constexpr int kMaxWarpTiles = 4, kWarpTileElements = 128;

// A chunk of an operand row. It holds float32 until it is split in place: then each 16 bytes hold
// the hi parts of four elements and after them their lo parts. The padding puts rows into different
// banks, since multiply() reads two rows at a time.
struct OperandRow {
  static constexpr int kStep = 128;  // elements that a warp splits at a time
  alignas(16) float x[kChunk + 16];
};

struct Smem {
  uint64_t row_full[kMaxRows], sums_full;  // row_full: of rows that come by bulk copies
  float inverse_scale[kMaxRows];
  // In the first block: the sums that the blocks of all chunks send.
  alignas(16) float partial_sums[kMaxChunks][kMaxWarpTiles * kWarpTileElements];
  // A's rows, then B's columns. It is the last member, since smaller tiles need less of it.
  alignas(128) OperandRow rows[kMaxRows];

  static size_t bytes(int rows) { return sizeof(Smem) - (kMaxRows - rows) * sizeof(OperandRow); }
};
static_assert(sizeof(Smem) <= kMaxSharedMemory);

// Splits a row in place, and returns its inverse scale. The whole warp calls it. The row has zeros
// from its end to a multiple of OperandRow::kStep. Vector i of four elements comes from place i ^
// swizzle, and its parts are left at place i.
__device__ inline float split_row(OperandRow& row, int length, int swizzle) {
  constexpr int kVectors = kChunk / OperandRow::kStep;  // a lane
  const int lane = threadIdx.x % 32;
  const float4* const swizzled = reinterpret_cast<const float4*>(row.x) + (lane ^ swizzle);
  uint4* const vectors = reinterpret_cast<uint4*>(row.x) + lane;
  float x[kVectors][4] = {};
  UNROLL
  for (int i = 0; i < kVectors; ++i) {
    if (i * OperandRow::kStep >= length) break;
    const float4 x4 = swizzled[i * 32];
    x[i][0] = x4.x, x[i][1] = x4.y, x[i][2] = x4.z, x[i][3] = x4.w;
  }
  uint32_t largest = 0;
  UNROLL
  for (int i = 0; i < kVectors * 4; ++i) {
    largest = max(largest, fp16x3::magnitude_bits(x[i / 4][i % 4]));
  }
  largest = __reduce_max_sync(~0u, largest);
  const float scale = fp16x3::scale(largest);
  __half2 least = __float2half2_rn(1);
  UNROLL
  for (int i = 0; i < kVectors; ++i) {
    if (i * OperandRow::kStep >= length) break;
    uint4 parts;  // hi, hi, lo, lo
    ptx::split_x2(x[i][0] * scale, x[i][1] * scale, parts.x, parts.z);
    ptx::split_x2(x[i][2] * scale, x[i][3] * scale, parts.y, parts.w);
    least = __hmin2(least, __habs2(reinterpret_cast<const __half2&>(parts.x)));
    least = __hmin2(least, __habs2(reinterpret_cast<const __half2&>(parts.y)));
    vectors[i * 32] = parts;
  }
  // Only a row with a hi part below 2^-12, zeros included, can be wide.
  const bool has_small = __hlt2_mask(least, __float2half2_rn(0x1p-12f)) != 0;
  Range range{largest, ~0u};
  if (__any_sync(~0u, has_small)) {
    UNROLL
    for (int i = 0; i < kVectors * 4; ++i) range.add(x[i / 4][i % 4]);
    range.smallest = __reduce_min_sync(~0u, range.smallest);
  }
  return range.inverse_scale(scale);
}

struct Accumulators {
  float total[4], low[4];
};

// Multiplies a warp tile: 16 operand rows from `a` on by 8 from `b` on. A lane takes four adjacent
// elements of each 16 along K, where mma.sync takes two and two: a tensor-core sum of 16 products
// does not depend on their order. `length` is rounded up to a multiple of 64 by zeros.
__device__ inline Accumulators multiply(const OperandRow* a, const OperandRow* b, int length,
                                        int promotion) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const uint4* from[] = {reinterpret_cast<const uint4*>(a[g].x) + q,
                         reinterpret_cast<const uint4*>(a[g + 8].x) + q,
                         reinterpret_cast<const uint4*>(b[g].x) + q};
  struct Fragments {
    uint4 x[2][3];  // of two times 16 of K: rows g and g + 8 of A, column g of B
  };
  auto read = [&](int k) {
    Fragments fragments;
    UNROLL
    for (int i = 0; i < 6; ++i) fragments.x[i / 3][i % 3] = from[i % 3][k / 4 + i / 3 * 4];
    return fragments;
  };
  Accumulators acc{};
  auto add = [&](const Fragments& fragments) {
    float part[4] = {};
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto& [upper, lower, cols] = fragments.x[i];
      const uint32_t a_hi[] = {upper.x, lower.x, upper.y, lower.y};
      const uint32_t a_lo[] = {upper.z, lower.z, upper.w, lower.w};
      const uint32_t b_hi[] = {cols.x, cols.y}, b_lo[] = {cols.z, cols.w};
      ptx::mma_m16n8k16(acc.low, a_lo, b_hi);
      ptx::mma_m16n8k16(part, a_hi, b_hi);
      ptx::mma_m16n8k16(acc.low, a_hi, b_lo);
      if (i == 1 || promotion == 16) {
        UNROLL
        for (int j = 0; j < 4; ++j) acc.total[j] += part[j], part[j] = 0;
      }
    }
  };
  // Fragments of the next 32 of K are read before the products of these.
  Fragments even = read(0);
  NO_UNROLL
  for (int left = length; left > 0; left -= 64) {
    const Fragments odd = read(32);
    add(even);
    UNROLL
    for (int i = 0; i < 3; ++i) from[i] += left > 64 ? 16 : 0;  // at the end, the same once more
    even = read(0);
    add(odd);
  }
  return acc;
}

}  // namespace tiled::cuda::fp16x3_cluster
