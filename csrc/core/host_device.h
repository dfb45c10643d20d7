#pragma once
// Macros that let one header serve the host's compiler and nvcc.

#include <cstdint>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#ifdef __CUDA_ARCH__
#define NO_UNROLL _Pragma("unroll 1")
#else
#define NO_UNROLL
#endif

namespace tiled {

HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tiled
