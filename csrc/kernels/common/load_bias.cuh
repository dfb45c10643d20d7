#pragma once
// A tile's biases, loaded to shared memory once for all rows of the tile.

#include <cstdint>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda {

// Loads the biases, of type T, of the kCols columns from `col` on, widened to float; columns from
// `end` on get 0. The epilogue must have a bias; `group` is 0 unless the product is grouped. All
// threads of a warpgroup call it, with a named barrier of their own.
template <class T, int kCols>
__device__ void load_bias(const Epilogue& epilogue, int64_t group, int64_t end, int64_t col,
                          int barrier, float (&bias)[kCols]) {
  constexpr int kWarpgroup = 128;
  ptx::named_barrier_sync(barrier, kWarpgroup);  // all have read the previous tile's
  const auto* from = static_cast<const T*>(epilogue.bias) + group * epilogue.bias_batch_stride;
  UNROLL
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kCols; i += kWarpgroup) {
    bias[i] = col + i < end ? widen(from[(col + i) * epilogue.bias_stride]) : 0;
  }
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

}  // namespace tiled::cuda
