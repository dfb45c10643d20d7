#pragma once
// 8 x 8 matrices of 16-bit elements between shared memory and a warp's registers: PTX ISA,
// "ldmatrix" and "stmatrix".

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// Loads four matrices, one register each. Lane l gives the address of row l % 8 of matrix l / 8,
// and gets two adjacent elements of row l / 4 of each matrix; transposed, two rows of column l / 4.
template <bool kTransposed = false>
__device__ void ldmatrix_x4(uint32_t (&d)[4], const void* row) {
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
// Stores four matrices, with the layout that ldmatrix_x4() loads.
__device__ inline void stmatrix_x4(const void* row, const uint32_t (&d)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
      : "memory");
}

}  // namespace tiled::ptx
