#pragma once
// What of a batch is stored: its matrices without those that are repeated.

#include "core/problem.h"

namespace tiled::cuda {

struct StoredBatch {
  Batch batch;  // without broadcast dimensions
  Matrix from;  // with batch_stride of those
};

// Also gives `to`, a copy of `from` whose matrices have `size` elements each and follow one
// another, the batch strides of all dimensions.
inline StoredBatch stored_batch(const Batch& all, const Matrix& from, int64_t size, Matrix& to) {
  StoredBatch stored{.batch = {}, .from = from};
  for (int d = 0; d < all.rank; ++d) {
    if (from.batch_stride[d] == 0) continue;
    stored.batch.size[stored.batch.rank] = all.size[d];
    stored.batch.count *= all.size[d];
    stored.from.batch_stride[stored.batch.rank++] = from.batch_stride[d];
  }
  for (int d = all.rank - 1; d >= 0; --d) {
    if (from.batch_stride[d] == 0) continue;
    to.batch_stride[d] = size;
    size *= all.size[d];
  }
  return stored;
}

}  // namespace tiled::cuda
