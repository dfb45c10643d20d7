#pragma once
// Counts the elements that a kernel recomputes by itself, if the context asks.

#include <cuda_runtime_api.h>

#include "core/context.h"
#include "kernels/common/check.h"

namespace tiled::cuda {

class RecomputedCounter {
 public:
  explicit RecomputedCounter(const Context& context) : context_(context) {
    if (context.recomputed == nullptr) return;
    on_gpu_ = static_cast<unsigned long long*>(context.allocate(sizeof *on_gpu_));
    if (on_gpu_ != nullptr) check(cudaMemsetAsync(on_gpu_, 0, sizeof *on_gpu_, stream()));
  }

  // Returns whether there was no memory for the counter, so that nothing may be launched.
  bool lacks_memory() const { return context_.recomputed != nullptr && on_gpu_ == nullptr; }

  // The counter in the GPU's memory, or null if the context does not ask.
  unsigned long long* on_gpu() const { return on_gpu_; }

  // Waits for the stream and adds the count to the context's.
  void read() const {
    if (on_gpu_ == nullptr) return;
    unsigned long long count = 0;
    check(cudaMemcpyAsync(&count, on_gpu_, sizeof count, cudaMemcpyDeviceToHost, stream()));
    check(cudaStreamSynchronize(stream()));
    *context_.recomputed += static_cast<int64_t>(count);
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(context_.stream); }

  const Context& context_;
  unsigned long long* on_gpu_ = nullptr;
};

}  // namespace tiled::cuda
