#pragma once
// Copies of a matrix between a GPU and memory of the host that a GPU does not read by itself: they
// pass through pinned memory.

#include <cstdint>
#include <functional>
#include <memory>

namespace tiled {

// One side of a copy: the bytes from a row to the next, and from an element of a row to the next.
struct CopySide {
  char* data;
  int64_t pitch, step;

  char* at(int64_t row, int64_t col) const { return data + row * pitch + col * step; }
};

// A matrix to copy, by its rows or by its columns, which are "rows" here.
struct MatrixCopy {
  int64_t rows, cols, element;  // `element` in bytes
  CopySide gpu, host;
  bool to_gpu;

  // Whether a side has rows of adjacent elements that do not overlap.
  bool has_rows(const CopySide& side) const {
    return side.step == element && (rows == 1 || side.pitch >= cols * element);
  }
};

// Copies between the GPU and the slots of one thread.
class SlotCopies {
 public:
  virtual ~SlotCopies() = default;
  // Copies `rows` rows of `row_bytes` bytes, which follow one another in the slot.
  virtual void copy(int slot, char* in_slot, char* on_gpu, int64_t gpu_pitch, int64_t row_bytes,
                    int64_t rows) = 0;
  // Waits until the last copy of the slot is done, if there was one in this call or an earlier one.
  virtual void wait(int slot) = 0;
};
using MakeSlotCopies = std::function<std::unique_ptr<SlotCopies>()>;

// Copies that are done at once, for tests in which the host plays the GPU.
std::unique_ptr<SlotCopies> host_slot_copies(bool to_gpu);

constexpr int kSlots = 4;                     // of a thread
constexpr int64_t kLeastBytes = kSlots * 64;  // of memory, for a thread

// Makes a copy by several threads: each calls make_copies() and has slots in `memory`. The
// GPU's side has rows, and the host's any strides. Returns when the host's side has been read or
// written. Copies from the slots to the GPU may still be under way then: the next call waits for
// a slot's copies before it fills the slot, if it comes from the same thread, with the same memory
// and number of threads.
void copy_staged(const MatrixCopy& copy, char* memory, int64_t bytes, int64_t threads,
                 const MakeSlotCopies& make_copies);

}  // namespace tiled
