#pragma once
// Calls of CUDA's runtime, checked.

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace tiled {

// Throws CUDA's text of an error, with the file and line of the call.
inline void check(cudaError_t status,
                  std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  const std::string file = where.file_name();
  throw std::runtime_error("torch_tiled: CUDA says \"" + std::string(cudaGetErrorString(status)) +
                           "\" (" + file.substr(file.rfind('/') + 1) + ":" +
                           std::to_string(where.line()) + ")");
}

}  // namespace tiled
