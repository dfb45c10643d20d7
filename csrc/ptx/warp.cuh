#pragma once
// One lane of a warp, and values that its lanes share: PTX ISA, "elect.sync" and "shfl.sync".

#include <cstdint>

namespace tiled::ptx {

// Elects one lane of a converged warp. Prefer it to `lane == 0` before TMA instructions: the
// compiler then knows that one thread runs the branch, and adds no loop over lanes around them.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Returns x, which is the same in all lanes, such that the compiler may use a uniform register.
__device__ inline int warp_uniform(unsigned x) {
  return static_cast<int>(__shfl_sync(0xffffffff, x, 0));
}

}  // namespace tiled::ptx
