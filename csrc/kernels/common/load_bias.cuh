#pragma once
// A tile's biases, brought to shared memory before they are added.

#include <cstdint>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda {

// Puts those of a tile's columns, of which there are some, T's, into shared memory; the threads of
// a warpgroup together, which have a barrier of their own.
template <class T, int kCols>
__device__ void load_bias(const Problem& p, int64_t col, int barrier, float (&bias)[kCols]) {
  constexpr int kWarpgroup = 128;
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last tile's have been read
  const auto* from = static_cast<const T*>(p.epilogue.bias);
  UNROLL
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kCols; i += kWarpgroup) {
    bias[i] = col + i < p.n ? widen(from[(col + i) * p.epilogue.bias_stride]) : 0;
  }
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

}  // namespace tiled::cuda
