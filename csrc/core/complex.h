#pragma once
// Complex products as real ones. A complex number is stored as its real part, then its
// imaginary part. So a complex (m, k) matrix A with contiguous rows is a real (m, 2k) matrix in
// place, C is a real (m, 2n) matrix, and
//
//   C = A B',   B' (2k, 2n), in which b = x + iy of B is  [  x  y ]
//                                                         [ -y  x ]
//
// Each part of an element of C is one real sum with twice K: for each k the product with the real
// part of a, then that with its imaginary part. It has the order, bound and bits of that sum. A
// conjugate of A, B or C is a matter of signs in B'.

#include <complex>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/lazy.h"
#include "core/problem.h"

namespace tiled {

// A complex number in memory.
template <typename T>
struct alignas(2 * sizeof(T)) Complex {
  T re, im;
};

struct ComplexEpilogue {
  std::complex<double> alpha = 1;
  std::complex<double> beta = 0;  // 0: C is never read
  const void* bias = nullptr;
  int64_t bias_stride = 0;
  Lazy bias_lazy = {};
};

// Sizes and strides of `problem` count complex numbers, and its dtypes are their parts'. It
// has the matrices, and no epilogue.
struct ComplexProblem {
  Problem problem;
  Lazy a, b, c;
  ComplexEpilogue epilogue;
  const void* prepared_b = nullptr;  // what prepared_pack() wrote of a B without a batch, or null
};

// A pass that writes complex matrices as a real operand: A's rows one after another, or B'. Row r
// of `from` becomes `copies` rows of `to`, from row copies * r on: first that of the numbers (x, y)
// and then, if there are two, that of (y, x). Each part may be negated.
struct Pack {
  DType dtype = DType::kFloat32;  // of a part
  Batch batch;
  int64_t rows = 0, cols = 0;  // of a matrix, in complex numbers, as are all strides
  Matrix from;
  void* to = nullptr;         // contiguous matrices
  int64_t to_row_stride = 0;  // of columns that are adjacent
  int copies = 1;
  bool negated[2][2] = {};  // [copy][part]

  HOST_DEVICE int64_t matrix_size() const {
    return copies * rows * to_row_stride;
  }  // in complex numbers
};

// Which numbers of B' in place of x + iy are negated: "even" and "odd" are rows of B'.
struct SignsOfB {
  bool x_even, y_even, y_odd, x_odd;
};
SignsOfB signs_of_b(const ComplexProblem& z);

// Describes A in place to a kernel that reads complex numbers at any strides. Strides count floats:
// an element of the real A with an even column is that far from the first one.
Matrix in_place_a(const ComplexProblem& z);

// Describes B in place to a kernel that reads complex numbers. Strides count floats, as a mean of
// two: an element of B' with an even row and column is that far from the first one.
Matrix in_place_b(const ComplexProblem& z);

// A complex B, for a kernel that reads it in place and may come to need B'.
struct ComplexB {
  Matrix in_place;  // in_place_b()
  SignsOfB signs;
  Matrix packed;  // B', in memory that nothing has written to, if the kernel needs it
  Pack pack;      // which writes it
};

// The parts of the numbers that in_place_b() describes, which are contiguous along one side: a real
// matrix with twice as many elements along that side.
Matrix parts_of_b(Matrix in_place);

// The same of A, if the numbers that in_place_a() describes are contiguous along M: two rows of
// parts for each row.
Matrix parts_of_a(Matrix in_place);

// The part of B' that a kernel reads of a B in place: one number for four elements.
inline constexpr double kShareOfB = 0.5;

// A pass that computes C = alpha * sums + bias + beta * C, if the real kernel's epilogue cannot:
// it has the sizes, batch and C of a complex problem, with the sums in place of A.
struct Combine {
  Problem problem;
  Lazy sums;
  ComplexEpilogue epilogue;
};

// A complex problem as a real one, between passes.
struct RealProblem {
  Problem problem;  // what a pass writes or reads has no memory yet: its `data` is null
  std::optional<Pack> pack_a, pack_b;
  std::optional<Combine> combine;
  int64_t a_bytes = 0, b_bytes = 0, sum_bytes = 0;  // of the passes' memory
};
RealProblem as_real(const ComplexProblem& z);

// Splits a problem in two along its batch, or else its longer side. Nothing if it is small.
std::optional<std::pair<ComplexProblem, ComplexProblem>> split_in_two(const ComplexProblem& z);

// The pass that writes B' of a complex64 B without a batch for many products, and its bytes. A
// conjugate of A or C is not known then.
Pack prepared_pack(int64_t k, int64_t n, const Matrix& b, Lazy lazy);
int64_t prepared_bytes(int64_t k, int64_t n);

// The pass C = epilogue(sums), for sums that another product has written.
Combine make_combine(const ComplexProblem& z, const Matrix& sums, Lazy sums_lazy);

}  // namespace tiled
