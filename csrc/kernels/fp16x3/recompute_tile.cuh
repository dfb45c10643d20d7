#pragma once
// recompute: sums a chunk of a warp tile's flagged rows, for warp tiles with many flagged elements.

#include <cuda_pipeline.h>

#include <algorithm>
#include <cstdint>

#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda::recompute {

// Each warpgroup of a block sums a chunk of its own.
struct Tile {
  static constexpr int kM = RecomputeList::kRows, kN = RecomputeList::kCols, kK = 16;
  static constexpr int kWarpgroups = 4, kWarpgroup = 128;
  static constexpr int kThreads = kWarpgroups * kWarpgroup, kWarps = kThreads / 32;
  static constexpr int kRowsPerWarpgroup = kM / kWarpgroups;  // where chunks are added
  static constexpr int kStages = 4;
  static_assert(kChunk % kK == 0, "a chunk is a whole number of steps");
  static_assert(kWarpgroup == kN, "where chunks are added, a thread has one column");
};

// How kRows operand rows (A's rows or B's columns) by Tile::kK lie in shared memory: as in global
// memory, where that allows 128-bit copies. The pitch is padded, which puts a column's elements
// into different banks.
template <int kRows, bool kKMajor>
struct StepLayout {
  static constexpr int kPitch = (kKMajor ? Tile::kK : kRows) + 4;
  static constexpr int kSize = (kKMajor ? kRows : Tile::kK) * kPitch;
  static constexpr int kRowStride = kKMajor ? kPitch : 1, kKStride = kKMajor ? 1 : kPitch;
  __device__ static int at(int row, int k) { return row * kRowStride + k * kKStride; }
};
using LayoutA = StepLayout<Tile::kM, true>;
template <bool kKMajor>
using LayoutB = StepLayout<Tile::kN, kKMajor>;

struct Smem {
  static constexpr int kSizeB = std::max(LayoutB<true>::kSize, LayoutB<false>::kSize);
  alignas(16) float a[Tile::kWarpgroups][Tile::kStages][LayoutA::kSize];
  alignas(16) float b[Tile::kWarpgroups][Tile::kStages][kSizeB];
  float sums[Tile::kWarpgroups][Tile::kM][Tile::kN];  // of a chunk each
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

// Which operands allow 128-bit copies in the direction of their layout.
struct Vectorized {
  bool a, b;
};

// Loads steps of (kRows, Tile::kK), one after another along K, by the threads of a warpgroup.
// Adjacent threads follow the layout. Elements outside the matrix are neither read nor written.
template <int kRows, bool kKMajor>
class StepLoader {
 public:
  __device__ StepLoader(const float* data, int64_t row_stride, int64_t k_stride, int64_t rows_left,
                        bool vectorized)
      : data_(data),
        row_stride_(row_stride),
        k_stride_(k_stride),
        rows_left_(static_cast<int>(min(rows_left, int64_t{kRows}))),
        vectorized_(vectorized) {}

