#include "binding/norms.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "binding/row_operand.h"
#include "binding/run.h"
#include "core/error.h"
#include "core/norms.h"
#include "cpu/norms.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/rows/norms_launch.h"
#endif

namespace tiled {
namespace {

constexpr const char* kOp = "tiled::_row_norm";
constexpr const char* kBackwardOp = "tiled::_row_norm_backward";

// --- checks, which torch_tiled/_op/row_checks.py makes for tensors without data ------------------

ScalarType accumulator_of(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

void check_param(const char* op, Named param, const Tensor& x) {
  check_same_device(op, param, {"x", x});
  const ScalarType type = param.tensor.scalar_type(), type_of_x = x.scalar_type();
  if (type != type_of_x && !(is_16bit(type_of_x) && type == ScalarType::Float)) {
    fail(op, std::string(param.name) + " is " + dtype_name(type) + " and x is " +
                 dtype_name(type_of_x) + "; " + param.name + " must have x's dtype" +
                 (is_16bit(type_of_x) ? " or be torch.float32" : ""));
  }
  if (param.tensor.dim() != 1 || param.tensor.size(0) != x.size(x.dim() - 1)) {
    fail(op, std::string(param.name) + " is " + shape_of(param.tensor) + " and x is " +
                 shape_of(x) + "; " + param.name + " must be (columns,)");
  }
}

// Checks what the forward pass returned, or its gradient.
void check_saved(Named saved, ScalarType type, const Shape& shape, const Tensor& x) {
  check_same_device(kBackwardOp, saved, {"x", x});
  const Tensor& given = saved.tensor;
  if (given.scalar_type() == type && std::ranges::equal(given.sizes(), shape)) return;
  fail(kBackwardOp, std::string(saved.name) + " is " + shape_of(given) + " of " +
                        dtype_name(given.scalar_type()) + "; it must be " + to_string(shape) +
                        " of " + dtype_name(type));
}

// --- operands ------------------------------------------------------------------------------------

std::optional<Tensor> contiguous_or_none(const std::optional<Tensor>& param) {
  if (!param) return std::nullopt;
  return torch::stable::contiguous(*param);
}

const void* data_or_null(const std::optional<Tensor>& param) {
  return param ? data_of(*param) : nullptr;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> run_row_norm(const Tensor& x,
                                                const std::optional<Tensor>& weight,
                                                const std::optional<Tensor>& bias, double eps,
                                                bool centered) {
  check_rows(kOp, {"x", x});
  if (weight) check_param(kOp, {"weight", *weight}, x);
  if (bias) check_param(kOp, {"bias", *bias}, x);
  if (weight && bias && weight->scalar_type() != bias->scalar_type()) {
    fail(kOp, "weight is " + dtype_name(weight->scalar_type()) + " and bias is " +
                  dtype_name(bias->scalar_type()) + "; both must have one dtype");
  }
  if (bias && !centered) fail(kOp, "bias is given and centered is False; RMS norm has no bias");
  const ScalarType type = x.scalar_type(), sums = accumulator_of(type);
  const Shape rows = shape_of_rows(x);
  Tensor y = allocate(kOp, Shape(x.sizes().begin(), x.sizes().end()), type, x);
  Tensor mean = allocate(kOp, centered ? rows : Shape{0}, sums, x);
  Tensor inverse = allocate(kOp, rows, sums, x);
  if (x.numel() == 0) {  // rows of no elements, as PyTorch's, or no rows
    torch::stable::zero_(mean);
    torch::stable::fill_(inverse, NAN);
    return {y, mean, inverse};
  }
  const RowOperand x_rows(x);
  const auto weight_row = contiguous_or_none(weight), bias_row = contiguous_or_none(bias);
  NormProblem p{.dtype = *supported(type), .eps = eps, .centered = centered};
  p.rows = inverse.numel(), p.columns = columns_of(x);
  p.x = x_rows.rows;
  p.weight = data_or_null(weight_row), p.bias = data_or_null(bias_row);
  const auto& param = weight ? weight : bias;
  p.wide_params = param && param->scalar_type() != type;
  p.y = y.mutable_data_ptr();
  if (centered) p.mean = mean.mutable_data_ptr();
  p.inverse = inverse.mutable_data_ptr();
  Launches launches(kOp, x);
#ifdef TORCH_TILED_WITH_CUDA
  if (x.is_cuda()) {
    cuda::launch_norm(p, launches.context);
    return {y, mean, inverse};
  }
#endif
  cpu::launch_norm(p, launches.context);
  return {y, mean, inverse};
}

std::tuple<Tensor, Tensor, Tensor> run_row_norm_backward(const Tensor& grad, const Tensor& x,
                                                         const std::optional<Tensor>& weight,
                                                         const Tensor& mean, const Tensor& inverse,
                                                         bool centered, bool needs_x,
                                                         bool needs_weight, bool needs_bias) {
  check_rows(kBackwardOp, {"x", x});
  if (weight) check_param(kBackwardOp, {"weight", *weight}, x);
  const ScalarType type = x.scalar_type();
  const Shape shape(x.sizes().begin(), x.sizes().end()), rows = shape_of_rows(x);
  check_saved({"grad", grad}, type, shape, x);
  check_saved({"mean", mean}, accumulator_of(type), centered ? rows : Shape{0}, x);
  check_saved({"inverse", inverse}, accumulator_of(type), rows, x);
  if (needs_bias && !centered) {
    fail(kBackwardOp, "needs_bias is True and centered is False; RMS norm has no bias");
  }
  const ScalarType type_of_params = weight ? weight->scalar_type() : type;
  const Shape none = {0}, of_param = {shape.back()};
  Tensor dx = allocate(kBackwardOp, needs_x ? shape : none, type, x);
  Tensor dweight = allocate(kBackwardOp, needs_weight ? of_param : none, type_of_params, x);
  Tensor dbias = allocate(kBackwardOp, needs_bias ? of_param : none, type_of_params, x);
  if (x.numel() == 0) {
    for (Tensor* sums : {&dweight, &dbias}) torch::stable::zero_(*sums);
    return {dx, dweight, dbias};
  }
  const RowOperand dy_rows(grad), x_rows(x);
  const auto weight_row = contiguous_or_none(weight);
  const Tensor mean_of_rows = torch::stable::contiguous(mean);
  const Tensor inverse_of_rows = torch::stable::contiguous(inverse);
  NormBackward p{.dtype = *supported(type), .rows = inverse.numel(), .columns = shape.back()};
  p.dy = dy_rows.rows;
  p.x = x_rows.rows;
  p.weight = data_or_null(weight_row), p.wide_params = type_of_params != type;
  if (centered) p.mean = data_of(mean_of_rows);
  p.inverse = data_of(inverse_of_rows);
  if (needs_x) p.dx = dx.mutable_data_ptr();
  if (needs_weight) p.dweight = dweight.mutable_data_ptr();
  if (needs_bias) p.dbias = dbias.mutable_data_ptr();
  Launches launches(kBackwardOp, x);
#ifdef TORCH_TILED_WITH_CUDA
  if (x.is_cuda()) {
    if (!cuda::launch_norm_backward(p, launches.context)) launches.fail_for_memory();
    return {dx, dweight, dbias};
  }
#endif
  cpu::launch_norm_backward(p, launches.context);
  return {dx, dweight, dbias};
}

}  // namespace tiled
