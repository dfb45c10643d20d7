#pragma once
// Lays out a workspace: the typed buffers that a launcher needs, in one allocation.
//
// A function takes the buffers one after another. It runs twice: without memory, which counts the
// bytes, and then with an allocation of that size.
//
//   const auto take_buffers = [&](Workspace& workspace) {
//     return Buffers{.count = workspace.take<int>(1), .partial_sums = workspace.take<float>(n)};
//   };
//   void* memory = context.allocate(workspace_bytes(take_buffers));
//   if (memory == nullptr) return false;
//   Workspace workspace(memory);
//   const Buffers buffers = take_buffers(workspace);

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/host_device.h"

namespace tiled::cuda {

class Workspace {
 public:
  static constexpr int64_t kAlignment = 512;  // of each buffer, and of Context::allocate

  Workspace() = default;  // without memory
  explicit Workspace(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  // Returns the next `count` elements, not initialized, or an empty span without memory.
  template <class T>
  std::span<T> take(int64_t count) {
    static_assert(kAlignment % alignof(T) == 0);
    const int64_t offset = bytes_;
    bytes_ += ceil_div(count * int64_t{sizeof(T)}, kAlignment) * kAlignment;
    if (memory_ == nullptr) return {};
    return {reinterpret_cast<T*>(memory_ + offset), static_cast<size_t>(count)};
  }

  // The bytes of all buffers so far.
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// Returns the bytes of the buffers that `take_buffers` takes.
template <class TakeBuffers>
int64_t workspace_bytes(const TakeBuffers& take_buffers) {
  Workspace workspace;
  take_buffers(workspace);
  return workspace.bytes();
}

}  // namespace tiled::cuda
