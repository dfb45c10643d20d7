#include "binding/rows.h"

#include <algorithm>
#include <string>

#include "binding/row_operand.h"
#include "binding/run.h"
#include "core/error.h"
#include "core/rows.h"
#include "cpu/rows.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/rows/launch.h"
#endif

namespace tiled {
namespace {

// --- launches ------------------------------------------------------------------------------------

#ifdef TORCH_TILED_WITH_CUDA
// Returns the sums or means of rows that are columns of x's memory.
Tensor sum_columns(const char* op, const Tensor& x, const ColumnsOperand& columns, bool is_mean) {
  Tensor out = allocate(op, shape_of_rows(x), x.scalar_type(), x);
  const ColumnsProblem p{.is_mean = is_mean,
                         .dtype = *supported(x.scalar_type()),
                         .batch = columns.batch,
                         .rows = columns_of(x),
                         .columns = columns.count,
                         .x = data_of(x),
                         .batch_pitch = columns.batch_pitch,
                         .row_pitch = x.stride(x.dim() - 1),
                         .out = out.mutable_data_ptr()};
  Launches launches(op, x);
  if (!cuda::launch_sum_columns(p, launches.context)) launches.fail_for_memory();
  return out;
}
#endif

// Returns the result of checked rows, of this shape.
Tensor reduce(const char* op, RowsOp kind, const Tensor& x, const Shape& shape) {
  Tensor out = allocate(op, shape, x.scalar_type(), x);
  if (out.numel() == 0) return out;
  const bool is_softmax = kind == RowsOp::kSoftmax || kind == RowsOp::kLogSoftmax;
  const RowOperand operand(x);
  const int64_t columns = columns_of(x);
  const RowsProblem p{.op = kind,
                      .dtype = *supported(x.scalar_type()),
                      .rows = is_softmax ? out.numel() / columns : out.numel(),
                      .columns = columns,
                      .x = operand.rows,
                      .out = out.mutable_data_ptr()};
  const Launches launches(op, x);
#ifdef TORCH_TILED_WITH_CUDA
  if (x.is_cuda()) {
    const bool is_sum = kind == RowsOp::kSum || kind == RowsOp::kMean;
    is_sum ? cuda::launch_sum_rows(p, launches.context) : cuda::launch_softmax(p, launches.context);
    return out;
  }
#endif
  cpu::launch_rows(p, launches.context);
  return out;
}

}  // namespace

Tensor row_softmax(const Tensor& x, bool is_log) {
  constexpr const char* kOp = "tiled::_row_softmax";
  check_rows(kOp, {"x", x});
  return reduce(kOp, is_log ? RowsOp::kLogSoftmax : RowsOp::kSoftmax, x,
                Shape(x.sizes().begin(), x.sizes().end()));
}

Tensor row_logsumexp(const Tensor& x) {
  constexpr const char* kOp = "tiled::_row_logsumexp";
  check_rows(kOp, {"x", x});
  return reduce(kOp, RowsOp::kLogSumExp, x, shape_of_rows(x));
}

Tensor row_sum(const Tensor& x, bool is_mean) {
  constexpr const char* kOp = "tiled::_row_sum";
  check_rows(kOp, {"x", x});
#ifdef TORCH_TILED_WITH_CUDA
  if (x.is_cuda()) {
    if (const auto columns = columns_operand(x)) return sum_columns(kOp, x, *columns, is_mean);
  }
#endif
  return reduce(kOp, is_mean ? RowsOp::kMean : RowsOp::kSum, x, shape_of_rows(x));
}

Tensor row_softmax_backward(const Tensor& grad, const Tensor& y, bool is_log) {
  constexpr const char* kOp = "tiled::_row_softmax_backward";
  check_same_device(kOp, {"grad", grad}, {"y", y});
  check_rows(kOp, {"grad", grad});
  check_rows(kOp, {"y", y});
  check_same_dtype(kOp, Named{"grad", grad}, Named{"y", y});
  if (!std::ranges::equal(grad.sizes(), y.sizes())) {
    fail(kOp,
         "grad is " + shape_of(grad) + " and y is " + shape_of(y) + "; they must have one shape");
  }
  Tensor out = allocate(kOp, Shape(y.sizes().begin(), y.sizes().end()), y.scalar_type(), y);
  if (out.numel() == 0) return out;
  const RowOperand grads(grad), results(y);
  const int64_t columns = columns_of(y);
  const SoftmaxBackward p{.is_log = is_log,
                          .dtype = *supported(y.scalar_type()),
                          .rows = out.numel() / columns,
                          .columns = columns,
                          .grad = grads.rows,
                          .y = results.rows,
                          .out = out.mutable_data_ptr()};
  const Launches launches(kOp, y);
#ifdef TORCH_TILED_WITH_CUDA
  if (y.is_cuda()) {
    cuda::launch_softmax_backward(p, launches.context);
    return out;
  }
#endif
  cpu::launch_softmax_backward(p, launches.context);
  return out;
}

}  // namespace tiled
