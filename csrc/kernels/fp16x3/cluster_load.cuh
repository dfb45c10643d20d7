#pragma once
// fp16x3_cluster: how operand rows come to shared memory. Operand rows are A's rows and B's
// columns.

#include <cstdint>

#include "kernels/fp16x3/cluster_multiply.cuh"
#include "kernels/fp16x3/plan.h"
#include "ptx/cp_async.cuh"

namespace tiled::cuda::fp16x3_cluster {

struct OperandParams {
  // The members that every block reads first lie together.
  const float* data;
  int64_t row_stride, k_stride, count;  // count: of operand rows
  int64_t first;                        // of this launch
  int tile;                             // operand rows of a tile
  RowCopy copy;
};

// Where element k of a row of a tile is stored before it is split: at k ^ swizzle(row). Threads
// that copy along rows would otherwise store four times to each bank.
__device__ inline int swizzle(RowCopy copy, int row) {
  return copy == RowCopy::kMnMajor ? row / 2 % 4 * 4 : 0;
}

// Begins to copy a tile's operand rows by elements, this thread's part. `from` is the first element
// of the first row. Along rows, all of a cache line is requested before the next k.
__device__ inline void copy_elements(const OperandParams& operand, const float* from, int rows,
                                     int length, float* to, int pitch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (operand.copy == RowCopy::kMnMajor) {
    const int row = lane % 8, units = (rows - row + 7) / 8;  // units of eight rows
    const int64_t unit_stride = 8 * operand.row_stride;
    const int first_k = warp * 4 + lane / 8, swizzled = swizzle(operand.copy, row);
    const float* at = from + row * operand.row_stride + first_k * operand.k_stride;
    const auto copy_units = [&]<int kUnits>() {
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
      copy_units.template operator()<1>();
    } else {
      copy_units.template operator()<4>();
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

}  // namespace tiled::cuda::fp16x3_cluster
