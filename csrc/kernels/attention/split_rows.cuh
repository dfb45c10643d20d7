#pragma once
// Reading rows of q, k and v, and splitting them: a warpgroup takes 64 rows, each warp 16. A lane
// has four adjacent columns, so that rows are read in whole cache lines.

#include <climits>
#include <cstdint>

#include "core/attention.h"
#include "core/order_attention.h"
#include "kernels/attention/parts.h"
#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"

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

// --- Scales: scaler(row, largest) returns that of a row of a tile by its finite_bits()
// -------------

// All lanes of a row call a scaler, and finish() after the last row.
struct KeyScaler {
  KeyScales& scales;
  float largest_inverse = 0;

  __device__ float operator()(int row, uint32_t largest) {
    const float inverse = order::inverse_scale(largest);
    scales.inverse[row] = inverse;
    largest_inverse = fmaxf(largest_inverse, inverse);
    return fp16x3::scale(largest);
  }
  __device__ void finish() const {
    const uint32_t bits = __reduce_max_sync(~0u, bits_of(largest_inverse));
    scales.largest[threadIdx.x / 32 % 4] = float_of(bits);
  }
};

struct ValueScaler {
  ValueScales& scales;
  int rows;  // that exist
  int least = INT_MAX, most = INT_MIN;

  __device__ float operator()(int row, uint32_t largest) {
    const int s = order::value_scale_exponent(largest);
    scales.exponent[row] = -s;
    scales.scale[row] = order::power_of_two(s, -order::kSumShift);
    if (row < rows) least = min(least, -s), most = max(most, -s);
    return order::power_of_two(s);
  }
  __device__ void finish() const {
    scales.least[threadIdx.x / 32 % 4] = __reduce_min_sync(~0u, least);
    scales.most[threadIdx.x / 32 % 4] = __reduce_max_sync(~0u, most);
  }
};

// --- A tile of 64 rows of kBlocks * 64 columns, of which each warp has 16 ------------------------

// The rows that a warp has at once, and a lane's place in them: kLanes lanes have a row.
template <int kBlocks>
struct LanePlace {
  static constexpr int kLanes = 16 * kBlocks, kAtOnce = 32 / kLanes;
  int row =
      static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / kLanes;
  int column = static_cast<int>(threadIdx.x) % kLanes * 4;
};

// Splits rows that a lane has four columns of: row `first`, and then every kAtOnce-th one.
template <int kBlocks, int kSteps, class Scaler, class Store>
__device__ void split_loaded(const float (&x)[kSteps][4], int first, int column, Scaler& scaler,
                             const Store& store) {
  using Place = LanePlace<kBlocks>;
  UNROLL
  for (int i = 0; i < kSteps; ++i) {
    const int row = first + i * Place::kAtOnce;
    uint2 hi, lo;
    split_x4(x[i], scaler(row, largest_of_row<Place::kLanes>(x[i])), hi, lo);
    store(row, column, hi, lo);
  }
}

// Splits a tile, from row `first` on. store(row, column, hi, lo) gets four columns.
template <int kBlocks, class Scaler, class Store>
__device__ void split_rows(const RowReader& from, const float* matrix, int first, Scaler& scaler,
                           const Store& store) {
  using Place = LanePlace<kBlocks>;
  constexpr int kSteps = 8;  // that are loaded together
  const Place at;
  NO_UNROLL
  for (int below = 0; below < 16; below += kSteps * Place::kAtOnce) {
    float x[kSteps][4];
    UNROLL
    for (int i = 0; i < kSteps; ++i) {
      from.load_x4(matrix, first + at.row + below + i * Place::kAtOnce, at.column, x[i]);
    }
    split_loaded<kBlocks>(x, at.row + below, at.column, scaler, store);
  }
  scaler.finish();
}

using Box = uint8_t[kRows * 128];  // 64 rows of 64 columns, swizzled
// Boxes of 64 columns, of hi and then of lo.
template <int kBlocks>
using Boxes = Box[2][kBlocks];

// Stores parts as TMA would: of each eight rows of a box, the 16 bytes at i are at i ^ row % 8.
template <int kBlocks>
__device__ void store_parts(Boxes<kBlocks>& to, int row, int column, uint2 hi, uint2 lo) {
  const int at = row * 128 + (column % 64 * 2 ^ row % 8 * 16);
  *reinterpret_cast<uint2*>(&to[0][column / 64][at]) = hi;
  *reinterpret_cast<uint2*>(&to[1][column / 64][at]) = lo;
}

// A float32 row on its way has the place of its own parts: half of each 64 columns that of hi.
template <int kBlocks>
__device__ float* staged(Boxes<kBlocks>& boxes, int row, int column) {
  return reinterpret_cast<float*>(&boxes[column / 32 % 2][column / 64][row * 128]) + column % 32;
}

// Begins to copy a tile, from row `first` on, to the boxes.
template <int kBlocks>
__device__ void stage_rows(const RowReader& from, const float* matrix, int first,
                           Boxes<kBlocks>& to) {
  using Place = LanePlace<kBlocks>;
  const Place at;
  _Pragma("unroll 4") for (int below = 0; below < 16; below += Place::kAtOnce) {
    const int row = at.row + below;
    const bool exists = first + row < from.rows;
    const float* source = matrix + (exists ? first + row : 0) * from.tensor.row_stride;
    const int left = exists ? from.columns - at.column : 0;
    if (from.vectors) {
      const float* x4 = source + (left > 0 ? at.column : 0);
      ptx::cp_async_16_zfill(staged<kBlocks>(to, row, at.column), x4, left > 0 ? 16 : 0);
      continue;
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* x = source + (i < left ? at.column + i : 0) * from.tensor.col_stride;
      ptx::cp_async_4_zfill(staged<kBlocks>(to, row, at.column + i), x, i < left ? 4 : 0);
    }
  }
}

// Splits a tile that has come to the boxes, in place. A warp has its own rows alone.
template <int kBlocks, class Scaler>
__device__ void split_staged(Boxes<kBlocks>& boxes, Scaler& scaler) {
  using Place = LanePlace<kBlocks>;
  constexpr int kSteps = 4;  // rows of a lane that are split at once
  const Place at;
  const auto store = [&](auto... part) { store_parts<kBlocks>(boxes, part...); };
  NO_UNROLL
  for (int below = 0; below < 16; below += kSteps * Place::kAtOnce) {
    float x[kSteps][4];
    UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int row = at.row + below + i * Place::kAtOnce;
      const float4 x4 = *reinterpret_cast<const float4*>(staged<kBlocks>(boxes, row, at.column));
      x[i][0] = x4.x, x[i][1] = x4.y, x[i][2] = x4.z, x[i][3] = x4.w;
    }
    __syncwarp();  // every lane of a row has read
    split_loaded<kBlocks>(x, at.row + below, at.column, scaler, store);
  }
  scaler.finish();
}

}  // namespace tiled::cuda::attention
