#pragma once
// The weight and the bias of a norm, which have T, or float32 beside 16-bit rows.

#include <cstdint>

#include "kernels/rows/row.cuh"

namespace tiled::cuda::rows {

// Loads a vector of a weight or of a bias; `none` if it is null.
template <typename T, typename A = accumulator_t<T>>
__device__ void load_params(const void* params, int64_t at, int left, bool is_wide,
                            bool is_vectorized, A none, A (&to)[kVector]) {
  if constexpr (sizeof(T) == 2) {
    if (is_wide && params != nullptr) {
      return load_vector(static_cast<const float*>(params) + at, left, is_vectorized, none, to);
    }
  }
  const int count = params == nullptr ? 0 : left;
  load_vector(static_cast<const T*>(params) + at, count, is_vectorized, none, to);
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
