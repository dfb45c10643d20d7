#pragma once
// Reading rows of q, k and v, and splitting them: a warpgroup takes 64 rows, each warp 16. A lane
// has four adjacent columns, so that rows are read in whole cache lines.

#include <climits>
#include <cstdint>

#include "core/attention.h"
#include "core/order_attention.h"
#include "kernels/attention/parts.h"
#include "kernels/common/launch.h"
#include "ptx/pack.cuh"

namespace tiled::cuda::attention {

namespace order = tiled::attention;

// Reads four columns of a row of a float32 tensor at a time, with zeros past the last row and the
// last column.
struct RowReader {
  Heads tensor;
  uint32_t heads;
  int rows, columns;
  bool vectors;  // four columns are one aligned load

  RowReader(const Heads& tensor, int64_t heads, int64_t rows, int64_t columns)
      : tensor(tensor),
        heads(static_cast<uint32_t>(heads)),
        rows(static_cast<int>(rows)),
        columns(static_cast<int>(columns)),
        vectors(tensor.col_stride == 1 && columns % 4 == 0 && tensor.row_stride % 4 == 0 &&
                tensor.head_stride % 4 == 0 && tensor.batch_stride % 4 == 0 &&
                reinterpret_cast<uintptr_t>(tensor.data) % sizeof(float4) == 0) {}

  // matrix: of all heads of the batch
  __device__ const float* matrix(uint32_t matrix) const {
    const uint32_t batch = matrix / heads, head = matrix - batch * heads;
    return static_cast<const float*>(tensor.data) + batch * tensor.batch_stride +
           head * tensor.head_stride;
  }
  __device__ void load_x4(const float* matrix, int row, int column, float (&x)[4]) const {
    const float* at = matrix + row * tensor.row_stride;
    const int left = row < rows ? columns - column : 0;
    if (vectors) {
      const float4 x4 =
          left > 0 ? __ldg(reinterpret_cast<const float4*>(at + column)) : float4{0, 0, 0, 0};
      x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
      return;
    }
    UNROLL
    for (int i = 0; i < 4; ++i) x[i] = i < left ? __ldg(at + (column + i) * tensor.col_stride) : 0;
  }
};

// finite_bits() of a row that kLanes adjacent lanes have four columns each of.
template <int kLanes>
__device__ uint32_t largest_of_row(const float (&x)[4]) {
  uint32_t largest = max(max(order::finite_bits(x[0]), order::finite_bits(x[1])),
                         max(order::finite_bits(x[2]), order::finite_bits(x[3])));
  UNROLL
  for (int i = 1; i < kLanes; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
  return largest;
}

__device__ inline void split_x4(const float (&x)[4], float scale, uint2& hi, uint2& lo) {
  fp16x3::Split parts[4];
  UNROLL
  for (int i = 0; i < 4; ++i) parts[i] = order::split(x[i] * scale);
  hi = {uint32_t{parts[1].hi.bits} << 16 | parts[0].hi.bits,
        uint32_t{parts[3].hi.bits} << 16 | parts[2].hi.bits};
  lo = {uint32_t{parts[1].lo.bits} << 16 | parts[0].lo.bits,
        uint32_t{parts[3].lo.bits} << 16 | parts[2].lo.bits};
}

// Splits 64 rows of up to kBlocks * 64 columns, from row `first` on, by the threads of a
// warpgroup. scale_of(row, largest) returns the scale of a row, counted from `first`, by its
// finite_bits(); all lanes of the row call it. store(row, column, hi, lo) gets four columns.
template <int kBlocks, class ScaleOf, class Store>
__device__ void split_rows(const RowReader& from, const float* matrix, int first,
                           const ScaleOf& scale_of, const Store& store) {
  constexpr int kLanes = 16 * kBlocks, kAtOnce = 32 / kLanes;  // rows of a warp
  constexpr int kSteps = 8;                                    // that are loaded together
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % kLanes * 4;
  const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / kLanes;
  NO_UNROLL
  for (int below = 0; below < 16; below += kSteps * kAtOnce) {
    float x[kSteps][4];
    UNROLL
    for (int i = 0; i < kSteps; ++i) {
      from.load_x4(matrix, first + row + below + i * kAtOnce, column, x[i]);
    }
    UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int at = row + below + i * kAtOnce;
      uint2 hi, lo;
      split_x4(x[i], scale_of(at, largest_of_row<kLanes>(x[i])), hi, lo);
      store(at, column, hi, lo);
    }
  }
}

template <int kBlocks, class Store>
__device__ void split_keys(const RowReader& from, const float* matrix, int first, KeyScales& scales,
                           const Store& store) {
  float largest_inverse = 0;
  const auto scale_of = [&](int row, uint32_t largest) {
    const float inverse = order::inverse_scale(largest);
    scales.inverse[row] = inverse;  // by each lane of the row
    largest_inverse = fmaxf(largest_inverse, inverse);
    return fp16x3::scale(largest);
  };
  split_rows<kBlocks>(from, matrix, first, scale_of, store);
  const uint32_t bits = __reduce_max_sync(~0u, bits_of(largest_inverse));
  scales.largest[threadIdx.x / 32 % 4] = float_of(bits);
}

template <int kBlocks, class Store>
__device__ void split_values(const RowReader& from, const float* matrix, int first,
                             ValueScales& scales, const Store& store) {
  int least = INT_MAX, most = INT_MIN;
  const auto scale_of = [&](int row, uint32_t largest) {
    const int s = order::value_scale_exponent(largest);
    scales.exponent[row] = -s;
    scales.scale[row] = order::power_of_two(s, -order::kSumShift);
    if (first + row < from.rows) least = min(least, -s), most = max(most, -s);
    return order::power_of_two(s);
  };
  split_rows<kBlocks>(from, matrix, first, scale_of, store);
  scales.least[threadIdx.x / 32 % 4] = __reduce_min_sync(~0u, least);
  scales.most[threadIdx.x / 32 % 4] = __reduce_max_sync(~0u, most);
}

}  // namespace tiled::cuda::attention
