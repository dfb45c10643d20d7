#pragma once
// fp16x3_small: its tile, its shared memory, and how a warp loads, measures and splits operands.
//
// Operand rows are A's rows and B's columns. A panel is 16 operand rows by all of K; a fragment is
// 16 of K of a panel, 1 KB. A warp loads, measures and splits fragments of one panel alone. Lane l
// always has row l % 16 and eight elements along K: the first eight where l < 16, or else the
// second eight.

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda::fp16x3_small {

// A warp tile is 16 rows by kWarpCols columns.
template <int kM_, int kN_, int kWarpCols_, int kWarps_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kOperandRows = kM + kN, kWarpCols = kWarpCols_;
  static constexpr int kWarps = kWarps_, kThreads = kWarps * 32;
  static constexpr int kPanels = kOperandRows / 16, kPanelsOfA = kM / 16;
  static constexpr int kWarpsPerPanel = kWarps / kPanels;
  static constexpr int kWarpTiles = kM / 16 * (kN / kWarpCols);
  static constexpr int kBlocksPerSm = 24 / kWarps;  // for which an SM has registers
  static constexpr int kAhead = 8;                  // fragments of a warp that are in flight
  static_assert(kWarps % kPanels == 0);
};

struct Fragment {
  static constexpr int kBytes = 1024, kLoOffset = kBytes / 2;
  alignas(128) uint8_t bytes[kBytes];
};

template <class Tile>
struct Smem {
  Range ranges[Tile::kWarpsPerPanel][Tile::kOperandRows];  // of what one warp loaded of a row
  float inverse_scale[Tile::kOperandRows];
  float2 sums[Tile::kM][Tile::kN];  // total and low
  Fragment fragments[];             // (K / 16, kPanels)

  static size_t bytes(int64_t k) {
    return sizeof(Smem) + static_cast<size_t>(ceil_div(k, 16) * Tile::kPanels) * sizeof(Fragment);
  }
};

struct OperandParams {
  Matrix matrix;  // row_stride: between operand rows; col_stride: along K
  int64_t count;  // of operand rows
  bool k_major;
  bool vectorized;  // allows 128-bit copies
};

// A fragment that is not yet split has 16 segments of 16 elements that are adjacent in memory.
// Segment i is row i of a K-major operand, or k = i / 2 + i % 2 * 8 of an MN-major one. Elements
// that are read from one row stay within 128 bytes, since copies would be slower otherwise. They
// are permuted in units of four, so that no two lanes share a bank when each reads eight of K.
//
// Returns where an element of a segment lies, in floats. For segment + 2i, where that addition
// carries nothing, it is the exclusive or of this offset and i * two_segments().
__device__ inline int segment_offset(bool k_major, int segment, int element) {
  return (segment * 16 + element) ^ (k_major ? segment / 2 * 4 : 0);
}
__device__ inline int two_segments(bool k_major) { return k_major ? 36 : 32; }

// Goes through a warp's fragments and reads the lane's eight elements of each.
template <class Tile>
class FragmentReader {
 public:
  __device__ FragmentReader(const Fragment* first, bool k_major) : k_major_(k_major) {
    const int row = threadIdx.x % 16, k_half = threadIdx.x / 16 % 2;
    const float* data = reinterpret_cast<const float*>(first->bytes);
    from_[0] = data + (k_major ? segment_offset(true, row, k_half * 8)
                               : segment_offset(false, k_half, row));
    from_[1] = data + segment_offset(true, row, k_half * 8 + 4);
  }
  __device__ void next(float (&x)[8]) {
    if (k_major_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 x4 = *reinterpret_cast<const float4*>(from_[i]);
        x[i * 4] = x4.x, x[i * 4 + 1] = x4.y, x[i * 4 + 2] = x4.z, x[i * 4 + 3] = x4.w;
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) x[i] = from_[0][i * two_segments(false)];
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      from_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 4;
    }
  }

 private:
  bool k_major_;
  const float* from_[2];
};

