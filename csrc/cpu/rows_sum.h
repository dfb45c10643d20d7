#pragma once
// Sums of rows on the host, in the order of core/order_rows.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/element.h"
#include "core/order_rows.h"
#include "cpu/simd.h"

namespace tiled::cpu {

// Returns the sum of n terms. add(i, count, parts) adds the terms i to i + count - 1 to the parts
// from 0 on; i is a multiple of kParts.
template <typename T, class Add>
T sum_row(int64_t n, const Add& add) {
  using rows::kChunk, rows::kParts;
  // The sums of the chunks of `count` numbers.
  const auto sum_chunks = [](int64_t count, const auto& add_to) {
    std::vector<T> sums(std::max<int64_t>(ceil_div(count, kChunk), 1));
    for (T& sum : sums) {
      const int64_t first = (&sum - sums.data()) * kChunk;
      const int64_t end = std::min(first + kChunk, count);
      T parts[kParts] = {};
      for (int64_t i = first; i < end; i += kParts) {
        add_to(i, std::min<int64_t>(kParts, end - i), parts);
      }
      for (int width = kParts / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; ++j) parts[j] += parts[j + width];
      }
      sum = parts[0];
    }
    return sums;
  };
  std::vector<T> sums = sum_chunks(n, add);
  while (sums.size() > 1) {
    sums = sum_chunks(static_cast<int64_t>(sums.size()), [&](int64_t i, int64_t count, T* parts) {
      for (int64_t j = 0; j < count; ++j) parts[j] += sums[i + j];
    });
  }
  return sums[0];
}

// Adds each element, or the product of two, to the part of that element.
template <typename T>
SIMD static void add_terms(const T* __restrict x, int64_t count,
                           accumulator_t<T>* __restrict parts) {
  for (int64_t i = 0; i < count; ++i) parts[i] += widen(x[i]);
}
template <typename T>
SIMD static void add_products(const T* __restrict x, const T* __restrict y, int64_t count,
                              accumulator_t<T>* __restrict parts) {
  for (int64_t i = 0; i < count; ++i) parts[i] = std::fma(widen(x[i]), widen(y[i]), parts[i]);
}

// Returns the sum of a row's elements, or of the products of two rows' elements.
template <typename T>
accumulator_t<T> sum_terms(const T* x, int64_t n) {
  using A = accumulator_t<T>;
  return sum_row<A>(n, [&](int64_t i, int64_t count, A* parts) { add_terms(x + i, count, parts); });
}
template <typename T>
accumulator_t<T> sum_products(const T* x, const T* y, int64_t n) {
  using A = accumulator_t<T>;
  return sum_row<A>(
      n, [&](int64_t i, int64_t count, A* parts) { add_products(x + i, y + i, count, parts); });
}

}  // namespace tiled::cpu
