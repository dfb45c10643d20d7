#pragma once
// Reading rows of q, k and v, and splitting them: a warpgroup takes 64 rows, each warp 16. Eight
// lanes read a row, so that rows are read in whole cache lines.

#include <cuda_pipeline_primitives.h>

#include <climits>
#include <cstdint>

#include "core/attention.h"
#include "core/order_attention.h"
#include "kernels/attention/parts.h"
#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda::attention {

namespace order = tiled::attention;

// Returns x. What follows from it is computed in a loop even if it is the same each time, and takes
// no registers in between.
__device__ inline int compute_again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

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

  // Reads `count` rows, from row `first` on.
  __device__ RowReader part(int first, int count) const {
    RowReader reader = *this;
    reader.tensor.data = static_cast<const float*>(tensor.data) + first * tensor.row_stride;
    reader.rows = count;
    return reader;
  }
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

// Splits two scaled numbers. One that is Inf or NaN makes every sum of its products NaN, as its lo
// part is NaN.
__device__ inline void split_x2(float x, float y, uint32_t& hi, uint32_t& lo) {
  const __half2 rounded = __floats2half2_rn(x, y);
  const float2 back = __half22float2(rounded);
  hi = reinterpret_cast<const uint32_t&>(rounded);
  lo = ptx::pack_x2(x - back.x, y - back.y);
}

// --- Scales: scaler(row, largest) returns that of a row by its finite_bits() ---------------------

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

// A warp has kAtOnce rows at once, and kLanes lanes have one row: each lane four columns of every
// 32.
struct LanePlace {
  static constexpr int kLanes = 8, kAtOnce = 32 / kLanes, kSteps = 16 / kAtOnce;
  int row, column;

  // again: compute_again()
  __device__ explicit LanePlace(bool again) {
    const int index = static_cast<int>(threadIdx.x), thread = again ? compute_again(index) : index;
    row = thread / 32 % 4 * 16 + thread % 32 / kLanes, column = thread % kLanes * 4;
  }
};

// What a lane has of a row.
template <int kBlocks>
struct LaneOfRow {
  float x[kBlocks * 2][4];

  // finite_bits() of the row
  __device__ uint32_t largest() const {
    float magnitude = 0;  // NaN is passed over
    UNROLL
    for (const auto& x4 : x) {
      UNROLL
      for (const float each : x4) magnitude = fmaxf(magnitude, fabsf(each));
    }
    uint32_t bits = bits_of(magnitude);
    if (__any_sync(~0u, magnitude == INFINITY)) bits = largest_of_finite();
    UNROLL
    for (int i = 1; i < LanePlace::kLanes; i *= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, i));
    return bits;
  }
  __device__ uint32_t largest_of_finite() const {
    uint32_t bits = 0;
    for (const auto& x4 : x) {
      for (const float each : x4) bits = max(bits, order::finite_bits(each));
    }
    return bits;
  }

  // Calls store(row, column, hi, lo) with the parts of four columns each.
  template <class Store>
  __device__ void split(int row, int column, float scale, const Store& store) const {
    UNROLL
    for (int i = 0; i < kBlocks * 2; ++i) {
      uint2 hi, lo;
      split_x2(x[i][0] * scale, x[i][1] * scale, hi.x, lo.x);
      split_x2(x[i][2] * scale, x[i][3] * scale, hi.y, lo.y);
      store(row, column + i * 32, hi, lo);
    }
  }
};

// Splits a tile. load(row, column, x) gives a lane its part of a row, and store(row, column, hi,
// lo) takes it back. kTogether rows of a lane are loaded, and stored after that.
template <int kBlocks, int kTogether, class Load, class Scaler, class Store>
__device__ void split_tile(const LanePlace& at, const Load& load, Scaler& scaler,
                           const Store& store) {
  NO_UNROLL
  for (int below = 0; below < LanePlace::kSteps; below += kTogether) {
    LaneOfRow<kBlocks> lane[kTogether];
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int row = at.row + (below + i) * LanePlace::kAtOnce;
      UNROLL
      for (int v = 0; v < kBlocks * 2; ++v) load(row, at.column + v * 32, lane[i].x[v]);
    }
    __syncwarp();  // every lane of a row has its part
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int row = at.row + (below + i) * LanePlace::kAtOnce;
      lane[i].split(row, at.column, scaler(row, lane[i].largest()), store);
    }
  }
  scaler.finish();
}

