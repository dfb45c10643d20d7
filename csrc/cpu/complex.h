#pragma once
// The passes of complex products on the CPU.

#include "core/complex.h"
#include "core/context.h"

namespace tiled::cpu {

void run_pack(const Pack& pack, const Context& context);
void run_combine(const Combine& combine, const Context& context);

}  // namespace tiled::cpu
