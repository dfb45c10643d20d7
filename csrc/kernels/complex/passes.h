#pragma once
// The passes of complex products on the GPU: before and after the kernel of a real product.

#include "core/complex.h"
#include "core/context.h"

namespace tiled::cuda {

void launch_pack(const Pack& pack, const Context& context);
void launch_combine(const Combine& combine, const Context& context);

}  // namespace tiled::cuda
