#pragma once
// Convolutions on a GPU.

#include <span>

#include "core/context.h"
#include "core/convolution.h"

namespace tiled::cuda {

// Computes convolutions of the same images on Hopper. Each one fits_im2col(), and has images,
// channels and filters. Returns false, with no y touched, if there is no memory for the workspace.
bool launch_conv_fp16x3(std::span<const Convolution> convs, const Context& context);

// The bytes of the workspace on a GPU with `sms` SMs.
int64_t conv_fp16x3_workspace(std::span<const Convolution> convs, int64_t sms);

// Computes the gradient of a convolution's filters on Hopper, under the same conditions.
bool launch_filter_gradient(const FilterGradient& gradient, const Context& context);
int64_t filter_gradient_workspace(const FilterGradient& gradient, int64_t sms);

}  // namespace tiled::cuda
