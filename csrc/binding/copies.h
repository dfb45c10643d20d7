#pragma once
// Copies between the host and a GPU, for products larger than the GPU: torch_tiled/stream calls
// them. On the CPU both sides are the host's.

#include <cstdint>
#include <memory>

#include "binding/tensors.h"
#include "core/context.h"
#include "staging/staged_copy.h"

namespace tiled {

// Copies a matrix on the GPU's current stream, if elements of its rows or its columns are
// adjacent on both sides. Pinned memory is read or written later, in the stream's order.
void copy_rows_(const Tensor& to, const Tensor& from);

// Copies a matrix to the GPU, or from it, by several threads of the host, if elements of its rows
// or its columns are adjacent on the GPU. They pass through `buffer`, pinned memory that
// the GPU reads or writes on its current stream. `to_gpu` says which side is the GPU's, also if
// the host plays it. Returns when the host's matrix has been read or written. Copies from the
// buffer to the GPU follow in the stream's order: until then nobody else may write the buffer, and
// another call may have it from the same thread of the host alone, with the same number of threads.
void copy_staged_(const Tensor& to, const Tensor& from, const Tensor& buffer, int64_t threads,
                  bool to_gpu);

// Makes the copy on the context's stream, in one piece.
void cuda_copy(const Context& context, const MatrixCopy& copy);
// Copies on the context's stream, for a thread of the host that may have no current device.
std::unique_ptr<SlotCopies> cuda_slot_copies(const Context& context, int device, bool to_gpu);

}  // namespace tiled
