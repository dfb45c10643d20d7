#pragma once
// Lanes of a warp, and values that they share: PTX ISA, "elect.sync", "shfl.sync" and "%laneid".

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

// Returns the lane, read anew each time: a loop keeps no addresses that depend on it in registers,
// and what does not depend on it stays in uniform registers.
__device__ inline int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Returns x, which is the same in all lanes, such that the compiler may use a uniform register.
__device__ inline int warp_uniform(unsigned x) {
  return static_cast<int>(__shfl_sync(0xffffffff, x, 0));
}

}  // namespace tiled::ptx
