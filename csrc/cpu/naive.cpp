// naive on the CPU: one element after another, each a dot product along K.

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace tiled::cpu {
namespace {

template <typename T>
SIMD accumulator_t<T> dot(int64_t k, const T* a, int64_t a_stride, const T* b, int64_t b_stride) {
  accumulator_t<T> sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum = fused_multiply_add(widen(a[i * a_stride]), widen(b[i * b_stride]), sum);
  }
  return sum;
}

template <typename T>
void compute(const Problem& p, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {  // a row of C
    const int64_t batch = index / p.m;
    const int64_t row = index % p.m;
    const T* a = static_cast<const T*>(p.a.data) + batch_offset(p.batch, p.a, batch);
    const T* b = static_cast<const T*>(p.b.data) + batch_offset(p.batch, p.b, batch);
    const int64_t c_offset = batch_offset(p.batch, p.c, batch);
    for (int64_t col = 0; col < p.n; ++col) {
      const auto sum = dot(p.k, a + row * p.a.row_stride, p.a.col_stride, b + col * p.b.col_stride,
                           p.b.row_stride);
      store<T>(p, c_offset, row, col, sum);
    }
  }
}

}  // namespace

bool launch_naive(const Problem& p, const Plan&, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    const double operations = static_cast<double>(p.n) * static_cast<double>(p.k + 1);
    parallel_for(context, p.batch.count * p.m, operations,
                 [&](int64_t begin, int64_t end) { compute<T>(p, begin, end); });
  });
  return true;
}

}  // namespace tiled::cpu
