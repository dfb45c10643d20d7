#pragma once
// fp16x3_cluster: how a block copies its operand rows to shared memory and splits them there.

#include <cuda_fp16.h>

#include <cstdint>

#include "core/element.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::fp16x3_cluster {

// Operand rows are A's rows and B's columns.

// --- Loading -------------------------------------------------------------------------------------

struct OperandParams {
  // The members that every block reads first are adjacent.
  const void* data;
  int64_t row_stride, k_stride, count;  // count: of operand rows
  int64_t first;                        // of this launch
  int tile;                             // operand rows of a tile
  int pitch;                            // of rows in shared memory, in bytes
  RowCopy copy;
};

// Element k of a row of a tile is stored at k ^ swizzle(row) until it is split. Without the
// swizzle, threads that copy along rows would store four times to each bank.
__device__ inline int swizzle(RowCopy copy, int row) {
  return copy == RowCopy::kMnMajor ? row / 2 % 4 * 4 : 0;
}

// Begins to copy a tile's operand rows by elements, this thread's part. `from` is the first element
// of the first row. Along rows, all of a cache line is requested before the next k.
__device__ inline void copy_elements(const OperandParams& operand, const float* from, int rows,
                                     int length, float* to, int pitch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (operand.copy == RowCopy::kMnMajor) {
    const int first_k = warp * 4 + lane / 8;
    const int64_t unit_stride = 8 * operand.row_stride;
    // Copies kUnits units of eight rows: this thread's row of each, from `row` on.
    const auto copy_units = [&]<int kUnits>(int row) {
      const int units = (rows - row + 7) / 8, swizzled = swizzle(operand.copy, row);
      const float* at = from + row * operand.row_stride + first_k * operand.k_stride;
      _Pragma("unroll 4") for (int k = first_k; k < length; k += warps * 4) {
        UNROLL
        for (int i = 0; i < kUnits; ++i) {
          if (i < units) {
            ptx::cp_async_4_zfill(&to[(row + i * 8) * pitch + (k ^ swizzled)], at + i * unit_stride,
                                  4);
          }
        }
        at += warps * 4 * operand.k_stride;
      }
    };
    if (rows <= 8) {
      copy_units.template operator()<1>(lane % 8);
    } else {
      NO_UNROLL
      for (int row = lane % 8; row < rows; row += 32) copy_units.template operator()<4>(row);
    }
  } else {
    NO_UNROLL
    for (int row = warp; row < rows; row += warps) {
      const float* at = from + row * operand.row_stride + lane * operand.k_stride;
      _Pragma("unroll 4") for (int k = lane; k < length; k += 32) {
        ptx::cp_async_4_zfill(&to[row * pitch + k], at, 4);
        at += 32 * operand.k_stride;
      }
    }
  }
}

// --- Splitting -----------------------------------------------------------------------------------

// A chunk of an operand row holds float32 until it is split in place: then each 16 bytes hold the
// hi parts of four elements and after them their lo parts. A chunk of a 16-bit row is replaced by
// its hi parts. A warp splits kSplitStep elements at a time.
inline constexpr int kSplitStep = 128;

// Four elements from the `shift`-th of eight on.
__device__ inline float4 shifted(float4 x, float4 next, int shift) {
  if ((shift & 1) != 0) x = {x.y, x.z, x.w, next.x}, next = {next.y, next.z, next.w, 0};
  if ((shift & 2) != 0) x = {x.z, x.w, next.x, next.y};
  return x;
}

