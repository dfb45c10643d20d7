#pragma once
// Sums of rows in the order of core/order_rows.h, by a warp or by a thread block.

#include <cstdint>

#include "core/order_rows.h"
#include "kernels/common/launch.h"

namespace tiled::cuda::rows {

namespace order = tiled::rows;

inline constexpr int kWarp = 32, kVector = order::kParts / kWarp;  // parts of a lane
inline constexpr int kSteps = order::kChunk / order::kParts;       // elements of a part
static_assert(kVector == 4);

// Returns the sum of a chunk from the sums of a lane's four parts, in every lane.
template <typename T>
__device__ T sum_parts(T (&parts)[kVector]) {
  UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    UNROLL
    for (T& part : parts) part += __shfl_xor_sync(~0u, part, lanes);
  }
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// Returns the sum of up to kChunk numbers in shared memory, in every lane of a warp.
template <typename T>
__device__ T sum_chunk(const T* numbers, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  T parts[kVector] = {};
  for (int first = lane * kVector; first < count; first += order::kParts) {
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (first + i < count) parts[i] += numbers[first + i];
    }
  }
  return sum_parts(parts);
}

// The sum of a row by a block of kWarps warps, or of as many as are launched if kWarps is 0. Warp w
// has every kWarps-th chunk, from chunk w on.
//
// chunk(index) returns a chunk's sum in every lane of its warp. Level 0 of shared memory has the
// sums of chunks, level 1 those of whole chunks of level 0, and so on.
template <typename T, int kWarps>
class RowSum {
 public:
  static constexpr int kLevels = 3;  // rows of up to 2^40 elements
  struct Smem {
    T sums[kLevels][order::kChunk];
    T total;
  };

  __device__ explicit RowSum(Smem& smem) : smem_(smem) {}

  // Returns the sum of a row of n elements in every thread. All threads of the block call it.
  template <class Chunk>
  __device__ T operator()(int64_t n, const Chunk& chunk) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warps = kWarps > 0 ? kWarps : static_cast<int>(blockDim.x) / kWarp;
    const int64_t chunks = ceil_div(n, order::kChunk);
    __syncthreads();  // the sums of the last call have been read
    for (int64_t first = 0; first < chunks; first += order::kChunk) {
      const int count = static_cast<int>(min(chunks - first, int64_t{order::kChunk}));
      for (int i = warp; i < count; i += warps) {
        const T sum = chunk(first + i);
        if (threadIdx.x % kWarp == 0) smem_.sums[0][i] = sum;
      }
      __syncthreads();
      if (warp == 0) join(first / order::kChunk, count, first + count == chunks);
      __syncthreads();
    }
    return smem_.total;
  }

 private:
  // Sums what is in level 0, and a level that is full, or the last one, to the next level.
  __device__ void join(int64_t index, int count, bool is_last) const {
    for (int level = 0; level < kLevels; ++level) {
      const T sum = count == 1 ? smem_.sums[level][0] : sum_chunk(smem_.sums[level], count);
      const int at = static_cast<int>(index % order::kChunk);
      index /= order::kChunk;
      if (is_last && at == 0 && index == 0) {
        if (threadIdx.x % kWarp == 0) smem_.total = sum;
        return;
      }
      if (threadIdx.x % kWarp == 0 && level + 1 < kLevels) smem_.sums[level + 1][at] = sum;
      __syncwarp();
      count = at + 1;
      if (!is_last && count < order::kChunk) return;
    }
  }

  Smem& smem_;
};

}  // namespace tiled::cuda::rows
