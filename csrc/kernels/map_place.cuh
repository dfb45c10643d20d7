#pragma once
// Where a matrix of the batch is among the dimensions of a tensor map (tensor_map.h).

#include "launch.h"
#include "problem.h"

namespace tiled::cuda {

struct MapPlace {
  int at[kMaxMapRank] = {};
  // In a map of matrices that are one batch dimension.
  __device__ explicit MapPlace(int index) : at{index} {}
  __device__ MapPlace(const Batch& batch, const Matrix& matrix, int64_t index) {
    int used = 0;
    NO_UNROLL
    for (int d = batch.rank - 1; d >= 0; --d) {
      if (matrix.batch_stride[d] != 0) {
        UNROLL  // an index that is not known would be one of memory, not of registers
        for (int i = 0; i < kMaxMapRank; ++i) {
          if (i == used) at[i] = static_cast<int>(index % batch.size[d]);
        }
        ++used;
      }
      index /= batch.size[d];
    }
  }
};

}  // namespace tiled::cuda
