#pragma once
// Loads from global memory, and into caches: PTX ISA, "ld.global.nc" and "prefetch".

namespace tiled::ptx {

// Loads an element that no kernel writes meanwhile. L2 fetches its line of 128 bytes. Volatile, so
// that it stays behind pdl_wait().
__device__ inline double ld_global_nc(const double* at) {
  double x;
  asm volatile("ld.global.nc.L2::128B.f64 %0, [%1];" : "=d"(x) : "l"(at));
  return x;
}

// Loads the cache line of an address into L1, or into L2.
__device__ inline void prefetch_l1(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}
__device__ inline void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

}  // namespace tiled::ptx
