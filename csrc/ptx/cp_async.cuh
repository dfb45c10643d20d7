#pragma once
// Asynchronous copies by threads: PTX ISA, "cp.async". Commit and wait are in
// <cuda_pipeline_primitives.h>. Also L2 cache policies: PTX ISA, "createpolicy".

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// Copies 16 bytes, aligned on both sides.
__device__ inline void cp_async_16(uint32_t to, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global)
               : "memory");
}
// Copies 16 bytes with an L2 cache policy.
__device__ inline void cp_async_16(uint32_t to, const void* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(global), "l"(policy)
               : "memory");
}
// Copies the first `bytes` of 16 and fills the rest with zeros. compute-sanitizer counts all 16 as
// read unless `bytes` is 0.
__device__ inline void cp_async_16_zfill(uint32_t to, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_16_zfill(void* smem, const void* global, int bytes) {
  cp_async_16_zfill(shared_address(smem), global, bytes);
}
// Copies 4 bytes, or fills them with zeros if `bytes` is 0.
__device__ inline void cp_async_4_zfill(uint32_t to, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_4_zfill(void* smem, const void* global, int bytes) {
  cp_async_4_zfill(shared_address(smem), global, bytes);
}
// Copies 8 bytes, or fills them with zeros if `bytes` is 0.
__device__ inline void cp_async_8_zfill(uint32_t to, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(to), "l"(global),
               "r"(bytes)
               : "memory");
}
// Copies kBytes bytes, or fills them with zeros if `bytes` is 0.
template <int kBytes>
__device__ void cp_async_zfill(uint32_t to, const void* global, int bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 4) cp_async_4_zfill(to, global, bytes);
  if constexpr (kBytes == 8) cp_async_8_zfill(to, global, bytes);
  if constexpr (kBytes == 16) cp_async_16_zfill(to, global, bytes);
}
// Copies four floats, reads only the first `bytes` of them, and has zeros for the rest.
__device__ inline void cp_async_x4_zfill(uint32_t to, const float* global, int bytes) {
  if (bytes % 16 == 0) return cp_async_16_zfill(to, global, bytes);
  _Pragma("unroll") for (int i = 0; i < 4; ++i)
      cp_async_4_zfill(to + i * 4, global + i, i * 4 < bytes ? 4 : 0);
}

// Copies eight 16-bit elements, and reads only the first `count` of them. Not asynchronous:
// cp.async has no 2-byte form.
__device__ inline void copy_x8_16bit_zfill(uint32_t to, const void* global, int count) {
  const auto* from = static_cast<const uint16_t*>(global);
  uint16_t x[8];
  _Pragma("unroll") for (int i = 0; i < 8; ++i) x[i] = i < count ? from[i] : uint16_t{0};
  _Pragma("unroll") for (int i = 0; i < 8; ++i) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(x[i]) : "memory");
  }
  __threadfence_block();
}

// L2 cache policies. Data that is read once is evicted first; data that is read again soon, last.
__device__ inline uint64_t policy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t policy_evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t policy_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  return policy;
}
// Stores 16 bytes with an L2 cache policy.
__device__ inline void st_global_16(void* global, const uint4& x, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(global),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "l"(policy)
               : "memory");
}

}  // namespace tiled::ptx
