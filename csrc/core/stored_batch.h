#pragma once
// A batch without its broadcast dimensions: the matrices that memory holds.

#include "core/problem.h"

namespace tiled {

struct StoredBatch {
  Batch batch;  // without broadcast dimensions
  Matrix from;  // with the batch strides of the dimensions that are left
};

// The number of matrices that memory holds.
inline int64_t stored_matrices(const Batch& all, const Matrix& matrix) {
  int64_t count = 1;
  for (int d = 0; d < all.rank; ++d) count *= matrix.batch_stride[d] == 0 ? 1 : all.size[d];
  return count;
}

// Drops the dimensions along which `from` is broadcast. Also sets the batch strides of `to`, a copy
// of `from` with matrices of `size` elements that follow one another, for all dimensions of
// the batch.
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

}  // namespace tiled
