// Copies between the host and a GPU, in the order of a stream.

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "binding/copies.h"

namespace tiled {
namespace {

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  throw std::runtime_error("torch_tiled: CUDA says \"" + std::string(cudaGetErrorString(status)) +
                           "\" about a copy between the host and the GPU");
}

// Copies rows between the two sides. A pitch is the bytes from a row to the next.
void copy_rows(char* host, int64_t host_pitch, char* gpu, int64_t gpu_pitch, int64_t row_bytes,
               int64_t rows, bool to_gpu, cudaStream_t stream) {
  const auto kind = to_gpu ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  char *to = to_gpu ? gpu : host, *from = to_gpu ? host : gpu;
  const auto to_pitch = static_cast<size_t>(to_gpu ? gpu_pitch : host_pitch);
  const auto from_pitch = static_cast<size_t>(to_gpu ? host_pitch : gpu_pitch);
  const auto width = static_cast<size_t>(row_bytes), height = static_cast<size_t>(rows);
  const bool is_range = rows == 1 || (to_pitch == width && from_pitch == width);
  check(is_range ? cudaMemcpyAsync(to, from, width * height, kind, stream)
                 : cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream));
}

// The events of a thread of the host, one for each slot. They are kept for the next call, which
// waits for them. Threads that make events at the same time would halve the rate of short copies,
// too.
class Events {
 public:
  // Returns the events of the calling thread, which has the current device `device`.
  static Events& of_thread(int device) {
    static thread_local Events events;
    if (events.device_ != device) events.make(device);
    return events;
  }

  cudaEvent_t operator[](int slot) const { return events_.at(static_cast<size_t>(slot)); }

 private:
  Events() = default;
  ~Events() { destroy(); }

  void make(int device) {
    destroy();
    for (cudaEvent_t& event : events_) check(cudaEventCreateWithFlags(&event, kFlags));
    device_ = device;
  }
  void destroy() {
    device_ = -1;
    for (cudaEvent_t& event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
      event = nullptr;
    }
  }

  static constexpr unsigned kFlags = cudaEventDisableTiming;
  int device_ = -1;
  std::array<cudaEvent_t, kSlots> events_{};
};

class CudaSlotCopies : public SlotCopies {
 public:
  CudaSlotCopies(cudaStream_t stream, const Events& events, bool to_gpu)
      : stream_(stream), events_(events), to_gpu_(to_gpu) {}

  void copy(int slot, char* in_slot, char* on_gpu, int64_t gpu_pitch, int64_t row_bytes,
            int64_t rows) override {
    copy_rows(in_slot, row_bytes, on_gpu, gpu_pitch, row_bytes, rows, to_gpu_, stream_);
    check(cudaEventRecord(events_[slot], stream_));
  }

  void wait(int slot) override {
    const auto begin = Clock::now();
    cudaError_t status = cudaSuccess;
    while ((status = cudaEventQuery(events_[slot])) == cudaErrorNotReady) {
      cudaGetLastError();  // "not ready" is no error for the next caller
      const auto now = Clock::now();
      if (now - begin > kAwake) {  // the copy waits for a product
        std::this_thread::sleep_for(kAsleep);
        continue;
      }
      // Queries without a pause slow the copies of other threads.
      while (Clock::now() < now + kBetweenQueries) std::this_thread::yield();
    }
    check(status);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kBetweenQueries{5}, kAwake{500}, kAsleep{100};

  cudaStream_t stream_;
  const Events& events_;
  bool to_gpu_;
};

}  // namespace

void cuda_copy(const Context& context, const MatrixCopy& copy) {
  copy_rows(copy.host.data, copy.host.pitch, copy.gpu.data, copy.gpu.pitch,
            copy.cols * copy.element, copy.rows, copy.to_gpu,
            static_cast<cudaStream_t>(context.stream));
}

std::unique_ptr<SlotCopies> cuda_slot_copies(const Context& context, int device, bool to_gpu) {
  check(cudaSetDevice(device));
  const auto stream = static_cast<cudaStream_t>(context.stream);
  return std::make_unique<CudaSlotCopies>(stream, Events::of_thread(device), to_gpu);
}

}  // namespace tiled
