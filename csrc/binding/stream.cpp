#include "binding/stream.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "binding/run.h"
#include "core/error.h"
#include "core/product.h"

namespace tiled {
namespace {

// A matrix as rows of adjacent elements.
struct Rows {
  int64_t rows, cols, pitch;
};

// The tensor's rows, or its columns, whichever are adjacent in memory in both tensors.
bool adjacent_rows(const Tensor& x, bool transposed, Rows& rows) {
  const int row = transposed ? 1 : 0, col = 1 - row;
  rows = {x.size(row), x.size(col), x.stride(row)};
  if (rows.rows == 1) rows.pitch = rows.cols;
  return (x.stride(col) == 1 || rows.cols == 1) && rows.pitch >= rows.cols;
}

}  // namespace

void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                    const std::string& activation, const std::string& algorithm,
                    const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, c);
  const OpEpilogue epilogue =
      make_linear_epilogue(options.op, {"a", a}, {"b", b}, product, bias, activation);
  PreparedOperand prepared;
  if (hi_lo.numel() > 0 || inverse_scales.numel() > 0) {
    prepared = prepared_operand(options.op, {"b", b}, product, hi_lo, inverse_scales);
  }
  run(options, product, a, c, epilogue, prepared);
}

void activate_(const Tensor& x, const std::string& activation) {
  static const std::string algorithm = "naive";
  const Options options = make_options("tiled::_activate_", algorithm, "fp32");
  check_operands(options.op, {"x", x}, {"x", x});
  if (x.dim() != 2) fail(options.op, "x is " + shape_of(x) + "; it must be a matrix");
  // A product of K = 0 adds -0 to x, which is x.
  Strided a = readable(x), b = a;
  a.sizes[1] = b.sizes[0] = 0;
  const Product product = make_product(options.op, a, b);
  OpEpilogue epilogue =
      make_linear_epilogue(options.op, {"x", x}, {"x", x}, product, {}, activation);
  epilogue.alpha = -0.0;
  epilogue.beta = 1;
  run(options, product, x, x, epilogue);
}

void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, sums);
  run(options, product, a, sums, {.beta = 1}, {}, {.kept = true});
}

void copy_rows_(const Tensor& to, const Tensor& from) {
  const char* op = "tiled::_copy_rows_";
  check_given(op, {"to", to});
  check_given(op, {"from", from});
  check_same_dtype(op, {"to", to}, {"from", from});
  const bool same_shape =
      to.dim() == 2 && from.dim() == 2 && to.size(0) == from.size(0) && to.size(1) == from.size(1);
  if (!same_shape) {
    fail(op, "to is " + shape_of(to) + " and from is " + shape_of(from) +
                 "; both must be matrices of one shape");
  }
  if (to.size(0) == 0 || to.size(1) == 0) return;
  if (to.is_cuda() == from.is_cuda()) {
    Tensor written = to;
    torch::stable::copy_(written, from);
    return;
  }
  Rows to_rows{}, from_rows{};
  if (!(adjacent_rows(to, false, to_rows) && adjacent_rows(from, false, from_rows)) &&
      !(adjacent_rows(to, true, to_rows) && adjacent_rows(from, true, from_rows))) {
    fail(op, "neither the rows nor the columns of both matrices are adjacent in memory");
  }
#ifdef TORCH_TILED_WITH_CUDA
  const Tensor& on_gpu = to.is_cuda() ? to : from;
  const torch::stable::accelerator::DeviceGuard guard(on_gpu.get_device_index());
  const auto bytes = readable(from).element_size;
  cuda_copy_rows(make_context(op, on_gpu), to.mutable_data_ptr(), to_rows.pitch * bytes,
                 from.const_data_ptr(), from_rows.pitch * bytes, to_rows.cols * bytes, to_rows.rows,
                 to.is_cuda());
#else
  fail(op, "this torch_tiled was built without CUDA");
#endif
}

}  // namespace tiled
