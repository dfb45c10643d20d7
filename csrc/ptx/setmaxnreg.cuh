#pragma once
// Moves registers between the warpgroups of a block: PTX ISA, "setmaxnreg". All warps of a
// warpgroup call it.

namespace tiled::ptx {

template <int kRegisters>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tiled::ptx
