#pragma once
// Layer norm and RMS norm over the last dimension, in the order of core/order_rows.h.

#include <optional>
#include <tuple>

#include "binding/tensors.h"

namespace tiled {

// Returns y, and the mean and the inverse deviation of each row in float32, or in float64 for
// float64. Not centered it is an RMS norm, which has no bias, and the mean is an empty tensor.
//
// weight, bias: (columns,) of one dtype, x's or, for 16-bit x, float32.
std::tuple<Tensor, Tensor, Tensor> run_row_norm(const Tensor& x,
                                                const std::optional<Tensor>& weight,
                                                const std::optional<Tensor>& bias, double eps,
                                                bool centered);

// Returns the gradients of x, of the weight and of the bias from `grad`, that of y; an empty tensor
// for one that is not needed. Those of parameters have the weight's dtype, or x's without a weight.
std::tuple<Tensor, Tensor, Tensor> run_row_norm_backward(const Tensor& grad, const Tensor& x,
                                                         const std::optional<Tensor>& weight,
                                                         const Tensor& mean, const Tensor& inverse,
                                                         bool centered, bool needs_x,
                                                         bool needs_weight, bool needs_bias);

}  // namespace tiled
