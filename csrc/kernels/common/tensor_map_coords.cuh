#pragma once
// The coordinates of a matrix of the batch in a tensor map (tensor_map.h).

#include "core/problem.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

struct TmaCoords {
  int at[kMaxTmaBatchRank] = {};
  // For a map with one batch dimension.
  __device__ explicit TmaCoords(int index) : at{index} {}
  template <class Void>
  __device__ TmaCoords(const Batch& batch, const MatrixOf<Void>& matrix, int64_t index) {
    int used = 0;
    NO_UNROLL
    for (int d = batch.rank - 1; d >= 0; --d) {
      if (matrix.batch_stride[d] != 0) {
        UNROLL  // at[used] with a dynamic index would put the array into local memory
        for (int i = 0; i < kMaxTmaBatchRank; ++i) {
          if (i == used) at[i] = static_cast<int>(index % batch.size[d]);
        }
        ++used;
      }
      index /= batch.size[d];
    }
  }
};

}  // namespace tiled::cuda
