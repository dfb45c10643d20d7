#pragma once
// The passes of complex products for a single element, on the GPU and on the CPU.

#include "core/complex.h"
#include "core/element.h"
#include "core/order_chunked.h"

namespace tiled {

template <typename T>
HOST_DEVICE Complex<T> resolve(Complex<T> z, Lazy lazy) {
  return {lazy.negated ? -z.re : z.re, lazy.negated != lazy.conjugated ? -z.im : z.im};
}

// The number in place of z in a copy of its row: (x, y) in the first, (y, x) in the second.
template <typename T>
HOST_DEVICE Complex<T> packed(Complex<T> z, int copy, const bool (&negated)[2]) {
  const T first = copy == 0 ? z.re : z.im;
  const T second = copy == 0 ? z.im : z.re;
  return {negated[0] ? -first : first, negated[1] ? -second : second};
}

// An epilogue's scalars in the dtype of parts.
template <typename T>
struct Scalars {
  Complex<T> alpha, beta;
  explicit Scalars(const ComplexEpilogue& epilogue)
      : alpha{static_cast<T>(epilogue.alpha.real()), static_cast<T>(epilogue.alpha.imag())},
        beta{static_cast<T>(epilogue.beta.real()), static_cast<T>(epilogue.beta.imag())} {}
};

// sum + x * y by two FMAs for each part. A real x does not meet y's other part: a NaN or Inf
// there would spread.
template <typename T>
HOST_DEVICE Complex<T> add_product(Complex<T> sum, Complex<T> x, Complex<T> y) {
  sum = {fused_multiply_add(x.re, y.re, sum.re), fused_multiply_add(x.re, y.im, sum.im)};
  if (x.im == 0) return sum;
  return {fused_multiply_add(-x.im, y.im, sum.re), fused_multiply_add(x.im, y.re, sum.im)};
}

// The element of C in `matrix` of the batch.
template <typename T>
HOST_DEVICE void combine_element(const Combine& combine, const Scalars<T>& scalars, int64_t matrix,
                                 int64_t row, int64_t col) {
  const Problem& p = combine.problem;
  const auto at = [&](const auto& x) {
    return batch_offset(p.batch, x, matrix) + row * x.row_stride + col * x.col_stride;
  };
  const Complex<T> sum = resolve(static_cast<const Complex<T>*>(p.a.data)[at(p.a)], combine.sums);
  Complex<T> value = sum;
  if (scalars.alpha.re != 1 || scalars.alpha.im != 0) {
    value = add_product(Complex<T>{-T(0), -T(0)}, scalars.alpha, sum);
  }
  if (combine.epilogue.bias != nullptr) {
    const auto* bias = static_cast<const Complex<T>*>(combine.epilogue.bias);
    const Complex<T> added =
        resolve(bias[col * combine.epilogue.bias_stride], combine.epilogue.bias_lazy);
    value = {value.re + added.re, value.im + added.im};
  }
  Complex<T>& c = static_cast<Complex<T>*>(p.c.data)[at(p.c)];
  if (scalars.beta.re != 0 || scalars.beta.im != 0) value = add_product(value, scalars.beta, c);
  c = value;
}

}  // namespace tiled
