#pragma once
// Copies from global to shared memory that run while their thread goes on: PTX ISA, "cp.async".
// They are committed and awaited by <cuda_pipeline_primitives.h>. And what L2 is asked to keep, of
// those and of stores: PTX ISA, "createpolicy".

#include <cstdint>

#include "device/shared.cuh"

namespace tiled::device {

// 16 bytes, aligned both, of which the first `inside` are copied and the others zeros. Unless that
// is none, all are read, as compute-sanitizer sees it.
__device__ inline void copy_16(uint32_t to, const void* global, int inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(inside)
               : "memory");
}
__device__ inline void copy_16(void* smem, const void* global, int inside) {
  copy_16(shared_address(smem), global, inside);
}
// All 16, for fewer instructions.
__device__ inline void copy_whole_16(uint32_t to, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global)
               : "memory");
}
// Likewise, kept in the L2 cache by a policy.
__device__ inline void copy_whole_16(uint32_t to, const void* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(global), "l"(policy)
               : "memory");
}
// The policy of data that is not read again: it makes room first.
__device__ inline uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
// That of data that is, by the same instruction.
__device__ inline uint64_t read_again() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  return policy;
}
// That of data that is read soon, and by many: it makes room last.
__device__ inline uint64_t read_soon() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  return policy;
}
// 4 bytes: all or none.
__device__ inline void copy_4(uint32_t to, const void* global, int inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(inside)
               : "memory");
}
__device__ inline void copy_4(void* smem, const void* global, int inside) {
  copy_4(shared_address(smem), global, inside);
}
// Four float32 of 16 bytes likewise, of which no more is read than `inside` bytes.
__device__ inline void copy_four(uint32_t to, const float* global, int inside) {
  if (inside % 16 == 0) return copy_16(to, global, inside);
  _Pragma("unroll") for (int i = 0; i < 4; ++i)
      copy_4(to + i * 4, global + i, i * 4 < inside ? 4 : 0);
}

// Eight halves of 16 bytes likewise, but before the thread goes on: no more is read than `inside`
// of them.
__device__ inline void copy_halves(uint32_t to, const void* global, int inside) {
  const auto* from = static_cast<const uint16_t*>(global);
  uint16_t x[8];
  _Pragma("unroll") for (int i = 0; i < 8; ++i) x[i] = i < inside ? from[i] : uint16_t{0};
  _Pragma("unroll") for (int i = 0; i < 8; ++i) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(x[i]) : "memory");
  }
  __threadfence_block();
}

// Stores 16 bytes, kept in the L2 cache by a policy.
__device__ inline void store_16(void* global, const uint4& x, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(global),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "l"(policy)
               : "memory");
}

// Arrives at a barrier once this thread's copies before are there; it counts as one arrival: PTX
// ISA, "cp.async.mbarrier.arrive".
__device__ inline void arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

}  // namespace tiled::device