// Loads this warp's fragments of a panel, from `fragment` on, and returns the range of what its
// lane's row has in them.
template <class Tile>
__device__ Range load_panel(const OperandParams& operand, const Batch& batch, int64_t matrix,
                            int64_t first_row, int first_k, int k, Fragment* fragment) {
  const int lane = threadIdx.x % 32;
  const bool k_major = operand.k_major, vectorized = operand.vectorized;
  const int64_t row_stride = operand.matrix.row_stride, k_stride = operand.matrix.col_stride;
  const int64_t inner_stride = k_major ? k_stride : row_stride;
  const int64_t outer_stride = k_major ? row_stride : k_stride;
  const int rows = static_cast<int>(min(operand.count - first_row, int64_t{16}));
  // This lane copies from segments `segment + 2i`: four elements each of i = 0 and i = 4, or one
  // element each of eight i.
  const int inner = vectorized ? lane % 4 * 4 : lane % 16, segment = lane / (vectorized ? 4 : 16);
  const int outer = k_major ? segment : segment / 2 + segment % 2 * 8, outer_step = k_major ? 2 : 1;
  const int offset = segment_offset(k_major, segment, inner), offset_step = two_segments(k_major);
  const int64_t from_step = k_major ? 2 * outer_stride : outer_stride;
  const float* from[2];
  from[0] = static_cast<const float*>(operand.matrix.data) +
            batch_offset(batch, operand.matrix, matrix) + first_row * row_stride +
            first_k * k_stride + inner * inner_stride + outer * outer_stride;
  from[1] = from[0] + 4 * from_step;
  float* data = reinterpret_cast<float*>(fragment->bytes);
  float* to[2] = {data + offset, data + (offset ^ 4 * offset_step)};

  auto copy = [&](int k_left) {
    if (vectorized && rows == 16 && k_left >= 16) {
      UNROLL
      for (int i = 0; i < 2; ++i) ptx::cp_async_16_zfill(to[i], from[i], 16);
      return;
    }
    const int inner_left = (k_major ? k_left : rows) - inner;
    const int outer_left = inner_left > 0 ? (k_major ? rows : k_left) - outer : 0;
    if (vectorized) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::cp_async_x4_zfill(ptx::shared_address(to[i]), from[i],
                               i * 4 * outer_step < outer_left ? min(inner_left, 4) * 4 : 0);
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        ptx::cp_async_4_zfill(to[0] - offset + (offset ^ i * offset_step), from[0] + i * from_step,
                              i * outer_step < outer_left ? 4 : 0);
      }
    }
  };

  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  const int count = static_cast<int>(static_cast<unsigned>(k - first_k + kStep - 1) / kStep);
  const int ahead = min(count, Tile::kAhead);
  FragmentReader<Tile> reader(fragment, k_major);
  Range range;
  NO_UNROLL
  for (int i = 0; i < count + ahead; ++i) {
    if (i < count) copy(k - first_k - i * kStep);
    __pipeline_commit();
    UNROLL
    for (int j = 0; j < 2; ++j) {
      to[j] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 4;
      from[j] += kStep * k_stride;
    }
    if (i < ahead) continue;
    if (count > Tile::kAhead) {
      __pipeline_wait_prior(Tile::kAhead);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncwarp();
    float x[8];
    reader.next(x);
    UNROLL
    for (const float each : x) range.add(each);
  }
  range.add_lane(16);
  return range;
}

// Splits this warp's fragments in place. The hi parts of lane l become the l-th 16 bytes, as
// ldmatrix reads them, and its lo parts lie kLoOffset bytes after them. Returns how many small
// numbers the lane has, if its row is wide.
template <class Tile>
__device__ uint32_t split_panel(float scale, bool wide, bool k_major, int first_k, int k,
                                Fragment* fragment) {
  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  FragmentReader<Tile> reader(fragment, k_major);
  uint8_t* to = fragment->bytes + threadIdx.x % 32 * 16;
  uint32_t small_numbers = 0;
  NO_UNROLL
  for (int k_left = k - first_k; k_left > 0; k_left -= kStep) {
    float x[8];
    reader.next(x);
    if (wide) small_numbers += count_small_numbers(x, scale);
    __syncwarp();  // every lane has read
    uint4 hi, lo;
    ptx::split_x8(x, scale, hi, lo);
    *reinterpret_cast<uint4*>(to) = hi;
    *reinterpret_cast<uint4*>(to + Fragment::kLoOffset) = lo;
    to += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes;
  }
  return small_numbers;
}

}  // namespace tiled::cuda::fp16x3_small
