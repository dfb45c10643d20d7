#pragma once
// The GPU's side of splitting in flight (fp16x3_in_flight.h): copies of w, stage by stage, and the
// scales of columns of which only the beginning is known.

#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

#include "device/copy_async.cuh"
#include "device/halves.cuh"
#include "device/shared.cuh"
#include "kernels/fp16x3_in_flight.h"
#include "kernels/fp16x3_range.cuh"
#include "launch.h"

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

// Which of each 16 of K a lane of a quad has, as mma.sync and wgmma see it: 2q, 2q + 1, 2q + 8 and
// 2q + 9, where q = lane % 4. A sum of 16 products does not depend on their order: where x comes
// likewise, a lane may have 4q .. 4q + 3 instead.
enum class Lanes { kStandard, kFours };

// A stage of kCols columns of w in shared memory, by columns or by k, as w does. Neighbours in
// memory stay so by fours, which change places so that no two lanes of read() meet in a bank.
template <bool kAlongK_, int kCols_, Lanes kLanes_>
struct Stage {
  static constexpr bool kAlongK = kAlongK_;
  static constexpr int kCols = kCols_, kBytes = kCols * kStageK * 4;
  static constexpr Lanes kLanes = kLanes_;

  // In bytes.
  static __device__ constexpr int place(int col, int k) {
    constexpr bool kFours = kLanes == Lanes::kFours;
    return kAlongK
               ? (col * kStageK + (k / 4 ^ (kFours ? col % 2 * 4 : col % 4 * 2)) * 4 + k % 4) * 4
               : (k * kCols + (col / 4 ^ k / (kFours ? 4 : 2) % 4 * 2) * 4 + col % 4) * 4;
  }
};

// Copies a thread's part of its team's units of w, stage by stage; zeros for what is beyond the
// end. The caller commits each stage, or has a barrier wait for it.
template <class Stage, int kThreads>
class Loader {
  static constexpr bool kAlongK = Stage::kAlongK;
  static constexpr int kCols = Stage::kCols;

 public:
  // `ring`: the team's stages.
  __device__ Loader(const InFlight& work, const uint8_t* ring)
      : ring_(device::shared_address(ring)) {
    const int each = work.w_in_fours ? 4 : 1;  // copied at a time
    constexpr int kNear = kAlongK ? kStageK : kCols;
    const int thread = threadIdx.x % kThreads;
    const int near = thread * each % kNear, far = thread * each / kNear;
    col_ = kAlongK ? far : near, k_ = kAlongK ? near : far;
    first_ = Stage::place(col_, k_);
    // Where there are several panels, w is read again for the next.
    policy_ = work.panels == 1 ? device::read_once() : device::read_again();
    step_ = (kAlongK ? work.w.row_stride : work.w.col_stride) * (kThreads * each / kNear);
  }

  // From a unit on, and from then to each `teams`-th.
  __device__ void begin(const InFlight& work, unsigned unit, unsigned end, int teams) {
    unit_ = unit, left_ = 0, teams_ = teams;
    if (unit >= end) return;
    const Stretch stretch(work, unit / work.units);
    const int64_t first_col = (work.first_unit + unit % work.units) * kCols;
    const Matrix& w = work.w;
    from_ = static_cast<const float*>(w.data) +
            batch_offset(work.p.batch, w, work.first_matrix + stretch.matrix) +
            (first_col + col_) * w.row_stride +
            (int64_t{stretch.chunk} * kChunk + k_) * w.col_stride;
    cols_ = static_cast<int>(min(work.w_count - first_col, int64_t{kCols}));
    left_ = stretch.length;
  }

