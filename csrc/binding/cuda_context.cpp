// PyTorch's current stream, and the properties of a device. The one symbol needed of libtorch_cuda
// is looked up in the process, so that the library loads where libtorch_cuda is missing, too.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include "core/context.h"

namespace tiled {
namespace {

using CurrentStream = int32_t (*)(int32_t device, void** stream);

CurrentStream find_current_stream() {
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
  void* symbol =
      torch_cuda != nullptr ? dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream") : nullptr;
  if (symbol == nullptr) {
    throw std::runtime_error(
        "torch_tiled: this PyTorch has no CUDA library with a current stream; install a CUDA "
        "build of torch 2.11 or later");
  }
  return reinterpret_cast<CurrentStream>(symbol);
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&value, which, device);
  if (status != cudaSuccess) {
    throw std::runtime_error("torch_tiled: CUDA says \"" + std::string(cudaGetErrorString(status)) +
                             "\" about device " + std::to_string(device));
  }
  return value;
}

struct Device {
  int sms, compute_capability;
};

const Device& properties(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<const Device*>, kMaxDevices> cache{};
  auto& slot = cache.at(static_cast<size_t>(device));
  if (slot.load() == nullptr) {  // two threads may both get here, with the same result
    slot.store(new Device{attribute(cudaDevAttrMultiProcessorCount, device),
                          10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                              attribute(cudaDevAttrComputeCapabilityMinor, device)});
  }
  return *slot.load();
}

}  // namespace

Context cuda_context(int device) {
  static const CurrentStream current_stream = find_current_stream();
  Context context;
  if (current_stream(device, &context.stream) != 0) {
    throw std::runtime_error("torch_tiled: PyTorch has no current stream for device " +
                             std::to_string(device));
  }
  context.sms = properties(device).sms;
  context.compute_capability = properties(device).compute_capability;
  return context;
}

const char* cuda_pending_error() {
  const cudaError_t status = cudaPeekAtLastError();
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

}  // namespace tiled
