#pragma once
// fp16x3_thin: how a warp multiplies the fragments of a tile.

#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/thin_load.cuh"
#include "ptx/mma_sync.cuh"

namespace tiled::cuda::fp16x3_thin {

// The sums of a tile in a chunk, not descaled.
struct Sums {
  float total[4], low[4];
};

// A lane's fragments of 16 along K.
struct Fragments {
  uint32_t long_hi[4], long_lo[4], short_hi[2], short_lo[2];

  __device__ void load(const uint8_t* long_operand, const uint8_t* short_operand) {
    const auto read = [](const uint8_t* from) { return *reinterpret_cast<const uint4*>(from); };
    const uint4 hi = read(long_operand), lo = read(long_operand + 512), x = read(short_operand);
    long_hi[0] = hi.x, long_hi[1] = hi.y, long_hi[2] = hi.z, long_hi[3] = hi.w;
    long_lo[0] = lo.x, long_lo[1] = lo.y, long_lo[2] = lo.z, long_lo[3] = lo.w;
    short_hi[0] = x.x, short_hi[1] = x.y, short_lo[0] = x.z, short_lo[1] = x.w;
  }
};

// Multiplies a tile in a chunk of `length`, with `cols` rows of the short operand. All of its
// products are one chain for each element, so a warp loads the fragments of a step while it
// multiplies those before.
template <bool kLongIsA, bool kPromote16, int kWarps>
__device__ Sums multiply(const Smem<kWarps>& smem, int cols, int length) {
  const int lane = lane_id();
  const uint8_t* long_operand = smem.long_operand[0] + lane * 16;
  const bool has_short = lane / 4 < cols;
  const uint8_t* short_operand = has_short ? smem.short_operand + lane * 16 : smem.zeros;
  const int short_step = has_short ? cols * 64 : 0;
  Sums sums{};
  float part[4];
  Fragments fragments[2];
  const auto load = [&](Fragments& x) {
    x.load(long_operand, short_operand);
    long_operand += smem.kStepBytes, short_operand += short_step;
  };
  const auto step = [&](const Fragments& x, bool begins, bool ends) {
    // The order has lo_a hi_b first, whichever operand A is.
    ptx::mma_m16n8k16(sums.low, kLongIsA ? x.long_lo : x.long_hi,
                      kLongIsA ? x.short_hi : x.short_lo);
    if (begins) {
      ptx::mma_m16n8k16_from_0(part, x.long_hi, x.short_hi);
    } else {
      ptx::mma_m16n8k16(part, x.long_hi, x.short_hi);
    }
    ptx::mma_m16n8k16(sums.low, kLongIsA ? x.long_hi : x.long_lo,
                      kLongIsA ? x.short_lo : x.short_hi);
    if (!ends) return;
    UNROLL
    for (int i = 0; i < 4; ++i) sums.total[i] += part[i];
  };
  // Two steps at a time; where their number is odd, zeros follow, which add nothing.
  load(fragments[0]);
  _Pragma("unroll 2") for (int left = length; left > 0; left -= 32) {
    load(fragments[1]);
    step(fragments[0], true, kPromote16);
    load(fragments[0]);  // after the last step nobody needs it
    step(fragments[1], kPromote16, true);
  }
  return sums;
}

}  // namespace tiled::cuda::fp16x3_thin