  // The next stage, where there is one.
  __device__ void load(const InFlight& work, unsigned end, int stage) {
    if (left_ <= 0) return;
    const uint32_t to = ring_ + stage * Stage::kBytes;
    const float* from = from_;
    if (work.w_in_fours) {
      constexpr int kFours = Stage::kBytes / 16 / kThreads;
      constexpr int kBetween = Stage::kBytes / kFours;
      constexpr int kApart = (kAlongK ? kCols : kStageK) / kFours;
      // Where a thread's fours lie: at equal distances, or else each where its place is.
      constexpr bool kEven = kBetween == Stage::place(kAlongK ? kApart : 0, kAlongK ? 0 : kApart);
      auto to_four = [&](int i) {
        return to + (kEven ? first_ + i * kBetween
                           : Stage::place(col_ + (kAlongK ? i * kApart : 0),
                                          k_ + (kAlongK ? 0 : i * kApart)));
      };
      if (cols_ == kCols && left_ >= kStageK) {
        UNROLL
        for (int i = 0; i < kFours; ++i, from += step_) {
          device::copy_whole_16(to_four(i), from, policy_);
        }
      } else {
        const int bytes = max(min(kAlongK ? left_ - k_ : cols_ - col_, 4), 0) * 4;
        const int far_left = kAlongK ? cols_ - col_ : left_ - k_;
        UNROLL
        for (int i = 0; i < kFours; ++i, from += step_) {
          device::copy_16(to_four(i), from, i * kApart < far_left ? bytes : 0);
        }
      }
    } else {
      constexpr int kElements = Stage::kBytes / 4 / kThreads;
      constexpr int kApart = (kAlongK ? kCols : kStageK) / kElements;
      NO_UNROLL
      for (int i = 0; i < kElements; ++i, from += step_) {
        const int col = col_ + (kAlongK ? i * kApart : 0), k = k_ + (kAlongK ? 0 : i * kApart);
        device::copy_4(to + Stage::place(col, k), from, col < cols_ && k < left_ ? 4 : 0);
      }
    }
    from_ += kStageK * work.w.col_stride;
    left_ -= kStageK;
    if (left_ <= 0) begin(work, unit_ + teams_, end, teams_);
  }

 private:
  uint32_t ring_;
  int col_, k_, first_;  // the thread's first element of a stage, and its place
  int64_t step_;         // from there to its next
  uint64_t policy_;
  const float* from_ = nullptr;
  int cols_ = 0, left_ = 0;  // of the unit; along K
  unsigned unit_ = 0;
  int teams_ = 0;
};

// What a lane has of a column, of each 16 of kCount * 16 of K; and halves of it, in pairs.
template <int kCount>
using Fours = float[kCount][4];
template <int kCount>
using Halves = uint32_t[kCount][2];

// From the kFirst-th 16 of K of a stage on.
template <class Stage, int kFirst, int kCount>
__device__ void read(const uint8_t* stage, int col, float (&w)[kCount][4]) {
  const int q = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Stage::kAlongK && Stage::kLanes == Lanes::kFours) {
      const float4 four =
          *reinterpret_cast<const float4*>(stage + Stage::place(col, (kFirst + i) * 16 + q * 4));
      w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
    } else if constexpr (Stage::kAlongK) {
      UNROLL
      for (int j = 0; j < 4; j += 2) {
        const int at = Stage::place(col, (kFirst + i) * 16 + j * 4 + q * 2);
        const float2 two = *reinterpret_cast<const float2*>(stage + at);
        w[i][j] = two.x, w[i][j + 1] = two.y;
      }
    } else {
      constexpr bool kFours = Stage::kLanes == Lanes::kFours;
      const uint8_t* at =
          stage + Stage::place(col, q * (kFours ? 4 : 2)) + Stage::place(0, (kFirst + i) * 16);
      UNROLL
      for (int j = 0; j < 4; ++j) {
        const int k = kFours ? j : j % 2 + j / 2 * 8;
        w[i][j] = *reinterpret_cast<const float*>(at + k * (Stage::kCols * 4));
      }
    }
  }
}

template <int kCount>
__device__ void split(const float (&w)[kCount][4], float scale, uint32_t (&hi)[kCount][2],
                      uint32_t (&lo)[kCount][2]) {
  UNROLL
  for (int i = 0; i < kCount * 2; ++i) {
    const float* two = &w[i / 2][i % 2 * 2];
    device::split_two(two[0] * scale, two[1] * scale, hi[i / 2][i % 2], lo[i / 2][i % 2]);
  }
}

