#include "binding/copies.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>

#include "binding/run.h"
#include "core/error.h"

namespace tiled {
namespace {

void check_matrices(const char* op, const Tensor& to, const Tensor& from) {
  check_given(op, {"to", to});
  check_given(op, {"from", from});
  check_same_dtype(op, {"to", to}, {"from", from});
  const bool same_shape =
      to.dim() == 2 && from.dim() == 2 && to.size(0) == from.size(0) && to.size(1) == from.size(1);
  if (!same_shape) {
    fail(op, "to is " + shape_of(to) + " and from is " + shape_of(from) +
                 "; both must be matrices of one shape");
  }
}

CopySide side_of(const Tensor& x, char* data, int row, int64_t element) {
  const int col = 1 - row;
  const int64_t step = x.size(col) == 1 ? 1 : x.stride(col);
  const int64_t pitch = x.size(row) == 1 ? x.size(col) : x.stride(row);
  return {data, pitch * element, step * element};
}

// The copy by rows or by columns: those that are adjacent on the GPU, and on the host if possible.
MatrixCopy make_copy(const char* op, const Tensor& to, const Tensor& from, bool to_gpu) {
  const int64_t element = readable(from).element_size;
  char* to_data = static_cast<char*>(to.mutable_data_ptr());
  char* from_data = static_cast<char*>(const_cast<void*>(from.const_data_ptr()));
  std::optional<MatrixCopy> found;
  for (const int row : {0, 1}) {
    const CopySide of_to = side_of(to, to_data, row, element);
    const CopySide of_from = side_of(from, from_data, row, element);
    const MatrixCopy copy{.rows = to.size(row),
                          .cols = to.size(1 - row),
                          .element = element,
                          .gpu = to_gpu ? of_to : of_from,
                          .host = to_gpu ? of_from : of_to,
                          .to_gpu = to_gpu};
    if (copy.has_rows(copy.gpu) && (!found || copy.has_rows(copy.host))) found = copy;
  }
  if (!found) fail(op, "neither rows nor columns of the GPU's matrix are adjacent in memory");
  return *found;
}

}  // namespace

void copy_rows_(const Tensor& to, const Tensor& from) {
  const char* op = "tiled::_copy_rows_";
  check_matrices(op, to, from);
  if (to.size(0) == 0 || to.size(1) == 0) return;
  if (to.is_cuda() == from.is_cuda()) {
    Tensor written = to;
    torch::stable::copy_(written, from);
    return;
  }
  const MatrixCopy copy = make_copy(op, to, from, to.is_cuda());
  if (!copy.has_rows(copy.host)) {
    fail(op, "neither the rows nor the columns of both matrices are adjacent in memory");
  }
#ifdef TORCH_TILED_WITH_CUDA
  const Tensor& on_gpu = to.is_cuda() ? to : from;
  const torch::stable::accelerator::DeviceGuard guard(on_gpu.get_device_index());
  cuda_copy(make_context(op, on_gpu), copy);
#else
  fail(op, "this torch_tiled was built without CUDA");
#endif
}

void copy_staged_(const Tensor& to, const Tensor& from, const Tensor& buffer, int64_t threads,
                  bool to_gpu) {
  const char* op = "tiled::_copy_staged_";
  check_matrices(op, to, from);
  if (threads < 1) fail(op, "threads is " + std::to_string(threads) + "; it must be at least 1");
  const int64_t bytes = buffer.numel() * readable(buffer).element_size;
  if (buffer.is_cuda() || !buffer.is_contiguous() || bytes / kLeastBytes < threads) {
    fail(op, "buffer has " + std::to_string(bytes) + " bytes on " + device_name(buffer) +
                 " and threads is " + std::to_string(threads) +
                 "; it must be contiguous memory of the host, of " + std::to_string(kLeastBytes) +
                 " bytes or more for each thread");
  }
  const Tensor& on_gpu = to_gpu ? to : from;
  const Tensor& on_host = to_gpu ? from : to;
  if (on_host.is_cuda()) {
    fail(op, "to is on " + device_name(to) + " and from is on " + device_name(from) +
                 "; with to_gpu = " + (to_gpu ? "True, from" : "False, to") +
                 " must be on the host");
  }
  if (to.size(0) == 0 || to.size(1) == 0) return;
  const MatrixCopy copy = make_copy(op, to, from, to_gpu);
  char* memory = static_cast<char*>(buffer.mutable_data_ptr());
  if (!on_gpu.is_cuda()) {
    copy_staged(copy, memory, bytes, threads, [&] { return host_slot_copies(to_gpu); });
    return;
  }
#ifdef TORCH_TILED_WITH_CUDA
  const int device = on_gpu.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Context context = make_context(op, on_gpu);
  copy_staged(copy, memory, bytes, threads,
              [&] { return cuda_slot_copies(context, device, to_gpu); });
#else
  fail(op, "this torch_tiled was built without CUDA");
#endif
}

}  // namespace tiled
