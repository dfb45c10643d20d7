#pragma once
// The passes of complex products on the GPU: before and after the kernel of a real product.

#include "core/complex.h"
#include "core/context.h"

namespace tiled::cuda {

// `only_if`: an int on the GPU, and nothing is written if it is 0; or null.
void launch_pack(const Pack& pack, const Context& context, const int* only_if = nullptr);
void launch_combine(const Combine& combine, const Context& context);

}  // namespace tiled::cuda
