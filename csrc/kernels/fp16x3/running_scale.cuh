#pragma once
// The scale of a column of the long operand, found while its chunk is multiplied.
//
// A column's scale depends on its largest magnitude in a whole chunk, but the column is read once.
// So each stage is split by the scale of all numbers so far. When a larger number comes, the scale
// falls, and the column's sums so far are multiplied by the ratio of the two scales, a power of
// two. That gives the bits of the final scale, as long as all fp16 parts so far are normal numbers
// or zero by both scales. If one is not, the work tile fails: it is multiplied a second time,
// with the scale that is known by then. docs/guide/numerics.md has the proof.

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda {

// A lane's elements of a column in vectors of four, and one of their fp16 parts in pairs.
template <int kVectors>
using Float32X4 = float[kVectors][4];
template <int kVectors>
using Fp16X4 = uint32_t[kVectors][2];

template <int kVectors>
__device__ void split_x4(const float (&x)[kVectors][4], float scale, uint32_t (&hi)[kVectors][2],
                         uint32_t (&lo)[kVectors][2]) {
  UNROLL
  for (int i = 0; i < kVectors * 2; ++i) {
    const float* pair = &x[i / 2][i % 2 * 2];
    ptx::split_x2(pair[0] * scale, pair[1] * scale, hi[i / 2][i % 2], lo[i / 2][i % 2]);
  }
}

template <int kVectors>
__device__ uint32_t largest_magnitude(const float (&x)[kVectors][4]) {
  uint32_t largest = 0;
  UNROLL
  for (int i = 0; i < kVectors * 4; ++i) {
    largest = max(largest, fp16x3::magnitude_bits(x[i / 4][i % 4]));
  }
  return largest;
}

// The range of a lane's fp16 parts in a stage.
class StageRange {
 public:
  template <int kVectors>
  __device__ void add(const uint32_t (&hi)[kVectors][2], const uint32_t (&lo)[kVectors][2]) {
    UNROLL
    for (int i = 0; i < kVectors * 2; ++i) {
      const __half2 x2 = __habs2(reinterpret_cast<const __half2&>(hi[i / 2][i % 2]));
      largest_ = __hmax2(largest_, x2), least_ = __hmin2(least_, x2);
      least_lo_ = __viaddmin_u16x2(lo[i / 2][i % 2] & 0x7fff7fff, 0xffffffffu, least_lo_);
    }
  }
  // Returns whether the stage may need a lower scale.
  __device__ bool overflows() const {
    return __hge2_mask(largest_, __float2half2_rn(0x1p15f)) != 0;
  }
  // Returns whether a lo part is not 0.
  __device__ bool has_lo() const { return least_lo_ != (kZero << 16 | kZero); }
  __device__ bool has_small() const { return __hlt2_mask(least_, __float2half2_rn(kSmall)) != 0; }

 private:
  template <int kLanes>
  friend class RunningScale;
  static constexpr float kSmall = 0x1p-8f;
  static constexpr uint32_t kZero = 0xfffe;
  __half2 largest_{}, least_ = __float2half2_rn(float_of(0x7f800000));
  // The bits less 1 of the least lo parts, of even and odd elements; kZero if all are zero.
  uint32_t least_lo_ = kZero << 16 | kZero;
};

// The scale of a column that kLanes adjacent lanes hold together.
template <int kLanes>
class RunningScale {
 public:
  __device__ float scale() const { return scale_; }
  // Returns whether an fp16 part was not normal by a scale that was found later. The work tile must
  // then be multiplied once more, after restart(); the scale is final by then.
  __device__ bool failed() const { return least_former_lo_ < 0; }
  __device__ void restart() { least_former_lo_ = float_of(0x7f800000), facts_ &= kBits; }

  // Lowers the scale if a magnitude as large as this needs it. The whole warp calls it. Returns
  // the factor for the sums so far.
  __device__ float lower(uint32_t largest) {
    UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    }
    if (!(float_of(largest) * scale_ >= 0x1p15f)) return 1.0f;
    const float inverse_scale = fp16x3::inverse_scale(magnitude_of_scale(), 0, /*coarse=*/false);
    const uint32_t lo_bits = min(least_lo_ & 0xffff, least_lo_ >> 16);
    if (lo_bits < 0x7fff) {
      const float lo = __half2float(__ushort_as_half(static_cast<uint16_t>(lo_bits + 1)));
      least_former_lo_ = fminf(least_former_lo_, lo * inverse_scale);
    }
    // Elements of earlier stages that were not added one by one have hi parts of at least kSmall.
    if (lo_bits <= StageRange::kZero && scale_ != kLargestScale) {
      least_former_lo_ = fminf(least_former_lo_, StageRange::kSmall / 2 * inverse_scale);
    }
    least_lo_ = ~0u;
    scale_ = fp16x3::scale(largest);
    const float least = float_of(least_magnitude());
    const bool hi_failed = least != 0 && least * scale_ < 0x1p-13f;
    if (hi_failed || least_former_lo_ * scale_ < 0x1p-14f) least_former_lo_ = -1;
    return scale_ * inverse_scale;
  }
  // Adds bits of a stage's elements, which may be added repeatedly.
  template <int kVectors>
  __device__ void add_bits(const float (&x)[kVectors][4]) {
    UNROLL
    for (const float(&x4)[4] : x) {
      facts_ |= (bits_of(x4[0]) | bits_of(x4[1]) | bits_of(x4[2]) | bits_of(x4[3])) & kBits;
    }
  }
  // Adds a stage that was split by the current scale, after its bits. Returns whether its elements
  // must be added one by one, too.
  __device__ bool add(const StageRange& range) {
    least_lo_ = __vminu2(least_lo_, range.least_lo_);
    return range.has_small() || scale_ == kLargestScale || is_coarse();
  }
  template <int kVectors>
  __device__ void add(const float (&x)[kVectors][4]) {
    UNROLL
    for (int i = 0; i < kVectors * 4; ++i) {
      const float each = x[i / 4][i % 4];
      least_ = min(least_, 2 * bits_of(each) - 1);
      if (fp16x3::is_small(each, each * scale_)) facts_ += kSmallNumber;
    }
  }
  // fp16x3::inverse_scale() of the column, once the chunk has been added. The whole warp calls it.
  __device__ float inverse_scale() const {
    uint32_t largest = magnitude_of_scale(), small_numbers = facts_ / kSmallNumber;
    bool zero = scale_ == kLargestScale && least_magnitude() == 0, coarse = is_coarse();
    UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      small_numbers += __shfl_xor_sync(~0u, small_numbers, lanes);
      zero &= __shfl_xor_sync(~0u, zero, lanes);
      coarse &= __shfl_xor_sync(~0u, coarse, lanes);
    }
    return fp16x3::inverse_scale(zero ? 0 : largest, small_numbers, coarse);
  }

 private:
  __device__ uint32_t least_magnitude() const { return (least_ + 1) / 2; }
  // Returns whether the lane's numbers so far, or the zeros that it has, may be of a coarse
  // column. If not, more numbers and a lower scale change nothing. While they may, all numbers are
  // added one by one, so that the least is known.
  __device__ bool is_coarse() const {
    const uint32_t least = least_magnitude();
    return fp16x3::is_coarse(facts_, least == 0 ? float_of(0x7f800000) : float_of(least) * scale_);
  }
  // The bits of a magnitude that has this scale, since the scale makes it 2^14.
  __device__ uint32_t magnitude_of_scale() const {
    return isnan(scale_) ? 0x7f800000 : ((127u + 127 + 14) << 23) - bits_of(scale_);
  }

  static constexpr float kLargestScale = 0x1p127f;
  float scale_ = kLargestScale;  // a column keeps it until its first number that is not tiny
  // Twice the least magnitude's bits, less 1, so that zero is the largest: of elements added one by
  // one.
  uint32_t least_ = ~0u;
  // The last 16 bits are the bitwise or of all elements. The first 16 count the small numbers among
  // the elements added one by one, by the scale of the time. If it falls later and some were
  // counted, the work tile fails.
  static constexpr uint32_t kSmallNumber = 1u << 16, kBits = kSmallNumber - 1;
  uint32_t facts_ = 0;
  uint32_t least_lo_ = ~0u;  // StageRange::least_lo_ by the current scale; ~0 before a first stage
  // The least lo part by former scales, descaled; negative if the work tile has failed.
  float least_former_lo_ = float_of(0x7f800000);
};

}  // namespace tiled::cuda
