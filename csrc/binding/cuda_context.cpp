// PyTorch's current stream, and the properties of a device and of the current CUDA context. The one
// symbol needed of libtorch_cuda is looked up in the process, so that the library loads if
// libtorch_cuda is missing, too.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include "core/context.h"
#include "core/driver.h"

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

// Formats a version as CUDA gives it, such as 13000.
std::string version_name(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void check(cudaError_t status, int device) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    throw std::runtime_error("torch_tiled: the driver of this machine supports CUDA " +
                             version_name(driver) + ", and torch_tiled was built with CUDA " +
                             version_name(CUDART_VERSION) +
                             "; install a newer driver, or build torch_tiled with an older toolkit "
                             "(12.0 or later): pip install --no-build-isolation .");
  }
  throw std::runtime_error("torch_tiled: CUDA says \"" + std::string(cudaGetErrorString(status)) +
                           "\" about device " + std::to_string(device));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), device);
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

// Returns the SMs that kernels of the current context run on: all of the device's, or the part that
// a green context has. Makes the device's primary context current in a thread without a context, as
// a launch by the runtime would: cuTensorMapEncodeTiled needs one. A context that is current is the
// caller's, and stays.
int sms_of_current_context(int device) {
  static const auto get_current =
      driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", 4000);
  CUcontext current = nullptr;
  if (get_current == nullptr || get_current(&current) != CUDA_SUCCESS || current == nullptr) {
    check(cudaSetDevice(device), device);
    return properties(device).sms;
  }
#if CUDA_VERSION >= 12040
  static const auto get_id = driver_function<decltype(&cuCtxGetId)>("cuCtxGetId", 12000);
  static const auto get_resource =
      driver_function<decltype(&cuCtxGetDevResource)>("cuCtxGetDevResource", 12040);
  // The answer for this thread's last context. A handle may be used again, an id is not.
  thread_local unsigned long long last_id = 0;
  thread_local int last_sms = 0;
  unsigned long long id = 0;
  const bool has_id = get_id != nullptr && get_id(current, &id) == CUDA_SUCCESS;
  if (has_id && last_sms > 0 && id == last_id) return last_sms;
  CUdevResource resource{};
  if (get_resource != nullptr &&
      get_resource(current, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
    const int sms = std::clamp(static_cast<int>(resource.sm.smCount), 1, properties(device).sms);
    if (has_id) last_id = id, last_sms = sms;
    return sms;
  }
#endif
  return properties(device).sms;
}

}  // namespace

Context cuda_context(int device) {
  static const CurrentStream current_stream = find_current_stream();
  Context context;
  if (current_stream(device, &context.stream) != 0) {
    throw std::runtime_error("torch_tiled: PyTorch has no current stream for device " +
                             std::to_string(device));
  }
  int current_device = -1;
  check(cudaGetDevice(&current_device), device);
  context.sms = current_device == device ? sms_of_current_context(device) : properties(device).sms;
  context.compute_capability = properties(device).compute_capability;
  return context;
}

const char* cuda_pending_error() {
  const cudaError_t status = cudaPeekAtLastError();
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

}  // namespace tiled