// A column of which a lane sees stage after stage, as do the three next to it. Its scale depends on
// all of a chunk; until that is seen, it is the scale of what has been, and falls where more comes
// that is larger. Sums are scaled then, too. A power of two changes no other bits of them, as long
// as all halves that they were made of are normal, or zero, by both scales.
class Column {
 public:
  __device__ float scale() const { return scale_; }
  // Whether numbers with these halves may not fit the scale.
  template <int kCount>
  __device__ static bool outgrown_by(const uint32_t (&hi)[kCount][2]) {
    __half2 largest[2] = {};
    UNROLL
    for (int i = 0; i < kCount * 2; ++i) {
      const auto& two = reinterpret_cast<const __half2&>(hi[i / 2][i % 2]);
      largest[i % 2] = __hmax2(largest[i % 2], __habs2(two));
    }
    return __hge2_mask(__hmax2(largest[0], largest[1]), __float2half2_rn(0x1p15f)) != 0;
  }
  // Whether a half was not normal by a scale that was found later: the sums are to be computed
  // again, which goes well, since the scale is known by then.
  __device__ bool failed() const { return least_lo_ever_ < 0; }
  __device__ void begin_again() { least_lo_ever_ = float_of(0x7f800000); }

  // Finds the scale of all before and these; the whole warp. Returns what the sums of all before
  // are to be scaled by.
  template <int kCount>
  __device__ float grow(const float (&w)[kCount][4]) {
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < kCount * 4; ++i) {
      largest = max(largest, fp16x3::magnitude_bits(w[i / 4][i % 4]));
    }
    UNROLL
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    }
    if (!(float_of(largest) * scale_ >= 0x1p15f)) return 1.0f;
    const float undo = fp16x3::undo_scale(largest_of_scale(), false);
    const uint32_t lo_bits = (min(least_lo_ & 0xffff, least_lo_ >> 16) + 1) & 0xffff;
    if (lo_bits != 0) {
      const float lo = __half2float(__ushort_as_half(static_cast<uint16_t>(lo_bits)));
      least_lo_ever_ = fminf(least_lo_ever_, lo * undo);
    }
    least_lo_ = ~0u;
    scale_ = fp16x3::scale(largest);
    constexpr float kNormal = 0x1p-13f;  // twice the least half that is
    const float least = float_of(least_magnitude());
    if ((least != 0 && least * scale_ < kNormal) || least_lo_ever_ * scale_ < kNormal) {
      least_lo_ever_ = -1;
    }
    return scale_ * undo;
  }
  template <int kCount>
  __device__ void add(const float (&w)[kCount][4], const uint32_t (&lo)[kCount][2]) {
    UNROLL
    for (int i = 0; i < kCount * 4; ++i) {
      least_ = min(least_, 2 * bits_of(w[i / 4][i % 4]) - 1);
    }
    UNROLL
    for (int i = 0; i < kCount * 2; ++i) {
      least_lo_ = __viaddmin_u16x2(lo[i / 2][i % 2] & 0x7fff7fff, 0xffffffffu, least_lo_);
    }
  }
  // fp16x3::undo_scale(), when all has been added; the whole warp.
  __device__ float undo() const {
    Range range{largest_of_scale(), least_magnitude() - 1};
    range.add_lane(1), range.add_lane(2);
    return range.undo_scale(scale_);
  }

 private:
  __device__ uint32_t least_magnitude() const { return (least_ + 1) / 2; }
  // Some magnitude that has this scale: 2^14 by it.
  __device__ uint32_t largest_of_scale() const {
    return isnan(scale_) ? 0x7f800000 : ((127u + 127 + 14) << 23) - bits_of(scale_);
  }

  float scale_ = 0x1p127f;  // as long as all have been zero, or nearly
  // Of what this lane has added: twice the magnitude's bits, less 1, so that zero is the largest;
  // likewise those of lo halves, two of 16 bits; and those by former scales, undone: negative where
  // one failed.
  uint32_t least_ = ~0u, least_lo_ = ~0u;
  float least_lo_ever_ = float_of(0x7f800000);
};

}  // namespace tiled::cuda
