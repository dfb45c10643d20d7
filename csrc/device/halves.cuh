#pragma once
// Halves in pairs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/shared.cuh"

namespace tiled::device {

// Two numbers rounded, the first in the lower bits.
template <bool kBFloat16 = false>
__device__ uint32_t pair(float x, float y) {
  if constexpr (kBFloat16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  } else {
    const __half2 two = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  }
}

// fp16x3::split, of two numbers at a time: the first in the lower bits.
__device__ inline void split_two(float x, float y, uint32_t& hi, uint32_t& lo) {
  const __half2 hi_two = __floats2half2_rn(x, y);
  const float2 rounded = __half22float2(hi_two);
  const __half2 lo_two = __floats2half2_rn((x - rounded.x) * 0x1p11f, (y - rounded.y) * 0x1p11f);
  hi = reinterpret_cast<const uint32_t&>(hi_two);
  lo = reinterpret_cast<const uint32_t&>(lo_two);
}

// Four matrices of (8, 8) halves from shared memory, one register each: PTX ISA, "ldmatrix". Lane l
// gives the address of row l % 8 of matrix l / 8, and gets two neighbours of row l / 4 of each; or,
// transposed, what lies in column l / 4, in two neighbouring rows.
template <bool kTransposed = false>
__device__ void load_matrices(uint32_t (&d)[4], const void* row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}
// The other way: to shared memory, PTX ISA, "stmatrix".
__device__ inline void store_matrices(const void* row, const uint32_t (&d)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
      : "memory");
}

}  // namespace tiled::device
