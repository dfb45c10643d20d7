#pragma once
// Programmatic dependent launch: PTX ISA, "griddepcontrol". Both do nothing before Hopper, as no
// kernel overlaps the one before it.

namespace tiled::ptx {

// Waits until the previous kernel on the stream is complete and its results are visible.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel on the stream start as SMs become free.
__device__ inline void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tiled::ptx
