#pragma once
// Barriers 1 to 15 of a block, for some of its threads: PTX ISA, "barrier.cta".

namespace tiled::ptx {

// __syncthreads() for `count` threads.
__device__ inline void named_barrier_sync(int barrier, int count) {
  __barrier_sync_count(barrier, count);
}
// Arrives, and does not wait for the others.
__device__ inline void named_barrier_arrive(int barrier, int count) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Synchronizes, and returns whether `predicate` holds for any of the threads.
__device__ inline bool named_barrier_sync_or(int barrier, int count, bool predicate) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "barrier.cta.red.or.pred q, %2, %3, p;\n"
      "selp.s32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<int>(predicate)), "r"(barrier), "r"(count)
      : "memory");
  return any != 0;
}

}  // namespace tiled::ptx
