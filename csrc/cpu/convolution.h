#pragma once
// Convolutions on the CPU, with the bits of the GPU's (core/order_convolution.h).

#include "core/context.h"
#include "core/convolution.h"

namespace tiled::cpu {

void launch_conv_fp16x3(const Convolution& conv, const Context& context);
void launch_filter_gradient(const FilterGradient& gradient, const Context& context);

}  // namespace tiled::cpu
