#include "core/complex.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "core/contiguous_sums.h"
#include "core/split_in_two.h"
#include "core/stored_batch.h"

namespace tiled {
namespace {

constexpr int kCopiesOfB = 2;

// Returns whether an odd number of signs is negative.
bool is_odd(std::initializer_list<bool> signs) { return std::ranges::count(signs, true) % 2 != 0; }

// Rows of a real operand begin at multiples of 16 bytes, which the fastest loads need.
int64_t padded_row(DType dtype, int64_t cols) {
  const int64_t multiple = dtype == DType::kFloat32 ? 2 : 1;
  return ceil_div(cols, multiple) * multiple;
}

// The bytes of a pass's matrices, or the most that can be counted, for which there is no memory.
int64_t bytes_of(const Pack& pack) {
  int64_t bytes = 2 * size_of(pack.dtype) * pack.copies;
  for (const int64_t factor : {pack.to_row_stride, pack.rows, pack.batch.count}) {
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(bytes, factor, &bytes)) return std::numeric_limits<int64_t>::max();
  }
  return bytes;
}

// Sets the batch of a pass, without dimensions over which its operand is broadcast, and that of the
// real operand that it writes.
void set_batch(Pack& pack, const Batch& batch, Matrix& real) {
  const StoredBatch stored = stored_batch(batch, pack.from, 2 * pack.matrix_size(), real);
  pack.batch = stored.batch, pack.from = stored.from;
}

// The same matrix, with strides that count parts of numbers. Its rows are contiguous.
template <class M>
M as_real_matrix(const M& z) {
  M real{.data = z.data, .row_stride = 2 * z.row_stride, .col_stride = 1};
  for (int d = 0; d < kMaxBatchRank; ++d) real.batch_stride[d] = 2 * z.batch_stride[d];
  return real;
}

Pack pack_of_a(const ComplexProblem& z) {
  const Problem& p = z.problem;
  Pack pack;
  pack.dtype = p.dtype, pack.rows = p.m, pack.cols = p.k, pack.from = p.a;
  pack.to_row_stride = padded_row(p.dtype, p.k);
  if (z.prepared_b != nullptr) {
    pack.negated[0][0] = z.a.negated;
    pack.negated[0][1] = z.a.negated != z.a.conjugated;
  }
  return pack;
}

// The signs of B', which has the negatives and the conjugates of all matrices.
SignsOfB make_signs(bool negated, bool a_conjugated, bool b_conjugated, bool c_conjugated) {
  return {.x_even = negated,
          .y_even = is_odd({negated, b_conjugated, c_conjugated}),
          .y_odd = is_odd({negated, b_conjugated, !a_conjugated}),
          .x_odd = is_odd({negated, a_conjugated, c_conjugated})};
}

// B' by rows of B, which `from` has, or by its columns if `k_major`.
Pack pack_of_b(DType dtype, const Matrix& b, int64_t k, int64_t n, bool k_major,
               const SignsOfB& signs) {
  Pack pack;
  pack.dtype = dtype, pack.rows = k, pack.cols = n, pack.from = b, pack.copies = kCopiesOfB;
  pack.negated[0][0] = signs.x_even;
  pack.negated[0][1] = k_major ? signs.y_odd : signs.y_even;
  pack.negated[1][0] = k_major ? signs.y_even : signs.y_odd;
  pack.negated[1][1] = signs.x_odd;
  if (k_major) {
    std::swap(pack.rows, pack.cols);
    std::swap(pack.from.row_stride, pack.from.col_stride);
  }
  pack.to_row_stride = padded_row(dtype, pack.cols);
  return pack;
}

// Returns whether rows of `cols` complex numbers are contiguous.
template <class M>
bool has_contiguous_rows(const M& z, int64_t cols) {
  return cols <= 1 || z.col_stride == 1;
}

bool needs_combine(const ComplexProblem& z) {
  const ComplexEpilogue& e = z.epilogue;
  const int64_t n = z.problem.n;
  const bool plain_bias =
      e.bias == nullptr || ((n <= 1 || e.bias_stride == 1) && (e.bias_lazy ^ z.c) == Lazy{});
  return e.alpha.imag() != 0 || e.beta.imag() != 0 || !plain_bias ||
         !has_contiguous_rows(z.problem.c, n);
}

}  // namespace

