#pragma once
// What a kernel may use to compute. binding/, which alone knows PyTorch, fills it in.

#include <cstdint>
#include <functional>

namespace tiled {

// Calls body(begin, end) for parts that cover [0, count), on several threads.
using ParallelFor = void (*)(int64_t count, const std::function<void(int64_t, int64_t)>& body);

// Returns scratch memory on the GPU, 512-byte aligned and not zeroed, from PyTorch's allocator;
// null where there is not enough. It is the kernel's until everything is launched, then the
// stream's. Throws for any other failure.
using Allocate = std::function<void*(int64_t bytes)>;

struct Context {
  int sms = 1;                         // the GPU's SMs, or the CPU's threads
  int compute_capability = 0;          // 90 for sm_90; 0 on the CPU
  void* stream = nullptr;              // cudaStream_t
  Allocate allocate = nullptr;         // on the GPU
  ParallelFor parallel_for = nullptr;  // on the CPU
  int64_t* recomputed = nullptr;       // where not null: += flagged elements that were recomputed

  bool on_host() const { return compute_capability == 0; }
  bool on_hopper() const { return compute_capability == 90; }  // wgmma, TMA, clusters
};

// The context of PyTorch's current stream on `device` (in builds with CUDA).
Context cuda_context(int device);

// CUDA's text for an error that an earlier call left behind; empty where there is none.
const char* cuda_pending_error();

}  // namespace tiled
