// Softmax, logsumexp and sums of rows on the CPU: core/order_rows.h as a program. A row is computed
// by one thread.

#include "cpu/rows.h"

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_rows.h"
#include "cpu/parallel.h"
#include "cpu/rows_sum.h"
#include "cpu/simd.h"

namespace tiled::cpu {
namespace {

using rows::exp_of, rows::log_of, rows::max_or_nan;

// --- Loops over elements -------------------------------------------------------------------------

// The largest element, or -Inf of none. Its bits do not depend on the order.
template <typename T>
SIMD accumulator_t<T> largest(const T* __restrict x, int64_t count) {
  using A = accumulator_t<T>;
  constexpr int kWidth = 32;
  A best[kWidth];
  for (A& each : best) each = -INFINITY;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    for (int j = 0; j < kWidth; ++j) best[j] = max_or_nan(widen(x[i + j]), best[j]);
  }
  for (; i < count; ++i) best[0] = max_or_nan(widen(x[i]), best[0]);
  for (const A each : best) best[0] = max_or_nan(each, best[0]);
  return best[0];
}

// Adds the exponential of each element to the part of that element.
template <typename T>
SIMD void add_exponentials(const T* __restrict x, int64_t count, accumulator_t<T> m,
                           accumulator_t<T>* __restrict parts) {
  for (int64_t i = 0; i < count; ++i) parts[i] += exp_of(widen(x[i]) - m);
}
template <typename T>
SIMD void write_softmax(const T* __restrict x, int64_t count, accumulator_t<T> m,
                        accumulator_t<T> by, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(exp_of(widen(x[i]) - m) * by);
}
template <typename T>
SIMD void write_log_softmax(const T* __restrict x, int64_t count, accumulator_t<T> m,
                            accumulator_t<T> log_sum, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>((widen(x[i]) - m) - log_sum);
}
template <typename T>
SIMD void write_gradient(const T* __restrict grad, const T* __restrict y, int64_t count,
                         accumulator_t<T> sum, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(widen(y[i]) * (widen(grad[i]) - sum));
}
template <typename T>
SIMD void write_log_gradient(const T* __restrict grad, const T* __restrict y, int64_t count,
                             accumulator_t<T> sum, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = narrow<T>(std::fma(-exp_of(widen(y[i])), sum, widen(grad[i])));
  }
}

// --- Rows ----------------------------------------------------------------------------------------

template <typename T>
void reduce_row(const RowsProblem& p, int64_t row) {
  using A = accumulator_t<T>;
  const T* x = static_cast<const T*>(p.x.data) + row * p.x.pitch;
  T* out = static_cast<T*>(p.out);
  const int64_t n = p.columns;
  if (p.op == RowsOp::kSum || p.op == RowsOp::kMean) {
    const A sum = sum_terms(x, n);
    out[row] = narrow<T>(p.op == RowsOp::kSum ? sum : sum / static_cast<A>(n));
    return;
  }
  const A m = largest(x, n);
  const A sum = sum_row<A>(
      n, [&](int64_t i, int64_t count, A* parts) { add_exponentials(x + i, count, m, parts); });
  if (p.op == RowsOp::kSoftmax) {
    write_softmax(x, n, m, A(1) / sum, out + row * n);
  } else if (p.op == RowsOp::kLogSoftmax) {
    write_log_softmax(x, n, m, log_of(sum), out + row * n);
  } else {
    out[row] = narrow<T>(rows::logsumexp(m, log_of(sum)));
  }
}

template <typename T>
void find_gradient(const SoftmaxBackward& p, int64_t row) {
  const T* grad = static_cast<const T*>(p.grad.data) + row * p.grad.pitch;
  const T* y = static_cast<const T*>(p.y.data) + row * p.y.pitch;
  T* out = static_cast<T*>(p.out) + row * p.columns;
  if (p.is_log) {
    write_log_gradient(grad, y, p.columns, sum_terms(grad, p.columns), out);
  } else {
    write_gradient(grad, y, p.columns, sum_products(grad, y, p.columns), out);
  }
}

// Calls f.template operator()<T>(row) for all rows.
template <class Problem, class F>
void for_rows(const Problem& p, double operations_of_element, const Context& context, const F& f) {
  constexpr double kOperationsOfRow = 200;
  const double operations =
      kOperationsOfRow + operations_of_element * static_cast<double>(p.columns);
  with_element_type(p.dtype, [&]<typename T>() {
    parallel_for(context, p.rows, operations, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) f.template operator()<T>(row);
    });
  });
}

}  // namespace

void launch_rows(const RowsProblem& p, const Context& context) {
  const bool is_sum = p.op == RowsOp::kSum || p.op == RowsOp::kMean;
  for_rows(p, is_sum ? 1 : 20, context, [&]<typename T>(int64_t row) { reduce_row<T>(p, row); });
}

void launch_softmax_backward(const SoftmaxBackward& p, const Context& context) {
  for_rows(p, p.is_log ? 10 : 3, context,
           [&]<typename T>(int64_t row) { find_gradient<T>(p, row); });
}

}  // namespace tiled::cpu
