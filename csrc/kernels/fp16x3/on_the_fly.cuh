#pragma once
// The GPU's side of splitting in flight (fp16x3_in_flight.h): the parts of the work, and the scales
// of columns of which only the beginning is known.

#include <cuda_fp16.h>

#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda {

// A stage is kStageK of K of a unit's columns.
inline constexpr int kK16s = 4, kStageK = kK16s * 16;

struct Stretch {
  unsigned matrix, chunk;  // matrix: of the launch
  int first_row, rows;     // of x
  int length;              // along K

  __device__ Stretch(const InFlight& work, unsigned index)
      : matrix(index / work.panels / work.chunks),
        chunk(index / work.panels % work.chunks),
        first_row(static_cast<int>(index % work.panels) * work.panel_rows),
        rows(static_cast<int>(min(work.x_count - first_row, int64_t{work.panel_rows}))),
        length(static_cast<int>(min(work.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}))) {}
};

// A block's part of the units of a launch.
struct Part {
  unsigned first, end;

  __device__ explicit Part(const InFlight& work) {
    const uint64_t units = uint64_t{work.stretches()} * work.units;
    first = static_cast<unsigned>(units * blockIdx.x / gridDim.x);
    end = static_cast<unsigned>(units * (blockIdx.x + 1) / gridDim.x);
  }
};

// Where the sums of a stretch lie: of its first row, and of the first column of all.
__device__ inline float* sums_of(const InFlight& work, const Stretch& stretch) {
  const int64_t group = int64_t{stretch.matrix} * work.chunks + stretch.chunk;
  return work.sums + (group * work.x_count + stretch.first_row) * work.sums_stride();
}

// What a lane has of a column, by fours; and halves of it, in pairs.
template <int kCount>
using Fours = float[kCount][4];
template <int kCount>
using Halves = uint32_t[kCount][2];

template <int kCount>
__device__ void split(const float (&w)[kCount][4], float scale, uint32_t (&hi)[kCount][2],
                      uint32_t (&lo)[kCount][2]) {
  UNROLL
  for (int i = 0; i < kCount * 2; ++i) {
    const float* two = &w[i / 2][i % 2 * 2];
    ptx::split_x2(two[0] * scale, two[1] * scale, hi[i / 2][i % 2], lo[i / 2][i % 2]);
  }
}

// The range of a column's halves in a stage, as a lane has them.
class Extent {
 public:
  template <int kCount>
  __device__ void add(const uint32_t (&hi)[kCount][2], const uint32_t (&lo)[kCount][2]) {
    UNROLL
    for (int i = 0; i < kCount * 2; ++i) {
      const __half2 two = __habs2(reinterpret_cast<const __half2&>(hi[i / 2][i % 2]));
      largest_ = __hmax2(largest_, two), least_ = __hmin2(least_, two);
      least_lo_ = __viaddmin_u16x2(lo[i / 2][i % 2] & 0x7fff7fff, 0xffffffffu, least_lo_);
    }
  }
  // Whether numbers with these halves may not fit the scale.
  __device__ bool outgrows() const { return __hge2_mask(largest_, __float2half2_rn(0x1p15f)) != 0; }
  __device__ bool small() const { return __hlt2_mask(least_, __float2half2_rn(kSmall)) != 0; }

 private:
  template <int kLanes>
  friend class Column;
  static constexpr float kSmall = 0x1p-8f;
  static constexpr uint32_t kZero = 0xfffe;
  __half2 largest_{}, least_ = __float2half2_rn(float_of(0x7f800000));
  uint32_t least_lo_ = kZero << 16 | kZero;  // two of 16 bits, less 1, or this
};

// A column of which a lane sees stage after stage, as do the kLanes - 1 next to it. Its scale
// depends on all of a chunk; until that is seen, it is the scale of what has been, and falls where
// more comes that is larger. Sums are scaled then, too. A power of two changes no other bits of
// them, as long as all halves that they were made of are normal, or zero, by both scales.
template <int kLanes>
class Column {
 public:
  __device__ float scale() const { return scale_; }
  // Whether a half was not normal by a scale that was found later: the sums are to be computed
  // again, which goes well, since the scale is known by then.
  __device__ bool failed() const { return least_lo_ever_ < 0; }
  __device__ void begin_again() { least_lo_ever_ = float_of(0x7f800000); }

  // Finds the scale of all before and numbers as large as this; the whole warp. Returns what the
  // sums of all before are to be scaled by.
  __device__ float grow(uint32_t largest) {
    UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    }
    if (!(float_of(largest) * scale_ >= 0x1p15f)) return 1.0f;
    const float undo = fp16x3::inverse_scale(largest_of_scale(), false);
    const uint32_t lo_bits = min(least_lo_ & 0xffff, least_lo_ >> 16);
    if (lo_bits < 0x7fff) {
      const float lo = __half2float(__ushort_as_half(static_cast<uint16_t>(lo_bits + 1)));
      least_lo_ever_ = fminf(least_lo_ever_, lo * undo);
    }
    // Not all numbers of former stages were seen by themselves: they were kSmall or more.
    if (lo_bits <= Extent::kZero && scale_ != kLargestScale) {
      least_lo_ever_ = fminf(least_lo_ever_, Extent::kSmall / 2 * undo);
    }
    least_lo_ = ~0u;
    scale_ = fp16x3::scale(largest);
    const float least = float_of(least_magnitude());
    const bool hi_failed = least != 0 && least * scale_ < 0x1p-13f;
    if (hi_failed || least_lo_ever_ * scale_ < 0x1p-14f) least_lo_ever_ = -1;
    return scale_ * undo;
  }
  // A stage, split by the scale as it is. Returns whether its numbers are to be seen, too.
  __device__ bool add(const Extent& extent) {
    least_lo_ = __vminu2(least_lo_, extent.least_lo_);
    return extent.small() || scale_ == kLargestScale;
  }
  template <int kCount>
  __device__ void add(const float (&w)[kCount][4]) {
    UNROLL
    for (int i = 0; i < kCount * 4; ++i) {
      least_ = min(least_, 2 * bits_of(w[i / 4][i % 4]) - 1);
    }
  }
  // fp16x3::inverse_scale(), when all has been added; the whole warp.
  __device__ float undo() const {
    Range range{largest_of_scale(), least_magnitude() - 1};
    UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) range.add_lane(lanes);
    return range.inverse_scale(scale_);
  }

 private:
  __device__ uint32_t least_magnitude() const { return (least_ + 1) / 2; }
  // Some magnitude that has this scale: 2^14 by it.
  __device__ uint32_t largest_of_scale() const {
    return isnan(scale_) ? 0x7f800000 : ((127u + 127 + 14) << 23) - bits_of(scale_);
  }

  static constexpr float kLargestScale = 0x1p127f;
  float scale_ = kLargestScale;  // as long as all have been zero, or nearly
  // Of numbers that were seen: twice the least magnitude's bits, less 1, so that zero is the
  // largest. Of all lo halves by this scale: as in Extent, or more where there was no stage. And of
  // those by former scales, undone: negative where one failed.
  uint32_t least_ = ~0u, least_lo_ = ~0u;
  float least_lo_ever_ = float_of(0x7f800000);
};

template <int kCount>
__device__ uint32_t largest_of(const float (&w)[kCount][4]) {
  uint32_t largest = 0;
  UNROLL
  for (int i = 0; i < kCount * 4; ++i) {
    largest = max(largest, fp16x3::magnitude_bits(w[i / 4][i % 4]));
  }
  return largest;
}

}  // namespace tiled::cuda