  // Loads the next step, k_left of which lie in the matrix.
  __device__ void load(float* smem, int k_left) {
    if (vectorized_ && rows_left_ == kRows && k_left >= Tile::kK) {
      load_vectors<4>(smem, k_left);
    } else {
      load_vectors<1>(smem, k_left);
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  using Layout = StepLayout<kRows, kKMajor>;

  // The contiguous side of the layout is the inner one.
  template <int kWidth>
  __device__ void load_vectors(float* smem, int k_left) const {
    constexpr int kInner = (kKMajor ? Tile::kK : kRows) / kWidth;  // in vectors
    constexpr int kOuter = kKMajor ? kRows : Tile::kK;
    constexpr int kOuterStep = Tile::kWarpgroup / kInner;
    static_assert(Tile::kWarpgroup % kInner == 0);
    const int thread = threadIdx.x % Tile::kWarpgroup;
    const int inner = thread % kInner * kWidth;
    const int64_t outer_stride = kKMajor ? row_stride_ : k_stride_;
    const float* from =
        data_ + inner * (kKMajor ? k_stride_ : row_stride_) + thread / kInner * outer_stride;
    UNROLL
    for (int i = 0; i < ceil_div(kOuter, kOuterStep); ++i) {
      const int outer = thread / kInner + i * kOuterStep;
      const int row = kKMajor ? outer : inner, k = kKMajor ? inner : outer;
      if (row < rows_left_ && k < k_left && outer < kOuter) {
        __pipeline_memcpy_async(smem + Layout::at(row, k), from, kWidth * sizeof(float));
      }
      from += kOuterStep * outer_stride;
    }
  }

  const float* data_;
  int64_t row_stride_, k_stride_;
  int rows_left_;
  bool vectorized_;
};

// Sums a chunk of the rows whose bit in `rows` is set, to the warpgroup's smem.sums. A thread takes
// two columns and half of the rows, whose accumulators stay in shared memory.
template <bool kBKMajor>
__device__ void sum_chunk(const Problem& p, const RecomputeList::WarpTile& tile, int64_t chunk,
                          unsigned rows, Vectorized vectorized, Smem& smem) {
  constexpr int kCols = 2, kColStep = Tile::kN / kCols, kRows = Tile::kM / 2;  // of a thread
  const int warpgroup = threadIdx.x / Tile::kWarpgroup;
  const int col = threadIdx.x % kColStep;
  const int64_t begin = chunk * kChunk;
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                   tile.row * p.a.row_stride + begin * p.a.col_stride;
  const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                   tile.col * p.b.col_stride + begin * p.b.row_stride;
  StepLoader<Tile::kM, true> a_loader(a, p.a.row_stride, p.a.col_stride, p.m - tile.row,
                                      vectorized.a);
  StepLoader<Tile::kN, kBKMajor> b_loader(b, p.b.col_stride, p.b.row_stride, p.n - tile.col,
                                          vectorized.b);
  const int length = static_cast<int>(min(p.k - begin, int64_t{kChunk}));
  int loaded = 0, to_fill = 0;
  auto load_step = [&] {
    if (loaded < length) {
      a_loader.load(smem.a[warpgroup][to_fill], length - loaded);
      b_loader.load(smem.b[warpgroup][to_fill], length - loaded);
    }
    __pipeline_commit();
    loaded += Tile::kK;
    to_fill = (to_fill + 1) % Tile::kStages;
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) load_step();

  float(&sums)[Tile::kM][Tile::kN] = smem.sums[warpgroup];
  const unsigned own_rows = rows & ((1u << kRows) - 1)
                                       << threadIdx.x % Tile::kWarpgroup / kColStep * kRows;
  for (unsigned left = own_rows; left != 0; left &= left - 1) {
    UNROLL
    for (int j = 0; j < kCols; ++j) sums[__ffs(left) - 1][col + j * kColStep] = 0;
  }
  int stage = 0;
  for (int step = 0; step < length; step += Tile::kK) {
    __pipeline_wait_prior(Tile::kStages - 2);
    // This step has come, and all threads have read the step before, whose stage is filled next.
    ptx::named_barrier_sync(1 + warpgroup, Tile::kWarpgroup);
    load_step();
    // Multiplies kCount of K from `k` on.
    auto multiply = [&]<int kCount>(int k) {
      const float *a_smem = smem.a[warpgroup][stage], *b_smem = smem.b[warpgroup][stage];
      float b_frag[kCols][kCount];
      UNROLL
      for (int j = 0; j < kCols; ++j) {
        UNROLL
        for (int i = 0; i < kCount; ++i) {
          b_frag[j][i] = b_smem[LayoutB<kBKMajor>::at(col + j * kColStep, k + i)];
        }
      }
      for (unsigned left = own_rows; left != 0; left &= left - 1) {
        const int row = __ffs(left) - 1;
        float acc[kCols];
        UNROLL
        for (int j = 0; j < kCols; ++j) acc[j] = sums[row][col + j * kColStep];
        UNROLL
        for (int i = 0; i < kCount; ++i) {
          const float a_frag = a_smem[LayoutA::at(row, k + i)];
          UNROLL
          for (int j = 0; j < kCols; ++j) acc[j] = fused_multiply_add(a_frag, b_frag[j][i], acc[j]);
        }
        UNROLL
        for (int j = 0; j < kCols; ++j) sums[row][col + j * kColStep] = acc[j];
      }
    };
    if (length - step >= Tile::kK) {
      multiply.template operator()<Tile::kK>(0);
    } else {
      NO_UNROLL
      for (int k = 0; k < length - step; ++k) multiply.template operator()<1>(k);
    }
    stage = (stage + 1) % Tile::kStages;
  }
}

}  // namespace tiled::cuda::recompute
