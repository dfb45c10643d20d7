#pragma once
// What attention's forward and backward pass on the CPU share: rows, their parts, and products.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/attention.h"
#include "core/order_attention.h"
#include "cpu/chain.h"
#include "cpu/tensor_core.h"

namespace tiled::cpu {

inline constexpr int kDepth = 16;                         // products of a tensor-core sum
inline constexpr int kColumns = 64;                       // of a sum over rows, at once
inline constexpr int kSteps = attention::kTile / kDepth;  // tensor-core sums over a tile's rows

// A row of a tensor in memory.
template <typename T>
struct RowOf {
  const T* data;
  int64_t size, stride;

  RowOf(const Heads& x, int64_t batch, int64_t head, int64_t row, int64_t size)
      : data(static_cast<const T*>(x.data) + batch * x.batch_stride + head * x.head_stride +
             row * x.row_stride),
        size(size),
        stride(x.col_stride) {}

  // Zero beyond the last column.
  T at(int64_t c) const { return c < size ? data[c * stride] : T{}; }
};

struct OperandRow : RowOf<float> {
  using RowOf::RowOf;

  uint32_t largest() const {
    uint32_t bits = 0;
    for (int64_t c = 0; c < size; ++c) bits = std::max(bits, attention::finite_bits(at(c)));
    return bits;
  }

  // The parts of column c, or zeros beyond the last column.
  fp16x3::Split split(int64_t c, float scale) const {
    return attention::split(c < size ? at(c) * scale : 0.0f);
  }
};

// The hi and lo parts of kN rows or columns, kDepth products after another.
template <int kN>
struct Parts {
  std::vector<Factors<kN>> hi, lo;

  explicit Parts(int64_t steps) : hi(steps), lo(steps) {}

  void set(int64_t k, int n, fp16x3::Split parts) {
    hi[k / kDepth].set(k % kDepth, n, parts.hi);
    lo[k / kDepth].set(k % kDepth, n, parts.lo);
  }
};

// Adds products of all of K to kN sums, which are zeros: the small products first.
template <int kN>
void multiply(float (&sums)[kN], const Parts<1>& a, const Parts<kN>& b) {
  const auto add = [&](const std::vector<Factors<1>>& x, const std::vector<Factors<kN>>& y) {
    for (size_t step = 0; step < x.size(); ++step) multiply_row(x[step], y[step], sums);
  };
  add(a.lo, b.hi);
  add(a.hi, b.lo);
  add(a.hi, b.hi);
}

}  // namespace tiled::cpu