// Splits a tile of a tensor, from row `first` on.
template <int kBlocks, class Scaler, class Store>
__device__ void split_rows(const RowReader& from, const float* matrix, int first, Scaler& scaler,
                           const Store& store) {
  const auto load = [&](int row, int column, float(&x)[4]) {
    from.load_x4(matrix, first + row, column, x);
  };
  split_tile<kBlocks, 4 / kBlocks>(LanePlace(false), load, scaler, store);
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

// Begins to copy a tile, from row `first` on, to the boxes. kAgain: a loop over tiles keeps no
// addresses of this in registers (compute_again()), and takes longer.
template <int kBlocks, bool kAgain>
__device__ void stage_rows(const RowReader& from, const float* matrix, int first,
                           Boxes<kBlocks>& to) {
  constexpr int kUnroll = kBlocks == 4 ? 2 : kBlocks * 2;
  const LanePlace at(kAgain);
  NO_UNROLL
  for (int below = 0; below < 16; below += LanePlace::kAtOnce) {
    const int row = at.row + below;
    const bool exists = first + row < from.rows;
    const float* source = matrix + (exists ? first + row : 0) * from.tensor.row_stride;
#pragma unroll kUnroll
    for (int v = 0; v < kBlocks * 2; ++v) {
      const int column = at.column + v * 32, left = exists ? from.columns - column : 0;
      if (from.vectors) {
        const float* x4 = source + (left > 0 ? column : 0);
        ptx::cp_async_16_zfill(staged<kBlocks>(to, row, column), x4, left > 0 ? 16 : 0);
        continue;
      }
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* x = source + (i < left ? column + i : 0) * from.tensor.col_stride;
        ptx::cp_async_4_zfill(staged<kBlocks>(to, row, column + i), x, i < left ? 4 : 0);
      }
    }
  }
}

// Splits a tile that has come to the boxes, in place. A warp has its own rows alone.
template <int kBlocks, bool kAgain, class Scaler>
__device__ void split_staged(Boxes<kBlocks>& boxes, Scaler& scaler) {
  const auto load = [&](int row, int column, float(&x)[4]) {
    const float4 x4 = *reinterpret_cast<const float4*>(staged<kBlocks>(boxes, row, column));
    x[0] = x4.x, x[1] = x4.y, x[2] = x4.z, x[3] = x4.w;
  };
  const auto store = [&](auto... part) { store_parts<kBlocks>(boxes, part...); };
  split_tile<kBlocks, kBlocks == 4 ? 1 : 2>(LanePlace(kAgain), load, scaler, store);
}

// Waits for the rows that the warp has staged.
__device__ inline void wait_for_rows() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
}

// --- The backward pass ---------------------------------------------------------------------------

// Finds delta, and the softmax's denominators, of 64 queries.
struct StateReader {
  RowReader dout, out;
  const float* sum;
  const int32_t* exponent;

  explicit StateReader(const AttentionBackward& p)
      : dout(p.dout, p.heads, p.query_rows(), p.value_size),
        out({p.out.data, p.out.batch_stride, p.out.head_stride, p.out.row_stride, p.out.col_stride},
            p.heads, p.query_rows(), p.value_size),
        sum(p.sum),
        exponent(p.exponent) {}

  // Reads `count` queries of a matrix, from query `begin` on.
  __device__ StateReader part(uint32_t matrix, int begin, int count) const {
    StateReader reader = *this;
    reader.dout = dout.part(begin, count);
    reader.out = out.part(begin, count);
    const int64_t skipped = int64_t{matrix} * (dout.rows - count) + begin;
    reader.sum += skipped, reader.exponent += skipped;
    return reader;
  }

  template <int kBlocks>
  __device__ void read(uint32_t matrix, int first, QueryStates& to) const {
    constexpr int kLanes = 16 * kBlocks, kAtOnce = 32 / kLanes;  // rows of a warp
    const float* gradients = dout.matrix(matrix);
    const float* outputs = out.matrix(matrix);
    const int thread = compute_again(static_cast<int>(threadIdx.x) % 128);
    const int lane = thread % 32, column = lane % kLanes * 4;
    const int row = thread / 32 * 16 + lane / kLanes;
    _Pragma("unroll 4") for (int at = row; at < row + 16; at += kAtOnce) {
      float x[4], y[4], sum = 0;
      dout.load_x4(gradients, first + at, column, x);
      out.load_x4(outputs, first + at, column, y);
      UNROLL
      for (int i = 0; i < 4; ++i) sum = fmaf(x[i], y[i], sum);
      UNROLL
      for (int i = 1; i < kLanes; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
      to.delta[at] = sum;  // by each lane of the row
    }
    if (thread >= kRows) return;
    const int query = first + thread;
    order::Denominator found{0, 0};
    if (query < dout.rows) {
      const int64_t index = int64_t{matrix} * dout.rows + query;
      found = order::denominator(sum[index], exponent[index]);
    }
    to.inverse[thread] = found.inverse;
    to.exponent[thread] = found.exponent;
  }
};

}  // namespace tiled::cuda::attention
