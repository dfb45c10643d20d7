#pragma once
// The epilogue, from a finished sum to the stored element. GPU and CPU agree, except in the last
// bits of exp, exp2, tanh and erfc, which come from two libraries.

#include <cmath>
#include <type_traits>

#include "core/element.h"
#include "core/order_chunked.h"
#include "core/problem.h"

namespace tiled {

// The cumulative distribution function of the standard normal distribution. Written with erfc,
// which does not cancel for negative x.
HOST_DEVICE inline double normal_cdf(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }
// The same in float: its tail below -t, for t = |x|, is 2 to the power of p(t) = -1 + t * q(t),
// with a polynomial q fitted by Lawson's iteration. Up to t = 5 the relative error of the tail
// is 2.1e-8, times -p / 2 if that is more than 1; beyond, the tail falls on to 0.
HOST_DEVICE inline float normal_cdf(float x) {
  constexpr int kTerms = 10;
  constexpr float kQ[kTerms] = {
      -0x1.11eb0ep-25f, 0x1.e6e868p-21f, -0x1.77a2c2p-17f, 0x1.400592p-14f, -0x1.200748p-12f,
      -0x1.2f007cp-16f, 0x1.c93624p-8f,  -0x1.adcb00p-5f,  -0x1.d63bc6p-2f, -0x1.26aed4p+0f};
  const float t = fabsf(x);
  float q = kQ[0];
  for (int i = 1; i < kTerms; ++i) q = fused_multiply_add(q, t, kQ[i]);
  const float tail = exp2f(fused_multiply_add(q, t, -1.0f));
  return x > 0 ? 1 - tail : tail;
}

// The activations are those that torch.nn.functional has under these names.
template <typename Acc>
HOST_DEVICE Acc activate(Activation activation, Acc x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x <= Acc(0) ? Acc(0) : x;  // NaN stays NaN
    case Activation::kGelu: return x * normal_cdf(x);
    case Activation::kGeluTanh: {
      const Acc inner = Acc(0.79788456080286535588) * (x + Acc(0.044715) * x * x * x);
      return Acc(0.5) * x * (Acc(1) + tanh(inner));
    }
    case Activation::kTanh: return tanh(x);
    case Activation::kSilu: return x / (Acc(1) + exp(-x));
  }
  return x;
}

// Applies an activation to several elements, with one branch for all.
template <typename Acc, int kCount>
HOST_DEVICE void activate_each(Activation activation, Acc (&x)[kCount]) {
  const auto each = [&](Activation chosen) {
    for (Acc& one : x) one = activate(chosen, one);
  };
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kRelu: return each(Activation::kRelu);
    case Activation::kGelu: return each(Activation::kGelu);
    case Activation::kGeluTanh: return each(Activation::kGeluTanh);
    case Activation::kTanh: return each(Activation::kTanh);
    case Activation::kSilu: return each(Activation::kSilu);
  }
}

// The activation's argument: alpha * sum + bias + beta * old. `bias` is ignored without a bias,
// `old` if beta is 0.
template <typename Acc>
HOST_DEVICE Acc combine(const Epilogue& epilogue, Acc sum, Acc bias, Acc old) {
  Acc value = static_cast<Acc>(epilogue.alpha) * sum;
  if (epilogue.bias != nullptr) value += bias;
  if (epilogue.beta != 0) value = fused_multiply_add(static_cast<Acc>(epilogue.beta), old, value);
  return value;
}

// C[row, col] = activation(alpha * sum + bias + beta * C[row, col]), for operands of type T. The
// matrix begins c_offset elements into C.
template <typename T>
HOST_DEVICE void store(const Problem& p, int64_t c_offset, int64_t row, int64_t col,
                       accumulator_t<T> sum) {
  using Acc = accumulator_t<T>;
  const Epilogue& epilogue = p.epilogue;
  const int64_t at = c_offset + row * p.c.row_stride + col * p.c.col_stride;
  const Acc bias = epilogue.bias == nullptr
                       ? Acc(0)
                       : widen(static_cast<const T*>(epilogue.bias)[col * epilogue.bias_stride]);
  auto finish = [&]<typename Out>(Out* c) {
    const Acc old = epilogue.beta == 0 ? Acc(0) : widen(*c);
    *c = narrow<Out>(activate(epilogue.activation, combine(epilogue, sum, bias, old)));
  };
  if constexpr (std::is_same_v<Acc, T>) {
    finish(static_cast<T*>(p.c.data) + at);
  } else if (p.out_dtype == p.dtype) {
    finish(static_cast<T*>(p.c.data) + at);
  } else {
    finish(static_cast<Acc*>(p.c.data) + at);
  }
}

}  // namespace tiled
