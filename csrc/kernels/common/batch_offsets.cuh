#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiled::cuda {

// batch_offset() of all three matrices, with one division for each dimension after the first.
struct BatchOffsets {
  int64_t a = 0, b = 0, c = 0;

  BatchOffsets() = default;
  __device__ BatchOffsets(const Problem& p, int64_t index) {
    if (p.batch.rank != 0) add_batch(p, index);
  }
  // Adds the offsets of matrix `index`, which is 0 if the batch has no dimensions.
  __device__ void add_batch(const Problem& p, int64_t index) {
    const auto add = [&](int d, int64_t at) {
      a += at * p.a.batch_stride[d];
      b += at * p.b.batch_stride[d];
      c += at * p.c.batch_stride[d];
    };
    NO_UNROLL
    for (int d = p.batch.rank - 1; d > 0; --d) {
      add(d, index % p.batch.size[d]);
      index /= p.batch.size[d];
    }
    add(0, index);
  }
};

}  // namespace tiled::cuda