// Splits a row in place, and returns its inverse scale. The whole warp calls it. The row begins at
// element `shift`, less than four, with zeros before it, and zeros from its end to a multiple of
// kSplitStep. If `shift` is 0, vector i of four elements comes from place i ^ swizzle. Its parts
// are left at place i.
__device__ inline float split_row(float* row, int length, int swizzle, int shift) {
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const float4*>(row) + (lane ^ swizzle);
  auto* to = reinterpret_cast<uint4*>(row) + lane;
  const int vectors = (length + kSplitStep - 1) / kSplitStep;  // a lane
  uint32_t largest = 0, bits = 0;  // `bits`: the bitwise or of the lane's numbers
  _Pragma("unroll 4") for (int i = 0; i < vectors; ++i) {
    const float4 x = from[i * 32];
    for (const float each : {x.x, x.y, x.z, x.w}) {
      largest = max(largest, fp16x3::magnitude_bits(each));
      bits |= bits_of(each);
    }
  }
  if (lane < shift) {  // the elements after the last vector
    const float each = row[vectors * kSplitStep + lane];
    largest = max(largest, fp16x3::magnitude_bits(each)), bits |= bits_of(each);
  }
  largest = __reduce_max_sync(~0u, largest);
  const float scale = fp16x3::scale(largest);
  const bool may_be_coarse = fp16x3::is_coarse(bits, float_of(0x7f800000));
  uint32_t small_numbers = 0;
  float least_number = float_of(0x7f800000);  // except zeros, if the row may be coarse
  _Pragma("unroll 2") for (int i = 0; i < vectors; ++i) {
    float4 x = from[i * 32];
    if (shift != 0) x = shifted(x, from[i * 32 + 1], shift);
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
    if (may_be_coarse) {
      for (const float each : scaled) {
        if (each != 0) least_number = fminf(least_number, fabsf(each));
      }
    }
  }
  const bool coarse = __all_sync(~0u, fp16x3::is_coarse(bits, least_number));
  return fp16x3::inverse_scale(largest, __reduce_add_sync(~0u, small_numbers), coarse);
}

// Replaces a 16-bit row by its hi parts, and returns its inverse scale. The whole warp calls it.
// The row has zeros from its end to a multiple of kSplitStep.
template <class T>
__device__ float split_narrow_row(uint8_t* row, int length) {
  auto* vectors = reinterpret_cast<uint2*>(row) + threadIdx.x % 32;
  const int count = (length + kSplitStep - 1) / kSplitStep;  // of vectors of four, a lane
  // Magnitudes of 16-bit floats compare like their bits. The least are less 1, so that zero never
  // is the least.
  uint32_t largest_x2 = 0, least_x2 = ~0u;
  _Pragma("unroll 4") for (int i = 0; i < count; ++i) {
    const uint2 x4 = vectors[i * 32];
    for (const uint32_t x2 : {x4.x & 0x7fff7fff, x4.y & 0x7fff7fff}) {
      largest_x2 = __vmaxu2(largest_x2, x2);
      least_x2 = __viaddmin_u16x2(x2, ~0u, least_x2);
    }
  }
  const uint32_t largest = __reduce_max_sync(~0u, max(largest_x2 & 0xffff, largest_x2 >> 16));
  const uint32_t least = __reduce_min_sync(~0u, min(least_x2 & 0xffff, least_x2 >> 16));
  const auto widened = [](uint32_t bits) { return bits_of(widen(T{static_cast<uint16_t>(bits)})); };
  const BasicRange</*kHasBits=*/false> range{widened(largest), widened(least + 1) - 1};
  const float scale = fp16x3::scale(range.largest);
  const auto read = [&](int i, float(&x)[4]) {
    const uint2 x4 = vectors[i * 32];
    UNROLL
    for (int j = 0; j < 4; ++j) x[j] = widen(reinterpret_cast<const T*>(&x4)[j]);
  };
  uint32_t small_numbers = 0, bits = 0;  // `bits`: the bitwise or of numbers that may be coarse
  if (range.is_wide(scale) || range.is_coarse(scale, bits)) {
    NO_UNROLL
    for (int i = 0; i < count; ++i) {
      float x[4];
      read(i, x);
      small_numbers += count_small_numbers(x, scale);
      for (const float each : x) bits |= bits_of(each);
    }
    small_numbers = __reduce_add_sync(~0u, small_numbers), bits = __reduce_or_sync(~0u, bits);
  }
  _Pragma("unroll 4") for (int i = 0; i < count; ++i) {
    float x[4];
    read(i, x);
    vectors[i * 32] = {ptx::pack_x2(x[0] * scale, x[1] * scale),
                       ptx::pack_x2(x[2] * scale, x[3] * scale)};
  }
  return fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale, bits));
}

}  // namespace tiled::cuda::fp16x3_cluster
