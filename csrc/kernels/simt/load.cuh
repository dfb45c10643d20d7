#pragma once
// How threads of the rungs on CUDA cores copy operands that no copy engine can, as they lie.

#include <algorithm>
#include <cstdint>

#include "kernels/common/launch.h"
#include "ptx/cp_async.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {

// How an operand is copied: by fours along C's side, or by ones, whose neighbours lie there or
// along K.
enum class Way { kFours, kAlongSide, kAlongK };

// Copies tiles of (kK, kSide), `side` being A's rows or B's columns, to (kK, kPitch) in shared
// memory: each thread some elements, at the same places of every tile.
template <int kSide, int kPitch, int kK, int kThreads>
class Loader {
 public:
  // `data` is the first tile's first element, and side_left are in the matrix from there on. Fours
  // that only begin there would be read to their end.
  __device__ Loader(const float* data, int64_t side_stride, int64_t k_stride, bool by_fours,
                    int64_t side_left, int thread)
      : side_stride_(side_stride), k_stride_(k_stride) {
    by_fours &= side_left >= kSide || side_left % 4 == 0;
    way_ = by_fours ? Way::kFours : k_stride < side_stride ? Way::kAlongK : Way::kAlongSide;
    const int lanes = way_ == Way::kFours ? kFours : kSideLanes;
    side_ = way_ == Way::kAlongK  ? thread / kKLanes
            : way_ == Way::kFours ? thread % lanes * 4
                                  : thread % lanes;
    k_ = way_ == Way::kAlongK ? thread % kKLanes : thread / lanes;
    left_ = static_cast<int>(min(side_left, int64_t{kSide})) - side_;
    data_ = data + side_ * side_stride + k_ * k_stride;
  }

  // Copies the next tile, as far as it is in the matrix, of which k_left are.
  __device__ void load(float (&tile)[kK][kPitch], int64_t k_left) {
    const uint32_t to = ptx::shared_address(&tile[0][0]) + (k_ * kPitch + side_) * 4;
    if (k_left >= kK) {
      copy<false>(to, kK);
    } else {
      copy<true>(to, static_cast<int>(k_left) - k_);
    }
    data_ += kK * k_stride_;
  }
  // Likewise, where all of the tile is in the matrix.
  __device__ void load_whole(float (&tile)[kK][kPitch]) {
    copy<false, true>(ptx::shared_address(&tile[0][0]) + (k_ * kPitch + side_) * 4, kK);
    data_ += kK * k_stride_;
  }

 private:
  static constexpr int kFours = kSide / 4, kSideLanes = std::min(kSide, kThreads), kKLanes = 8;
  static_assert(kThreads / kFours <= kK && kThreads / kSideLanes <= kK && kKLanes <= kK);

  template <bool kEnds, bool kWhole = false>
  __device__ void copy(uint32_t to, int k_left) const {
    switch (way_) {
      case Way::kFours: return copy<kEnds, kWhole, 16, kThreads / kFours, 1, kSide>(to, k_left);
      case Way::kAlongSide:
        return copy<kEnds, kWhole, 4, kThreads / kSideLanes, kSide / kSideLanes, kSideLanes>(
            to, k_left);
      case Way::kAlongK:
        return copy<kEnds, kWhole, 4, kKLanes, kSide / (kThreads / kKLanes), kThreads / kKLanes>(
            to, k_left);
    }
  }

  // Elements, or fours, that are kStepK and kStepSide apart. Nothing is skipped, but of what is
  // outside no byte is read: ptxas has each copy after a branch wait for shared memory.
  template <bool kEnds, bool kWhole, int kBytes, int kStepK, int kCountSide, int kStepSide>
  __device__ void copy(uint32_t to, int k_left) const {
    const float* data = data_;
    UNROLL
    for (int i = 0; i < kCountSide; ++i, data += kStepSide * side_stride_) {
      const int bytes = kWhole || left_ > i * kStepSide ? kBytes : 0;
      const float* from = data;
      UNROLL
      for (int k = 0; k < kK; k += kStepK, from += kStepK * k_stride_) {
        const uint32_t at = to + (k * kPitch + i * kStepSide) * 4;
        const int inside = kEnds && k >= k_left ? 0 : bytes;
        kBytes == 16 ? ptx::cp_async_16_zfill(at, from, inside)
                     : ptx::cp_async_4_zfill(at, from, inside);
      }
    }
  }

  Way way_;
  int side_, k_;  // of the thread's first element in the tile
  int left_;      // of the side, in the tile, from there on
  const float* data_;
  int64_t side_stride_, k_stride_;
};

}  // namespace tiled::cuda
