#include "binding/mixed.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/host_device.h"

namespace tiled {
namespace {

Tensor as_strided(const char* op, const Tensor& x, const Shape& sizes, const Shape& strides) {
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_as_strided(x.get(), sizes.data(), strides.data(), &handle) != 0) {
    fail(op, "PyTorch's as_strided failed");
  }
  return Tensor(handle);
}

}  // namespace

Narrow narrow_of(ScalarType a, ScalarType b) {
  const bool is_a = is_16bit(a);
  return {.is_a = is_a, .dtype = *supported(is_a ? a : b)};
}

Strided upcast_layout(const Strided& x) {
  constexpr int64_t kPitch = 16 / sizeof(float);
  alignas(16) static float never_read[kPitch];
  std::vector<int64_t> order(x.sizes.size());  // of ascending strides
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t d) { return x.strides[d]; });
  Strided copy{
      .data = never_read, .element_size = sizeof(float), .sizes = x.sizes, .strides = x.strides};
  int64_t next = 1;
  for (const int64_t d : order) {
    const int64_t size = x.sizes[d];
    if (x.strides[d] == 0 && size > 1) continue;
    copy.strides[d] = next;
    if (size > 1) next = next == 1 ? ceil_div(size, kPitch) * kPitch : next * size;
  }
  return copy;
}

Tensor upcast(const char* op, const Tensor& x) {
  if (x.scalar_type() == ScalarType::Float) return x;
  const Strided from = readable(x), to = upcast_layout(from);
  Shape stored = from.sizes;
  for (int64_t d = 0; d < from.rank(); ++d) {
    if (from.strides[d] == 0) stored[d] = std::min<int64_t>(stored[d], 1);
  }
  Tensor copy = allocate(op, stored, ScalarType::Float, x, "float32 copy", &to.strides);
  torch::stable::copy_(copy, as_strided(op, x, stored, from.strides));
  return as_strided(op, copy, to.sizes, to.strides);
}

Tensor rounded(const char* op, const Tensor& x, ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  Tensor copy = allocate(op, Shape(x.sizes().begin(), x.sizes().end()), dtype, x);
  torch::stable::copy_(copy, x);
  return copy;
}

}  // namespace tiled
