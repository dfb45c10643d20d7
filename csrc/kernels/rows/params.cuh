#pragma once
// The weight and the bias of a norm, which have T, or float32 beside 16-bit rows.

#include <cstdint>

#include "kernels/rows/row.cuh"

namespace tiled::cuda::rows {

// Loads kSteps vectors of a weight or of a bias of `columns` elements; `none` if it is null.
template <typename T, int kSteps, typename A = accumulator_t<T>>
__device__ void load_params(const void* params, int64_t columns, int64_t first, bool is_wide,
                            bool is_vectorized, A none, A (&to)[1][kSteps][kVector]) {
  const int64_t size = params == nullptr ? 0 : columns;
  if constexpr (sizeof(T) == 2) {
    if (is_wide) {
      const Row<float> row({params, 0}, 0, size, is_vectorized);
      return load_rows([&](int) { return row; }, first, none, to);
    }
  }
  const Row<T> row({params, 0}, 0, size, is_vectorized);
  load_rows([&](int) { return row; }, first, none, to);
}

template <typename T, typename A = accumulator_t<T>>
__device__ void store_param(void* to, int64_t column, A value, bool is_wide) {
  if constexpr (sizeof(T) == 2) {
    if (is_wide) {
      static_cast<float*>(to)[column] = value;
      return;
    }
  }
  static_cast<T*>(to)[column] = narrow<T>(value);
}

// Returns whether a weight or a bias consists of aligned vectors; so does one that is null.
template <typename T>
bool are_params_vectorized(const void* params, int64_t columns, bool is_wide) {
  const Rows rows{params, 0};
  return params == nullptr ||
         (is_wide ? is_vectorized<float>(rows, columns) : is_vectorized<T>(rows, columns));
}

}  // namespace tiled::cuda::rows
