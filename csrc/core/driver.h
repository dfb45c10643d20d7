#pragma once
// Functions of the CUDA driver, looked up at run time: the library is not linked against it.

#include <cuda_runtime_api.h>

namespace tiled {

// Returns the driver's function of that name as of a CUDA version, such as 12040 for 12.4; null
// if the driver is older. Use: driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent",
// ..)
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
#else
  static_cast<void>(version);
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  const bool usable = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return usable ? reinterpret_cast<Function>(function) : nullptr;
}

}  // namespace tiled
