#pragma once
// What a rung may use to compute: filled in by ops.cpp, which alone knows PyTorch.

#include <cstdint>
#include <functional>
#include <stdexcept>

namespace tiled {

// Calls body(begin, end) for pieces that cover [0, count), on several threads.
using ParallelFor = void (*)(int64_t count, const std::function<void(int64_t, int64_t)>& body);

// Scratch memory on the GPU, aligned to 512 bytes, from PyTorch's allocator: it is the caller's
// until everything is launched, and then whoever's comes next on the stream. Throws a sentence.
using Allocate = std::function<void*(int64_t bytes)>;

struct Context {
  int sms = 1;                  // multiprocessors of the GPU, or threads of the CPU
  int compute_capability = 0;          // 90 for sm_90; 0 on the CPU
  void* stream = nullptr;              // cudaStream_t
  Allocate allocate = nullptr;         // on the GPU
  ParallelFor parallel_for = nullptr;  // on the CPU
  int64_t* recomputed = nullptr;       // where asked: += elements that a guard had computed again

  // From `allocate`, or null where there is not so much, and a rung can do without.
  void* allocate_or_null(int64_t bytes) const {
    try {
      return allocate(bytes);
    } catch (const std::runtime_error&) {
      return nullptr;
    }
  }
  bool on_host() const { return compute_capability == 0; }
  bool on_hopper() const { return compute_capability == 90; }  // wgmma and what feeds it
};

// The context of PyTorch's current stream on `device` (in builds with CUDA).
Context cuda_context(int device);

// What CUDA says of an error that an earlier call left behind; empty where there is none.
const char* cuda_pending_error();

}  // namespace tiled
