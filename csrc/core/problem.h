#pragma once
// What is to be computed, and nothing about how:
//
//   C = activation(alpha * A B + bias + beta * C)      A (m, k), B (k, n), C (m, n), bias (n)
//
// for every matrix of a batch. Strides count elements and may be 0; all sizes and offsets are
// 64-bit.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/host_device.h"
#include "core/presplit.h"

namespace tiled {

enum class DType { kFloat32, kFloat64, kFloat16, kBFloat16 };
constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}
enum class Precision { kFp32, kIeee, kTf32 };
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kTanh, kSilu };

// Batch dimensions that a kernel unravels by itself, after neighbours that can be were merged.
inline constexpr int kMaxBatchRank = 6;
// Those of a tensor map (kernels/tensor_map.h), broadcast ones apart.
inline constexpr int kMaxTmaBatchRank = 3;

// Bytes of a line of L2, which a tensor map's box asks for once where it begins with it.
inline constexpr int64_t kCacheLineBytes = 128;

struct Batch {
  int rank = 0;
  int64_t count = 1;  // product of size[0 .. rank)
  int64_t size[kMaxBatchRank] = {};
};

struct Matrix {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_stride[kMaxBatchRank] = {};
};

struct Epilogue {
  double alpha = 1;
  double beta = 0;             // 0: C is never read
  const void* bias = nullptr;  // of the operands' dtype
  int64_t bias_stride = 0;
  Activation activation = Activation::kNone;

  // Whether C is the sums as they are.
  HOST_DEVICE bool is_identity() const {
    return alpha == 1 && beta == 0 && bias == nullptr && activation == Activation::kNone;
  }
  // Whether a bias and ReLU are all that is done to sums, if anything is.
  bool is_bias_relu_at_most() const {
    return alpha == 1 && beta == 0 &&
           (activation == Activation::kNone || activation == Activation::kRelu);
  }
};

struct Problem {
  const char* op = "";  // "tiled::matmul", for error messages
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;  // dtype, or kFloat32
  Precision precision = Precision::kFp32;
  int64_t m = 0, n = 0, k = 0;
  Batch batch;
  Matrix a, b, c;
  Presplit b_presplit;  // of a b without a batch that was split beforehand; else it has no halves
  Epilogue epilogue;
};

// How many tiles of so many rows and columns all matrices of C have.
inline int64_t count_tiles(const Problem& p, int64_t rows, int64_t cols) {
  return ceil_div(p.m, rows) * ceil_div(p.n, cols) * p.batch.count;
}

// Where K's chunks are shared out among so many ranges, as evenly as can be: the least number that
// leaves a range fewer; 0 where there is none.
inline int64_t next_k_splits(int64_t chunks, int64_t ranges) {
  const int64_t longest = ceil_div(chunks, ranges);
  return longest > 1 ? ceil_div(chunks, longest - 1) : 0;
}

// Where matrix `index` of the batch begins, in elements from Matrix::data.
HOST_DEVICE inline int64_t batch_offset(const Batch& batch, const Matrix& matrix, int64_t index) {
  int64_t offset = 0;
  NO_UNROLL  // 64-bit divisions are long: once is enough
      for (int d = batch.rank - 1; d >= 0; --d) {
    offset += index % batch.size[d] * matrix.batch_stride[d];
    index /= batch.size[d];
  }
  return offset;
}

// Whether `count` neighbours, float32 unless they have other bytes, can be read or written at once,
// wherever so many begin: they are `near` apart, and other such lines `far`.
inline bool is_vector_aligned(const Batch& batch, const Matrix& matrix, int64_t near, int64_t far,
                       int64_t count, int64_t element_bytes = sizeof(float)) {
  bool aligned = near == 1 && far % count == 0;
  for (int d = 0; d < batch.rank; ++d) aligned &= matrix.batch_stride[d] % count == 0;
  const auto bytes = static_cast<uintptr_t>(count * element_bytes);
  return aligned && reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0;
}

// Whether neighbours lie beside each other, along a row or down a column.
inline bool has_unit_stride(const Matrix& matrix) {
  return std::min(matrix.row_stride, matrix.col_stride) == 1;
}

// Whether the matrix's batch has no more dimensions than a tensor map.
inline bool fits_tma_rank(const Batch& batch, const Matrix& matrix) {
  int rank = 0;
  for (int d = 0; d < batch.rank; ++d) rank += matrix.batch_stride[d] != 0;
  return rank <= kMaxTmaBatchRank;
}

// Whether 16 bytes of neighbours can be read at once, whichever way they lie.
inline bool is_16_byte_aligned(const Batch& batch, const Matrix& matrix, int64_t element_bytes) {
  const auto [near, far] = std::minmax(matrix.row_stride, matrix.col_stride);
  return is_vector_aligned(batch, matrix, near, far, 16 / element_bytes, element_bytes);
}

// Whether a tensor map can read a matrix, of float32 unless its elements have other bytes: its
// lines of neighbours begin at multiples of 16 bytes, and its batch has no more dimensions than
// that.
inline bool is_tma_aligned(const Batch& batch, const Matrix& matrix,
                     int64_t element_bytes = sizeof(float)) {
  return std::max(matrix.row_stride, matrix.col_stride) > 1 && fits_tma_rank(batch, matrix) &&
         is_16_byte_aligned(batch, matrix, element_bytes);
}

// Likewise, where rows are neighbours.
inline bool is_tma_aligned_mn_major(const Batch& batch, const Matrix& matrix) {
  return matrix.row_stride == 1 && is_tma_aligned(batch, matrix);
}

// The matrix with its sides exchanged.
inline Matrix transposed(Matrix matrix) {
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

// Whether A's rows and B's columns are lines of neighbours, of multiples of 16 bytes.
inline bool is_k_major_aligned(const Problem& p) {
  return p.k % 4 == 0 && is_vector_aligned(p.batch, p.a, p.a.col_stride, p.a.row_stride, 4) &&
         is_vector_aligned(p.batch, p.b, p.b.row_stride, p.b.col_stride, 4);
}

}  // namespace tiled
