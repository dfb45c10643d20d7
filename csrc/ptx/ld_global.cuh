#pragma once
// Loads from global memory: PTX ISA, "ld.global.nc".

namespace tiled::ptx {

// Loads an element that no kernel writes meanwhile. L2 fetches its line of 128 bytes. Volatile, so
// that it stays behind pdl_wait().
__device__ inline double ld_global_nc(const double* at) {
  double x;
  asm volatile("ld.global.nc.L2::128B.f64 %0, [%1];" : "=d"(x) : "l"(at));
  return x;
}

}  // namespace tiled::ptx
