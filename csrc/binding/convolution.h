#pragma once
// Convolutions of float32 images: core/convolution.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "binding/tensors.h"

namespace tiled {

// Returns torch.nn.functional.conv1d, conv2d or conv3d of a batch: x is (images, channels, ...),
// and weight (filters, channels / groups, ...), with one to three spatial dimensions. The result
// is in channels_last if x or weight is.
Tensor conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
            const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
            const std::vector<int64_t>& dilation, int64_t groups, const std::string& activation);

// Returns the gradient of x of a convolution, which has the spatial sizes `size`, from that of its
// result: the transposed convolution.
Tensor conv_transposed(const Tensor& grad, const Tensor& weight, const std::vector<int64_t>& size,
                       const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                       const std::vector<int64_t>& dilation, int64_t groups);

// Returns the gradient of a convolution's filters, which have the spatial sizes `size`, from that
// of its result. It is in channels_last if x or grad is.
Tensor conv_filter_gradient(const Tensor& x, const Tensor& grad, const std::vector<int64_t>& size,
                            const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                            const std::vector<int64_t>& dilation, int64_t groups);

// Returns what conv() would do on a Hopper GPU with `sms` SMs, as JSON: whether it takes the sizes,
// and the bytes of the workspace of conv(), conv_transposed() or conv_filter_gradient(), whichever
// `result` names: "y", "dx" or "dw".
std::string explain_conv(const std::vector<int64_t>& x, const std::vector<int64_t>& weight,
                         const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                         const std::vector<int64_t>& dilation, int64_t groups,
                         const std::string& result, int64_t sms);

}  // namespace tiled
