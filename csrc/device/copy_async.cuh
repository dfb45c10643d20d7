#pragma once
// Copies from global to shared memory that run while their thread goes on: PTX ISA, "cp.async".
// They are committed and awaited by <cuda_pipeline_primitives.h>.

namespace tiled::device {

// 16 bytes, aligned both, of which the first `inside` are read and the others zeros.
__device__ inline void copy_16(void* smem, const void* global, int inside) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(inside)
               : "memory");
}
// 4 bytes likewise: all or none.
__device__ inline void copy_4(void* smem, const void* global, int inside) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(inside)
               : "memory");
}

}  // namespace tiled::device
