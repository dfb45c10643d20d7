#pragma once
// The problem that a kernel solves:
//
//   C = activation(alpha * A B + bias + beta * C)      A (m, k), B (k, n), C (m, n), bias (n)
//
// for every matrix of a batch. Strides count elements and may be 0. All sizes and offsets are
// 64-bit.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "core/host_device.h"
#include "core/presplit.h"

namespace tiled {

enum class DType { kFloat32, kFloat64, kFloat16, kBFloat16 };
constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}
constexpr bool is_16bit(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
enum class Precision { kFp32, kIeee, kTf32 };
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kTanh, kSilu };

// Batch dimensions that a kernel unravels by itself, after adjacent ones were merged.
inline constexpr int kMaxBatchRank = 6;
// Batch dimensions of a tensor map (kernels/common/tensor_map.h), without broadcast ones.
inline constexpr int kMaxTmaBatchRank = 3;

inline constexpr int64_t kCacheLineBytes = 128;  // of L2

struct Batch {
  int rank = 0;
  int64_t count = 1;  // product of size[0 .. rank)
  int64_t size[kMaxBatchRank] = {};

  bool operator==(const Batch&) const = default;
};

template <class Void>
struct MatrixOf {
  Void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_stride[kMaxBatchRank] = {};

  bool operator==(const MatrixOf&) const = default;
};
using Matrix = MatrixOf<const void>;  // an operand
using OutMatrix = MatrixOf<void>;

struct Epilogue {
  double alpha = 1;
  double beta = 0;             // 0: C is never read
  const void* bias = nullptr;  // in the operands' dtype
  int64_t bias_stride = 0;
  int64_t bias_batch_stride = 0;  // from a group's bias to the next one's, in a grouped product
  Activation activation = Activation::kNone;

  bool operator==(const Epilogue&) const = default;
  // Returns whether C is the sums unchanged.
  HOST_DEVICE bool is_identity() const {
    return alpha == 1 && beta == 0 && bias == nullptr && activation == Activation::kNone;
  }
  // Returns whether a bias and ReLU are all that is applied, if anything is.
  bool is_bias_relu_at_most() const {
    return alpha == 1 && beta == 0 &&
           (activation == Activation::kNone || activation == Activation::kRelu);
  }
};

// The side that a grouped product cuts into groups, if it is one. Group g is a product by itself:
//
//   kM   some rows of A by matrix g of B          -> the same rows of C
//   kN   matrix g of A by some columns of B       -> the same columns of C
//   kK   some columns of A by the same rows of B  -> matrix g of C
//
// The batch counts the groups and has one dimension. The batch stride of an operand that is cut, or
// of a C that is cut, is 0, and Problem's m, n or k is the length of all groups together.
enum class GroupedSide { kNone, kM, kN, kK };

struct Groups {
  GroupedSide side = GroupedSide::kNone;
  // The end of each group, on the GPU: the first group begins at 0, and each other one at the end
  // of the group before. Nothing on the host knows whether they ascend and stay inside.
  const int32_t* ends = nullptr;

  bool operator==(const Groups&) const = default;
};

struct Problem {
  const char* op = "";  // "tiled::matmul", for error messages
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;  // dtype, or kFloat32
  Precision precision = Precision::kFp32;
  bool keeps_flagged = false;  // flagged elements become NaN in place of being recomputed
  int64_t m = 0, n = 0, k = 0;
  Batch batch;
  Matrix a, b;
  OutMatrix c;
  Presplit b_presplit;  // of a B without a batch; its pointers are null if B was not split
  Epilogue epilogue;
  Groups groups;

  bool operator==(const Problem&) const = default;
};

// The number of (rows, cols) tiles that cover C over the whole batch.
inline int64_t count_tiles(const Problem& p, int64_t rows, int64_t cols) {
  return ceil_div(p.m, rows) * ceil_div(p.n, cols) * p.batch.count;
}

// The next larger number of K splits that shortens the longest split, or 0 if there is none.
// Splits share K's chunks as evenly as possible.
inline int64_t next_k_splits(int64_t chunks, int64_t splits) {
  const int64_t longest = ceil_div(chunks, splits);
  return longest > 1 ? ceil_div(chunks, longest - 1) : 0;
}

