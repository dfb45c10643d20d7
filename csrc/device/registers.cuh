#pragma once
// Registers moved between the warpgroups of a block: PTX ISA, "setmaxnreg". All warps of a
// warpgroup call it.

namespace tiled::device {

template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tiled::device
