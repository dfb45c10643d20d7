#pragma once
// fp16x3_small: its tile, its shared memory, and how a warp loads, measures and splits operands.
//
// Operand rows are A's rows and B's columns. A panel is 16 operand rows by all of K; a fragment is
// 16 of K of a panel, 1 KB. A warp loads, measures and splits fragments of one panel alone. Lane l
// always has row l % 16 and eight elements along K: the first eight where l < 16, or else the
// second eight.

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <type_traits>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/range.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda::fp16x3_small {

// A warp tile is 16 rows by kWarpCols columns.
template <int kM_, int kN_, int kWarpCols_, int kWarps_, bool kComplex_>
struct Tile {
  static constexpr bool kComplex = kComplex_;  // B lies as in_place_b() describes it
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
  SignsOfB signs;   // of a complex operand
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
  __device__ FragmentReader(const Fragment* first, const OperandParams& operand)
      : k_major_(operand.k_major) {
    const int row = threadIdx.x % 16, k_half = threadIdx.x / 16 % 2;
    const float* data = reinterpret_cast<const float*>(first->bytes);
    from_[0] = data + (k_major_ ? segment_offset(true, row, k_half * 8)
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

// Copies a warp's fragments of a panel, one after another, with zeros beyond the operand's end.
template <class Tile>
class FragmentCopy {
 public:
  // Begins with the panel's rows from `first_row` on, and at `first_k`.
  __device__ FragmentCopy(const OperandParams& operand, const Batch& batch, int64_t matrix,
                          int64_t first_row, int first_k, Fragment* fragment)
      : k_major_(operand.k_major),
        vectorized_(operand.vectorized),
        rows_(static_cast<int>(min(operand.count - first_row, int64_t{16}))) {
    const int lane = threadIdx.x % 32;
    const int64_t row_stride = operand.matrix.row_stride, k_stride = operand.matrix.col_stride;
    const int64_t inner_stride = k_major_ ? k_stride : row_stride;
    const int64_t outer_stride = k_major_ ? row_stride : k_stride;
    // This lane copies from segments `segment + 2i`: four elements each of i = 0 and i = 4, or one
    // element each of eight i.
    const int segment = lane / (vectorized_ ? 4 : 16);
    inner_ = vectorized_ ? lane % 4 * 4 : lane % 16;
    outer_ = k_major_ ? segment : segment / 2 + segment % 2 * 8;
    offset_ = segment_offset(k_major_, segment, inner_);
    from_step_ = k_major_ ? 2 * outer_stride : outer_stride;
    next_step_ = kStep * k_stride;
    from_[0] = static_cast<const float*>(operand.matrix.data) +
               batch_offset(batch, operand.matrix, matrix) + first_row * row_stride +
               first_k * k_stride + inner_ * inner_stride + outer_ * outer_stride;
    from_[1] = from_[0] + 4 * from_step_;
    auto* data = reinterpret_cast<float*>(fragment->bytes);
    to_[0] = data + offset_, to_[1] = data + (offset_ ^ 4 * two_segments(k_major_));
  }

  // Copies a fragment that has `k_left` of K, or 16.
  __device__ void copy(int k_left) const {
    const int outer_step = k_major_ ? 2 : 1;
    if (vectorized_ && rows_ == 16 && k_left >= 16) {
      UNROLL
      for (int i = 0; i < 2; ++i) ptx::cp_async_16_zfill(to_[i], from_[i], 16);
      return;
    }
    const int inner_left = (k_major_ ? k_left : rows_) - inner_;
    const int outer_left = inner_left > 0 ? (k_major_ ? rows_ : k_left) - outer_ : 0;
    if (vectorized_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::cp_async_x4_zfill(ptx::shared_address(to_[i]), from_[i],
                               i * 4 * outer_step < outer_left ? min(inner_left, 4) * 4 : 0);
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        ptx::cp_async_4_zfill(to_[0] - offset_ + (offset_ ^ i * two_segments(k_major_)),
                              from_[0] + i * from_step_, i * outer_step < outer_left ? 4 : 0);
      }
    }
  }
  __device__ void next() {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      to_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 4;
      from_[i] += next_step_;
    }
  }

 private:
  static constexpr int kStep = Tile::kWarpsPerPanel * 16;
  bool k_major_, vectorized_;
  int rows_, inner_, outer_, offset_;
  int64_t from_step_, next_step_;
  const float* from_[2];
  float* to_[2];
};

// A fragment of a complex B that is not yet split has the 8 x 8 numbers that its 16 rows and 16 of
// K stand for (core/complex.h), in 8 segments that are adjacent in memory: columns of a K-major B,
// or else rows. They are permuted by pairs, so that lanes that read two at once share no bank.
// Returns where a number of a segment lies, in numbers.
__device__ inline int number_offset(bool k_major, int segment, int number) {
  return (segment * 8 + number) ^ (k_major ? segment / 2 % 2 * 2 : 0);
}

// FragmentCopy of a complex B.
template <class Tile>
class ComplexCopy {
 public:
  __device__ ComplexCopy(const OperandParams& operand, const Batch& batch, int64_t matrix,
                         int64_t first_row, int first_k, Fragment* fragment)
      : k_major_(operand.k_major),
        rows_(static_cast<int>(min(operand.count - first_row, int64_t{16}))) {
    const int lane = threadIdx.x % 32;
    const int64_t row_stride = operand.matrix.row_stride, k_stride = operand.matrix.col_stride;
    const int64_t outer_stride = k_major_ ? row_stride : k_stride;
    inner_ = lane % 8, outer_ = lane / 8;  // of the lane's two segments, four apart
    from_step_ = 4 * outer_stride;
    next_step_ = kStep / 2 * k_stride;
    const float* first = static_cast<const float*>(operand.matrix.data) +
                         batch_offset(batch, operand.matrix, matrix) + first_row * row_stride +
                         first_k * k_stride;
    from_ = reinterpret_cast<const float2*>(first) + inner_ * (k_major_ ? k_stride : row_stride) +
            outer_ * outer_stride;
    to_ = reinterpret_cast<float2*>(fragment->bytes) + number_offset(k_major_, outer_, inner_);
  }

  __device__ void copy(int k_left) const {
    const int inner_left = (k_major_ ? k_left : rows_) / 2 - inner_;
    const int outer_left = inner_left > 0 ? (k_major_ ? rows_ : k_left) / 2 - outer_ : 0;
    UNROLL
    for (int i = 0; i < 2; ++i) {
      ptx::cp_async_8_zfill(ptx::shared_address(to_ + i * 32), from_ + i * from_step_,
                            i * 4 < outer_left ? 8 : 0);
    }
  }
  __device__ void next() {
    to_ += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 8;
    from_ += next_step_;
  }

 private:
  static constexpr int kStep = Tile::kWarpsPerPanel * 16;
  bool k_major_;
  int rows_, inner_, outer_;
  int64_t from_step_, next_step_;
  const float2* from_;
  float2* to_;
};

// FragmentReader of a complex B, which reads the elements that the lane's row has of B'.
template <class Tile>
class ComplexReader {
 public:
  __device__ ComplexReader(const Fragment* first, const OperandParams& operand)
      : k_major_(operand.k_major), column_(operand.signs, threadIdx.x % 2) {
    const int col = threadIdx.x % 16 / 2, first_k = threadIdx.x / 16 % 2 * 4;
    const auto* data = reinterpret_cast<const float2*>(first->bytes);
    from_[0] =
        data + (k_major_ ? number_offset(true, col, first_k) : number_offset(false, first_k, col));
    from_[1] = data + number_offset(true, col, first_k + 2);
  }
  __device__ void next(float (&x)[8]) {
    float2 z[4];
    if (k_major_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 pair = *reinterpret_cast<const float4*>(from_[i]);
        z[i * 2] = {pair.x, pair.y}, z[i * 2 + 1] = {pair.z, pair.w};
      }
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i) z[i] = from_[0][number_offset(false, i, 0)];
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 numbers = column_.numbers(z[i]);
      x[i * 2] = numbers.x, x[i * 2 + 1] = numbers.y;
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      from_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 8;
    }
  }

 private:
  bool k_major_;
  ComplexColumn column_;
  const float2* from_[2];
};