// The offset in elements, from Matrix::data, of matrix `index` of the batch.
HOST_DEVICE inline int64_t batch_offset(const Batch& batch,
                                        const int64_t (&batch_stride)[kMaxBatchRank],
                                        int64_t index) {
  int64_t offset = 0;
  NO_UNROLL  // a 64-bit division is many instructions
      for (int d = batch.rank - 1; d >= 0; --d) {
    offset += index % batch.size[d] * batch_stride[d];
    index /= batch.size[d];
  }
  return offset;
}
template <class Void>
HOST_DEVICE int64_t batch_offset(const Batch& batch, const MatrixOf<Void>& matrix, int64_t index) {
  return batch_offset(batch, matrix.batch_stride, index);
}

// --- layouts -------------------------------------------------------------------------------------
// The functions below see B transposed, so that an operand's rows are A's rows or B's columns:
// row_stride is the distance between rows, col_stride that between the elements of a row.

// Returns whether each vector of `count` elements that begins at a multiple of `count` in a row is
// contiguous and aligned. Elements are `inner` apart, and rows `outer`.
template <class Void>
bool is_vector_aligned(const Batch& batch, const MatrixOf<Void>& matrix, int64_t inner,
                       int64_t outer, int64_t count, int64_t element_bytes = sizeof(float)) {
  bool aligned = inner == 1 && outer % count == 0;
  for (int d = 0; d < batch.rank; ++d) aligned &= matrix.batch_stride[d] % count == 0;
  const auto bytes = static_cast<uintptr_t>(count * element_bytes);
  return aligned && reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0;
}

// Returns whether the operand is contiguous along one of its sides.
inline bool has_unit_stride(const Matrix& matrix) {
  return std::min(matrix.row_stride, matrix.col_stride) == 1;
}

// Returns whether adjacent elements are along M or N rather than along K.
inline bool is_mn_major(const Matrix& matrix) { return matrix.row_stride < matrix.col_stride; }

// Returns whether the matrix's batch has no more dimensions than a tensor map.
template <class Void>
bool fits_tma_rank(const Batch& batch, const MatrixOf<Void>& matrix) {
  int rank = 0;
  for (int d = 0; d < batch.rank; ++d) rank += matrix.batch_stride[d] != 0;
  return rank <= kMaxTmaBatchRank;
}

// Returns whether 16 bytes along the contiguous side can be read at once.
inline bool is_16_byte_aligned(const Batch& batch, const Matrix& matrix, int64_t element_bytes) {
  const auto [inner, outer] = std::minmax(matrix.row_stride, matrix.col_stride);
  return is_vector_aligned(batch, matrix, inner, outer, 16 / element_bytes, element_bytes);
}

// Returns whether a tensor map can describe the operand: its leading dimension is 16-byte aligned
// and its batch has few enough dimensions.
inline bool is_tma_aligned(const Batch& batch, const Matrix& matrix,
                           int64_t element_bytes = sizeof(float)) {
  return std::max(matrix.row_stride, matrix.col_stride) > 1 && fits_tma_rank(batch, matrix) &&
         is_16_byte_aligned(batch, matrix, element_bytes);
}

// Returns whether the operand is is_tma_aligned() float32 and MN-major.
inline bool is_tma_aligned_mn_major(const Batch& batch, const Matrix& matrix) {
  return matrix.row_stride == 1 && is_tma_aligned(batch, matrix);
}

// Returns C as an operand, for functions that describe either.
inline Matrix as_operand(const OutMatrix& c) {
  Matrix matrix{.data = c.data, .row_stride = c.row_stride, .col_stride = c.col_stride};
  std::copy(std::begin(c.batch_stride), std::end(c.batch_stride), matrix.batch_stride);
  return matrix;
}

// Returns the matrix with its two strides exchanged.
inline Matrix transposed(Matrix matrix) {
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}
inline OutMatrix transposed(OutMatrix matrix) {
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

// A problem from the side of its long operand, the one with C's longer side: B, or A if m
// > n. row_stride of both is along their side of C, and col_stride along K.
struct LongAndShort {
  bool long_is_a;
  Matrix long_operand, short_operand;
  int64_t long_count, short_count;  // C's sides
};
inline LongAndShort long_and_short(const Problem& p) {
  const Matrix b = transposed(p.b);
  if (p.m > p.n) return {true, p.a, b, p.m, p.n};
  return {false, b, p.a, p.n, p.m};
}

// Returns the operand with C's longer side: B, or A if m > n.
inline const Matrix& longer_operand(const Problem& p) { return p.m > p.n ? p.a : p.b; }

}  // namespace tiled
