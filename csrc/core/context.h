#pragma once
// The resources that a launcher may use. binding/, which alone knows PyTorch, provides them.

#include <cstdint>
#include <functional>

namespace tiled {

// Calls body(begin, end) for parts that cover [0, count), on several threads.
using ParallelFor = void (*)(int64_t count, const std::function<void(int64_t, int64_t)>& body);

// Returns scratch memory on the GPU, 512-byte aligned and not zeroed, from PyTorch's allocator;
// null if there is not enough. The memory is the launcher's until all of its kernels are
// launched; then it may be used again by later work on the stream. Throws for any other failure.
using Allocate = std::function<void*(int64_t bytes)>;

struct Context {
  int sms = 1;                         // of the current CUDA context; or the CPU's threads
  int compute_capability = 0;          // 90 for sm_90; 0 on the CPU
  void* stream = nullptr;              // cudaStream_t
  Allocate allocate = nullptr;         // on the GPU
  ParallelFor parallel_for = nullptr;  // on the CPU
  int64_t* recomputed = nullptr;       // counts flagged elements that were recomputed; or null

  bool on_host() const { return compute_capability == 0; }
  bool on_hopper() const { return compute_capability == 90; }  // wgmma, TMA, clusters
};

// The context of PyTorch's current stream on `device` (in builds with CUDA).
Context cuda_context(int device);

// CUDA's text for an error that an earlier call left behind; empty if there is none.
const char* cuda_pending_error();

}  // namespace tiled