template <class Tile, bool kComplex>
using Copy = std::conditional_t<kComplex, ComplexCopy<Tile>, FragmentCopy<Tile>>;
template <class Tile, bool kComplex>
using Reader = std::conditional_t<kComplex, ComplexReader<Tile>, FragmentReader<Tile>>;

// Loads this warp's fragments of a panel, from `fragment` on, and returns the range of what its
// lane's row has in them.
template <class Tile, bool kComplex>
__device__ Range load_panel(const OperandParams& operand, const Batch& batch, int64_t matrix,
                            int64_t first_row, int first_k, int k, Fragment* fragment) {
  Copy<Tile, kComplex> copy(operand, batch, matrix, first_row, first_k, fragment);
  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  const int count = static_cast<int>(static_cast<unsigned>(k - first_k + kStep - 1) / kStep);
  const int ahead = min(count, Tile::kAhead);
  Reader<Tile, kComplex> reader(fragment, operand);
  Range range;
  NO_UNROLL
  for (int i = 0; i < count + ahead; ++i) {
    if (i < count) copy.copy(k - first_k - i * kStep);
    __pipeline_commit();
    copy.next();
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
template <class Tile, bool kComplex>
__device__ uint32_t split_panel(const OperandParams& operand, float scale, bool wide, int first_k,
                                int k, Fragment* fragment) {
  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  Reader<Tile, kComplex> reader(fragment, operand);
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
