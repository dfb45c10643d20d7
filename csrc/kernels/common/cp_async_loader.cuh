#pragma once
// Loads by cp.async into a stage of shared memory, of operands with any strides.

#include <algorithm>
#include <cstdint>

#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {

// How adjacent threads read an operand: 128-bit vectors along M or N, single elements along M or N,
// or single elements along K, which transposes the tile.
enum class LoadMode { kVectorized, kMnMajor, kKMajor };

// Loads one operand's (kK, kMN) tiles, one after another along K, to rows of kPitch elements in
// shared memory. T is float, double, or a complex number of two of them; `mn` counts rows of A, or
// columns of B. Each thread copies the same elements of every tile.
template <typename T, int kMN, int kPitch, int kK, int kThreads>
class CpAsyncLoader {
 public:
  // `data` points at element (0, 0) of the first tile; mn_left of its rows or columns are in the
  // matrix. A vector at the edge would be read to its end, so it has to be inside as a whole.
  __device__ CpAsyncLoader(const T* data, int64_t mn_stride, int64_t k_stride, bool vectorized,
                           int64_t mn_left, int thread)
      : mn_stride_(mn_stride), k_stride_(k_stride) {
    vectorized &= mn_left >= kMN || mn_left % kVector == 0;
    mode_ = vectorized             ? LoadMode::kVectorized
            : k_stride < mn_stride ? LoadMode::kKMajor
                                   : LoadMode::kMnMajor;
    const int lanes = mode_ == LoadMode::kVectorized ? kVectors : kMnLanes;
    mn_ = mode_ == LoadMode::kKMajor       ? thread / kKLanes
          : mode_ == LoadMode::kVectorized ? thread % lanes * kVector
                                           : thread % lanes;
    k_ = mode_ == LoadMode::kKMajor ? thread % kKLanes : thread / lanes;
    mn_left_ = static_cast<int>(min(mn_left, int64_t{kMN})) - mn_;
    data_ = data + mn_ * mn_stride + k_ * k_stride;
  }

  // Loads the next tile, with k_left elements along K in the matrix, and zeros beyond.
  __device__ void load(T (&tile)[kK][kPitch], int64_t k_left) {
    const uint32_t to = ptx::shared_address(&tile[0][0]) + (k_ * kPitch + mn_) * kBytes;
    if (k_left >= kK) {
      copy<false>(to, kK);
    } else {
      copy<true>(to, static_cast<int>(k_left) - k_);
    }
    data_ += kK * k_stride_;
  }
  // Loads the next tile, all of it in the matrix.
  __device__ void load_whole(T (&tile)[kK][kPitch]) {
    copy<false, true>(ptx::shared_address(&tile[0][0]) + (k_ * kPitch + mn_) * kBytes, kK);
    data_ += kK * k_stride_;
  }

 private:
  // Threads along M or N, and along K, in each mode.
  static constexpr int kBytes = sizeof(T), kVector = 16 / kBytes;  // elements of a vector
  static constexpr int kVectors = kMN / kVector, kMnLanes = std::min(kMN, kThreads),
                       kKLanes = std::min(kK, 8);
  static_assert(kThreads / kVectors <= kK && kThreads / kMnLanes <= kK);

  template <bool kAtEndOfK, bool kWhole = false>
  __device__ void copy(uint32_t to, int k_left) const {
    switch (mode_) {
      case LoadMode::kVectorized:
        return copy<kAtEndOfK, kWhole, 16, kThreads / kVectors, 1, kMN>(to, k_left);
      case LoadMode::kMnMajor:
        return copy<kAtEndOfK, kWhole, kBytes, kThreads / kMnLanes, kMN / kMnLanes, kMnLanes>(
            to, k_left);
      case LoadMode::kKMajor:
        return copy<kAtEndOfK, kWhole, kBytes, kKLanes, kMN / (kThreads / kKLanes),
                    kThreads / kKLanes>(to, k_left);
    }
  }

  // Copies this thread's elements or vectors: kCountMN of them kStepMN apart, at every kStepK-th k.
  // Outside the matrix it copies zero bytes instead of branching around the copy: ptxas makes the
  // first cp.async of each basic block wait for earlier accesses to shared memory.
  template <bool kAtEndOfK, bool kWhole, int kCopied, int kStepK, int kCountMN, int kStepMN>
  __device__ void copy(uint32_t to, int k_left) const {
    const T* data = data_;
    UNROLL
    for (int i = 0; i < kCountMN; ++i, data += kStepMN * mn_stride_) {
      const int bytes = kWhole || mn_left_ > i * kStepMN ? kCopied : 0;
      const T* from = data;
      UNROLL
      for (int k = 0; k < kK; k += kStepK, from += kStepK * k_stride_) {
        const uint32_t at = to + (k * kPitch + i * kStepMN) * int{sizeof(T)};
        const int inside = kAtEndOfK && k >= k_left ? 0 : bytes;
        ptx::cp_async_zfill<kCopied>(at, from, inside);
      }
    }
  }

  LoadMode mode_;
  int mn_, k_;   // the thread's first element in a tile
  int mn_left_;  // rows or columns of the tile in the matrix, counted from mn_
  const T* data_;
  int64_t mn_stride_, k_stride_;
};

}  // namespace tiled::cuda
