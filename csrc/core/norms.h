#pragma once
// Layer norm and RMS norm over the last dimension as launchers take them, and the formulas of
// core/order_rows.h that the GPU's kernels and the host's share.

#include <cmath>
#include <cstdint>

#include "core/order_chunked.h"
#include "core/problem.h"
#include "core/rows.h"

namespace tiled {

// y is contiguous.
struct NormProblem {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0;  // both above 0
  Rows x = {};
  const void* weight = nullptr;  // null if there is none
  const void* bias = nullptr;    // the same
  bool wide_params = false;      // weight and bias are float32 beside 16-bit x
  double eps = 0;
  bool centered = true;  // layer norm; or else RMS norm
  void* y = nullptr;
  void* mean = nullptr;  // null if not centered
  void* inverse = nullptr;
};

// The gradients, which are null if they are not needed. dx is contiguous; dweight and dbias have
// the dtype of weight, which wide_params says.
struct NormBackward {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0;
  Rows dy = {}, x = {};
  const void* weight = nullptr;
  bool wide_params = false;
  const void* mean = nullptr;  // null if not centered
  const void* inverse = nullptr;
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;

  HOST_DEVICE bool needs_columns() const { return dweight != nullptr || dbias != nullptr; }
};

namespace rows {

// The parameters of a norm without a weight or without a bias. They change no bit: -0 + x is x.
template <typename T>
inline constexpr T kNoWeight = T(1);
template <typename T>
inline constexpr T kNoBias = T(-0.0);

HOST_DEVICE inline float root(float x) { return sqrtf(x); }
HOST_DEVICE inline double root(double x) { return sqrt(x); }

template <typename T>
HOST_DEVICE T mean_of(T sum, int64_t count) {
  return sum / static_cast<T>(count);
}

// 1 / sqrt(mean of squares + eps)
template <typename T>
HOST_DEVICE T inverse_of(T squares, int64_t count, double eps) {
  return T(1) / root(mean_of(squares, count) + static_cast<T>(eps));
}

template <typename T>
HOST_DEVICE T normalized(T deviation, T inverse, T weight, T bias) {
  return fused_multiply_add(deviation * inverse, weight, bias);
}

// The gradient of an element: g is that of its normalized value h. mean_g is 0 for an RMS norm.
template <typename T>
HOST_DEVICE T norm_gradient(T g, T h, T mean_g, T mean_gh, T inverse) {
  return fused_multiply_add(-h, mean_gh, g - mean_g) * inverse;
}

}  // namespace rows
}  // namespace tiled
