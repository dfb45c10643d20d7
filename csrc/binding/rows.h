#pragma once
// Softmax, logsumexp and sums over the last dimension, in the order of core/order_rows.h. Results
// are contiguous and have the operands' dtype.
//
// Operands have any strides. One without adjacent columns, or without one pitch for all its rows,
// is copied first.

#include "binding/tensors.h"

namespace tiled {

// Returns softmax(x), or its logarithm.
Tensor row_softmax(const Tensor& x, bool is_log);
// Returns the gradient of x from that of y, the softmax or its logarithm.
Tensor row_softmax_backward(const Tensor& grad, const Tensor& y, bool is_log);
// These return x's shape without the last dimension. An empty row has a logsumexp of -Inf, a sum of
// 0 and a mean of NaN.
Tensor row_logsumexp(const Tensor& x);
Tensor row_sum(const Tensor& x, bool is_mean);

}  // namespace tiled