RealProblem as_real(const ComplexProblem& z) {
  const Problem& p = z.problem;
  RealProblem real;
  real.problem = p;
  Problem& r = real.problem;
  r.n = 2 * p.n, r.k = 2 * p.k;

  const bool resolves_a = z.prepared_b != nullptr && z.a != Lazy{};
  if (resolves_a || !has_contiguous_rows(p.a, p.k)) {
    Pack& pack = real.pack_a.emplace(pack_of_a(z));
    r.a = {.row_stride = 2 * pack.to_row_stride, .col_stride = 1};
    set_batch(pack, p.batch, r.a);
    real.a_bytes = bytes_of(pack);
  } else {
    r.a = as_real_matrix(p.a);
  }

  if (z.prepared_b != nullptr) {
    r.b = {.data = z.prepared_b, .row_stride = 1, .col_stride = 2 * padded_row(p.dtype, p.k)};
  } else {
    const bool k_major = p.b.row_stride < p.b.col_stride;
    Pack& pack = real.pack_b.emplace(pack_of_b(p.dtype, p.b, p.k, p.n, k_major, signs_of_b(z)));
    r.b = {.row_stride = 2 * pack.to_row_stride, .col_stride = 1};
    if (k_major) std::swap(r.b.row_stride, r.b.col_stride);
    set_batch(pack, p.batch, r.b);
    real.b_bytes = bytes_of(pack);
  }

  if (needs_combine(z)) {
    const OutMatrix sums = contiguous_sums(p);
    r.c = as_real_matrix(sums);
    real.combine = make_combine(z, as_operand(sums), z.c);
    real.sum_bytes = 2 * size_of(p.dtype) * p.m * p.n * p.batch.count;
  } else {
    r.c = as_real_matrix(p.c);
    r.epilogue = {.alpha = z.epilogue.alpha.real(),
                  .beta = z.epilogue.beta.real(),
                  .bias = z.epilogue.bias,
                  .bias_stride = 1};
  }
  return real;
}

SignsOfB signs_of_b(const ComplexProblem& z) {
  return make_signs(is_odd({z.a.negated, z.b.negated, z.c.negated}), z.a.conjugated, z.b.conjugated,
                    z.c.conjugated);
}

Matrix in_place_a(const ComplexProblem& z) {
  Matrix a = z.problem.a;
  a.row_stride *= 2;
  for (int64_t& stride : a.batch_stride) stride *= 2;
  return a;
}

Matrix in_place_b(const ComplexProblem& z) {
  Matrix b = z.problem.b;
  for (int64_t& stride : b.batch_stride) stride *= 2;
  return b;
}

Matrix parts_of_b(Matrix in_place) {
  auto& [data, row_stride, col_stride, batch_stride] = in_place;
  (row_stride > col_stride ? row_stride : col_stride) *= 2;
  return in_place;
}

Matrix parts_of_a(Matrix in_place) {
  in_place.row_stride /= 2, in_place.col_stride *= 2;
  return in_place;
}

Combine make_combine(const ComplexProblem& z, const Matrix& sums, Lazy sums_lazy) {
  // The numbers in memory are f(alpha * sum + bias + beta * f(C)) if the values of C are f of them.
  Combine combine{.problem = z.problem, .sums = sums_lazy ^ z.c, .epilogue = z.epilogue};
  combine.problem.a = sums;
  ComplexEpilogue& epilogue = combine.epilogue;
  if (z.c.conjugated) {
    epilogue.alpha = std::conj(epilogue.alpha);
    epilogue.beta = std::conj(epilogue.beta);
  }
  epilogue.bias_lazy = epilogue.bias_lazy ^ z.c;
  return combine;
}

std::optional<std::pair<ComplexProblem, ComplexProblem>> split_in_two(const ComplexProblem& z) {
  constexpr int64_t kLeast = 16;  // rows or columns that are not split
  Problem p = z.problem;
  p.epilogue.bias = z.epilogue.bias, p.epilogue.bias_stride = z.epilogue.bias_stride;
  const bool along_m = p.m > p.n || z.prepared_b != nullptr;
  const auto problems = split_in_two(p, along_m, kLeast, 2 * size_of(p.dtype));
  if (!problems) return std::nullopt;
  const auto part_of = [&z](const Problem& problem) {
    ComplexProblem part = z;
    part.problem = problem;
    part.problem.epilogue = z.problem.epilogue;
    part.epilogue.bias = problem.epilogue.bias;
    return part;
  };
  return std::pair(part_of(problems->first), part_of(problems->second));
}

Pack prepared_pack(int64_t k, int64_t n, const Matrix& b, Lazy lazy) {
  return pack_of_b(DType::kFloat32, b, k, n, /*k_major=*/true,
                   make_signs(lazy.negated, false, lazy.conjugated, false));
}

int64_t prepared_bytes(int64_t k, int64_t n) { return bytes_of(prepared_pack(k, n, {}, {})); }

}  // namespace tiled
