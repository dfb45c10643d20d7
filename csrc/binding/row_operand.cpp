#include "binding/row_operand.h"

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>

#include "core/error.h"

namespace tiled {
namespace {

// Returns the distance between rows, or nothing if no single one leads through all rows of x, or
// if their elements are not adjacent.
std::optional<int64_t> pitch_of(const Tensor& x) {
  const int64_t last = x.dim() - 1, columns = x.size(last);
  if (columns > 1 && x.stride(last) != 1) return std::nullopt;
  int64_t pitch = columns, rows = 1;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (rows == 1) pitch = x.stride(d);
    if (x.stride(d) != rows * pitch) return std::nullopt;
    rows *= x.size(d);
  }
  return pitch;
}

}  // namespace

void check_rows(const char* op, Named x) {
  check_given(op, x);
  const ScalarType type = x.tensor.scalar_type();
  if (!supported(type) || is_complex(type)) {
    fail(op, std::string(x.name) + " is " + dtype_name(type) +
                 "; it must be torch.float32, torch.float64, torch.float16 or torch.bfloat16");
  }
  if (x.tensor.dim() == 0) fail(op, std::string(x.name) + " is (); it must have a dimension");
}

int64_t columns_of(const Tensor& x) { return x.size(x.dim() - 1); }

Shape shape_of_rows(const Tensor& x) { return Shape(x.sizes().begin(), x.sizes().end() - 1); }

std::optional<ColumnsOperand> columns_operand(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  if (x.numel() == 0 || x.size(last) == 1 || x.stride(last) == 1) return std::nullopt;
  ColumnsOperand found;
  int64_t d = last - 1;
  for (; d >= 0 && (x.size(d) == 1 || x.stride(d) == found.count); --d) found.count *= x.size(d);
  if (found.count == 1) return std::nullopt;
  for (; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (found.batch == 1) found.batch_pitch = x.stride(d);
    if (x.stride(d) != found.batch * found.batch_pitch) return std::nullopt;
    found.batch *= x.size(d);
  }
  return found;
}

RowOperand::RowOperand(const Tensor& x) : memory(x) {
  std::optional<int64_t> pitch = pitch_of(x);
  if (!pitch) {
    memory = torch::stable::contiguous(x);
    pitch = columns_of(x);
  }
  rows = {data_of(memory), *pitch};
}

}  // namespace tiled
