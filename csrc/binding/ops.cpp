// The operators as PyTorch sees them: schemas and bodies. binding/ alone knows PyTorch, and of
// PyTorch only its stable ABI, so that one binary serves many versions.

#include "binding/ops.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <complex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/attention.h"
#include "binding/convolution.h"
#include "binding/copies.h"
#include "binding/cumsum.h"
#include "binding/explain.h"
#include "binding/grouped.h"
#include "binding/mixed.h"
#include "binding/namespace.h"
#include "binding/norms.h"
#include "binding/pointwise.h"
#include "binding/registry.h"
#include "binding/rows.h"
#include "binding/run.h"
#include "binding/stream.h"
#include "binding/tensors.h"
#include "binding/torch_product.h"
#include "core/complex.h"
#include "core/error.h"
#include "core/presplit.h"
#include "core/product.h"
#include "core/strided.h"
#include "select/complex.h"
#include "select/ladder.h"
#include "select/presplit.h"

namespace tiled {
namespace {

Tensor multiply(const Options& options, const Product& product, const Tensor& a, const Tensor& b,
                ScalarType out, const PreparedOperand& prepared_b) {
  if (is_mixed(a.scalar_type(), b.scalar_type())) {
    check_mixed(options, a.scalar_type(), b.scalar_type());
    if (a.is_cuda()) {
      const Tensor c = allocate(options.op, product.shape, ScalarType::Float, a);
      if (run_in_place(options, product, a, b, c, {}, prepared_b)) {
        return rounded(options.op, c, out);
      }
    }
    const Tensor wide_a = upcast(options.op, a), wide_b = upcast(options.op, b);
    const Product wide = make_product(options.op, readable(wide_a), readable(wide_b));
    const Tensor c = multiply(options, wide, wide_a, wide_b, ScalarType::Float, prepared_b);
    return rounded(options.op, c, out);
  }
  const Tensor c = allocate(options.op, product.shape, out, a);
  if (is_torch_product(a, b, options)) {
    torch_product(options.op, a, b, c);
  } else {
    run(options, product, a, c, {}, prepared_b);
  }
  return c;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const std::string& algorithm,
              const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const ScalarType out = check_out_dtype(options.op, a.scalar_type(), b.scalar_type(), out_dtype);
  const Product product = make_product(options.op, readable(a), readable(b));
  return multiply(options, product, a, b, out, {});
}

namespace {

Tensor prepared_matmul(const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                       const Tensor& inverse_scales, const std::string& algorithm,
                       const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const ScalarType out = check_out_dtype(options.op, a.scalar_type(), b.scalar_type(), out_dtype);
  const Product product = make_product(options.op, readable(a), readable(b));
  const PreparedOperand prepared =
      prepared_operand(options.op, {"b", b}, product, hi_lo, inverse_scales);
  return multiply(options, product, a, b, out, prepared);
}

Tensor plain_matmul(const Tensor& a, const Tensor& b) { return matmul(a, b, "auto", "fp32", {}); }

}  // namespace

void matmul_out(const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision, const Tensor& out) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, out);
  Tensor written = out;
  if (is_mixed(a.scalar_type(), b.scalar_type())) {
    check_mixed(options, a.scalar_type(), b.scalar_type());
    if (out.scalar_type() == ScalarType::Float) {
      if (run_in_place(options, product, a, b, out)) return;
      return matmul_out(upcast(options.op, a), upcast(options.op, b), algorithm, precision, out);
    }
    torch::stable::copy_(written, multiply(options, product, a, b, ScalarType::Float, {}));
  } else if (!is_torch_product(a, b, options) || hides_lazy_bits(out)) {
    run(options, product, a, out);
  } else if (out.is_contiguous() && lazy_bits(out) == Lazy{}) {
    torch_product(options.op, a, b, out);
  } else {
    // torch.matmul folds a batch into rows, and not every out can be viewed so. To a lazy out torch
    // 2.13 writes the conjugate of the product if it copies an operand first.
    const Tensor c = allocate(options.op, product.shape, out.scalar_type(), a);
    torch_product(options.op, a, b, c);
    torch::stable::copy_(written, c);
  }
}

namespace {

void plain_matmul_out(const Tensor& a, const Tensor& b, const Tensor& out) {
  matmul_out(a, b, "auto", "fp32", out);
}

// A complex factor of gemm_, in two parts, since schemas have no complex numbers.
std::complex<double> make_factor(const char* op, const char* name, double real, double imaginary,
                                 const Tensor& c) {
  if (imaginary != 0 && !is_complex(c.scalar_type())) {
    fail(op, std::string(name) + " has the imaginary part " + std::to_string(imaginary) +
                 " and c is " + dtype_name(c.scalar_type()) + "; pass a real " + name +
                 ", or complex tensors");
  }
  return {real, imaginary};
}

}  // namespace

void gemm_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha_real, double beta_real,
           const std::string& algorithm, const std::string& precision, double alpha_imag,
           double beta_imag) {
  const Options options = make_options("tiled::gemm_", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  check_same_device(options.op, {"c", c}, {"a", a});
  check_dtype_of_c(options.op, c.scalar_type(), Named{"a", a}, Named{"b", b});
  if (a.dim() < 2 || b.dim() < 2 || c.dim() < 2) {
    fail(options.op, "c is " + shape_of(c) + ", a is " + shape_of(a) + " and b is " + shape_of(b) +
                         "; each must be a matrix or a batch of matrices");
  }
  Product product = make_product(options.op, readable(a), readable(b));
  const auto shape = broadcast({c.sizes().data(), c.sizes().size()}, product.shape);
  const bool holds_product = shape && std::ranges::equal(c.sizes(), *shape) &&
                             c.size(c.dim() - 2) == product.m && c.size(c.dim() - 1) == product.n;
  if (!holds_product) {
    fail(options.op, "c is " + shape_of(c) + " and the product is " + to_string(product.shape) +
                         "; c must have that shape, or more batch dimensions");
  }
  const OpEpilogue epilogue{.alpha = make_factor(options.op, "alpha", alpha_real, alpha_imag, c),
                            .beta = make_factor(options.op, "beta", beta_real, beta_imag, c)};
  check_written(options.op, {"c", c}, product);
  const bool mixed = is_mixed(a.scalar_type(), b.scalar_type());
  if (mixed) check_mixed(options, a.scalar_type(), b.scalar_type());
  if (epilogue.alpha == 0.0) {
    product.k = 0;  // A and B are not read, as in BLAS
  } else if (mixed) {
    if (run_in_place(options, product, a, b, c, epilogue)) return;
    return gemm_(c, upcast(options.op, a), upcast(options.op, b), alpha_real, beta_real, algorithm,
                 precision, alpha_imag, beta_imag);
  }
  if (is_torch_product(a, b, options) && product.k > 0) {
    const ScalarType type = is_16bit(a.scalar_type()) ? ScalarType::Float : a.scalar_type();
    const Tensor sums = allocate(options.op, product.shape, type, a);
    torch_product(options.op, a, b, sums);
    apply_epilogue_to(options, product, sums, c, epilogue);
  } else {
    run(options, product, mixed ? c : a, c, epilogue);
  }
}

namespace {

void plain_gemm_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta) {
  gemm_(c, a, b, alpha, beta, "auto", "fp32", 0, 0);
}

// The result that gemm_ would write to c, in memory of its own, for graphs: see
// torch_tiled/_op/functional.py.
Tensor gemm(const Tensor& c, const Tensor& a, const Tensor& b, double alpha_real, double beta_real,
            const std::string& algorithm, const std::string& precision, double alpha_imag,
            double beta_imag) {
  check_given("tiled::gemm_", {"c", c});
  const Shape shape(c.sizes().begin(), c.sizes().end());
  Tensor result = allocate("tiled::gemm_", shape, c.scalar_type(), c);
  if (beta_real != 0 || beta_imag != 0) torch::stable::copy_(result, c);
  gemm_(result, a, b, alpha_real, beta_real, algorithm, precision, alpha_imag, beta_imag);
  return result;
}

// linear's arguments, checked.
struct Layer {
  Options options;
  Product product;
  OpEpilogue epilogue;
  ScalarType out;
};

Layer make_layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                 const std::string& activation, const std::string& algorithm,
                 const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Options options = make_options("tiled::linear", algorithm, precision);
  check_operands(options.op, {"x", x}, {"weight", weight});
  const ScalarType out =
      check_out_dtype(options.op, x.scalar_type(), weight.scalar_type(), out_dtype);
  Product product = make_linear(options.op, readable(x), readable(weight));
  const OpEpilogue epilogue = make_linear_epilogue(options.op, {"x", x}, {"weight", weight},
                                                   product, bias, activation, out);
  return {options, std::move(product), epilogue, out};
}

Tensor run_layer(const Layer& layer, const Tensor& x, const Tensor& weight,
                 const std::optional<Tensor>& bias, const PreparedOperand& prepared_weight) {
  const auto& [options, product, epilogue, out] = layer;
  const ScalarType type = x.scalar_type();
  const bool by_torch = is_torch_product(x, weight, options) && !(bias && hides_lazy_bits(*bias));
  if (is_mixed(type, weight.scalar_type()) || (by_torch && out != type)) {
    if (!by_torch) check_mixed(options, type, weight.scalar_type());
    std::optional<Tensor> wide_bias;
    if (bias) wide_bias = upcast(options.op, *bias);
    Layer wide{options, product, epilogue, ScalarType::Float};
    if (bias) wide.epilogue.bias = &*wide_bias;
    if (x.is_cuda()) {
      const Tensor y = allocate(options.op, product.shape, wide.out, x);
      if (run_in_place(options, product, x, weight, y, wide.epilogue, prepared_weight)) {
        return rounded(options.op, y, out);
      }
    }
    const Tensor wide_x = upcast(options.op, x), wide_weight = upcast(options.op, weight);
    wide.product = make_linear(options.op, readable(wide_x), readable(wide_weight));
    const Tensor y = run_layer(wide, wide_x, wide_weight, wide_bias, prepared_weight);
    return rounded(options.op, y, out);
  }
  if (by_torch) {  // linear.out would round twice
    try {
      return torch_linear(options.op, x, weight, bias, epilogue.activation);
    } catch (const std::runtime_error&) {
      // If memory is short, this fails with a sentence.
      allocate(options.op, product.shape, type, x);
      throw;
    }
  }
  Tensor y = allocate(options.op, product.shape, out, x);
  if (bias && bias->scalar_type() != type) {  // float32, and kernels read a bias of x's dtype
    torch::stable::copy_(y, *bias);
    run(options, product, x, y, {.beta = 1, .activation = epilogue.activation}, prepared_weight);
  } else {
    run(options, product, x, y, epilogue, prepared_weight);
  }
  return y;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::string& activation, const std::string& algorithm,
              const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Layer layer = make_layer(x, weight, bias, activation, algorithm, precision, out_dtype);
  return run_layer(layer, x, weight, bias, {});
}

namespace {

Tensor plain_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear(x, weight, bias, "none", "auto", "fp32", {});
}

Tensor prepared_linear(const Tensor& x, const Tensor& weight, const Tensor& hi_lo,
                       const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                       const std::string& activation, const std::string& algorithm,
                       const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Layer layer = make_layer(x, weight, bias, activation, algorithm, precision, out_dtype);
  const PreparedOperand prepared =
      prepared_operand(layer.options.op, {"weight", weight}, layer.product, hi_lo, inverse_scales);
  return run_layer(layer, x, weight, bias, prepared);
}

Tensor plain_prepared_linear(const Tensor& x, const Tensor& weight, const Tensor& hi_lo,
                             const Tensor& inverse_scales, const std::optional<Tensor>& bias) {
  return prepared_linear(x, weight, hi_lo, inverse_scales, bias, "none", "auto", "fp32", {});
}

Tensor plain_grouped_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                        const std::optional<Tensor>& bias) {
  return grouped_mm(a, b, offs, bias, {}, "fp32");
}

std::tuple<Tensor, Tensor> prepare_operand(const Tensor& b) {
  const char* op = "tiled::prepare";
  check_given(op, {"b", b});
  check_dtype(op, {"b", b});
  if (b.dim() != 2) fail(op, "b is " + shape_of(b) + "; it must be a matrix (k, n)");
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (b.is_cuda()) guard.emplace(b.get_device_index());
  const Context context = make_context(op, b);
  const ScalarType type = b.scalar_type();
  const int64_t k = b.size(0), n = b.size(1);
  Presplit presplit = presplit_columns(type, k, n);
  if (!count_elements(std::array{k + Presplit::kK, n + Presplit::kK}, is_complex(type) ? 64 : 4)) {
    fail(op, "b is " + shape_of(b) + ", more bytes than 63 bits can count");
  }
  const bool splits = can_presplit(*supported(type), presplit.k, context);
  const PreparedSizes sizes = prepared_sizes(type, k, n, splits);
  const Tensor hi_lo = allocate(op, {sizes.bytes()}, ScalarType::Byte, b, "prepared operand");
  const Tensor inverse_scales =
      allocate(op, {sizes.scales}, ScalarType::Float, b, "prepared operand");
  if (sizes.bytes() == 0) return {hi_lo, inverse_scales};
  auto* memory = static_cast<uint8_t*>(hi_lo.mutable_data_ptr());
  const Strided source = readable(b);
  Matrix columns{
      .data = source.data, .row_stride = source.strides[1], .col_stride = source.strides[0]};
  if (is_complex(type)) {
    Pack pack = prepared_pack(k, n, transposed(columns), source.lazy);
    pack.to = memory + sizes.presplit_bytes;
    run_pack(pack, context);
    columns = {.data = pack.to, .row_stride = 2 * pack.to_row_stride, .col_stride = 1};
  }
  if (splits) {
    presplit.hi_lo = memory;
    presplit.inverse_scales = static_cast<float*>(inverse_scales.mutable_data_ptr());
    write_presplit(columns, presplit, context);
  }
  return {hi_lo, inverse_scales};
}

}  // namespace
}  // namespace tiled

LIBRARY(TORCH_TILED_NAMESPACE, m) {
  m.def(
      "matmul(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "matmul.out(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "Tensor(a!) out) -> ()");
  // hi_lo and inverse_scales are what prepare(b) returned: both empty if b was not worth
  // splitting. The bits are matmul's.
  m.def(
      "matmul.prepared(Tensor a, Tensor b, Tensor hi_lo, Tensor inverse_scales, *, "
      "str algorithm=\"auto\", str precision=\"fp32\", ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "gemm_(Tensor(a!) c, Tensor a, Tensor b, *, float alpha=1, float beta=1, "
      "str algorithm=\"auto\", str precision=\"fp32\", float alpha_imag=0, float beta_imag=0) "
      "-> ()");
  m.def(
      "_gemm(Tensor c, Tensor a, Tensor b, *, float alpha=1, float beta=1, "
      "str algorithm=\"auto\", str precision=\"fp32\", float alpha_imag=0, float beta_imag=0) "
      "-> Tensor");
  m.def(
      "linear(Tensor x, Tensor weight, Tensor? bias=None, *, str activation=\"none\", "
      "str algorithm=\"auto\", str precision=\"fp32\", ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "linear.prepared(Tensor x, Tensor weight, Tensor hi_lo, Tensor inverse_scales, Tensor? "
      "bias=None, *, str activation=\"none\", str algorithm=\"auto\", str precision=\"fp32\", "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "grouped_mm(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None, str precision=\"fp32\") -> Tensor");
  m.def("prepare(Tensor b) -> (Tensor hi_lo, Tensor inverse_scales)");
  // Convolutions, which torch_tiled.nn.functional calls: binding/convolution.h.
  m.def(
      "_conv(Tensor x, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
      "SymInt[] dilation, SymInt groups, str activation) -> Tensor");
  m.def(
      "_conv_transposed(Tensor grad, Tensor weight, SymInt[] size, SymInt[] stride, "
      "SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor");
  m.def(
      "_conv_filter_gradient(Tensor x, Tensor grad, SymInt[] size, SymInt[] stride, "
      "SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor");
  m.def(
      "_explain_conv(int[] x, int[] weight, int[] stride, int[] padding, int[] dilation, "
      "int groups, str result, int sms) -> str");
  // Reductions of rows, which only the library calls: binding/rows.h.
  m.def("_row_softmax(Tensor x, bool log) -> Tensor");
  m.def("_row_softmax_backward(Tensor grad, Tensor y, bool log) -> Tensor");
  m.def("_row_logsumexp(Tensor x) -> Tensor");
  m.def("_row_sum(Tensor x, bool mean) -> Tensor");
  m.def("_row_cumsum(Tensor x, bool reverse) -> Tensor");
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, SymInt? causal_offset, "
      "float scale) -> (Tensor out, Tensor sum, Tensor exponent)");
  m.def(
      "_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
      "Tensor out, Tensor sum, Tensor exponent, SymInt? causal_offset, float scale, bool needs_q, "
      "bool needs_k, bool needs_v, bool needs_scores) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "attention_packed(Tensor query, Tensor key, Tensor value, Tensor offsets_q, "
      "Tensor offsets_k, SymInt max_q, SymInt max_k, bool is_causal, float scale) "
      "-> (Tensor out, Tensor sum, Tensor exponent)");
  m.def(
      "_attention_packed_backward(Tensor grad, Tensor query, Tensor key, Tensor value, "
      "Tensor offsets_q, Tensor offsets_k, Tensor out, Tensor sum, Tensor exponent, SymInt max_q, "
      "SymInt max_k, bool is_causal, float scale, bool needs_q, bool needs_k, bool needs_v) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "_row_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, bool centered) "
      "-> (Tensor y, Tensor mean, Tensor inverse)");
  m.def(
      "_row_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor inverse, "
      "bool centered, bool needs_x, bool needs_weight, bool needs_bias) "
      "-> (Tensor, Tensor, Tensor)");
  // These are for products larger than the GPU (torch_tiled/stream): binding/stream.h and
  // binding/copies.h.
  m.def(
      "_multiply_into_(Tensor(a!) c, Tensor a, Tensor b, Tensor hi_lo, Tensor inverse_scales, "
      "Tensor? bias, *, str activation, str algorithm, str precision) -> ()");
  m.def("_activate_(Tensor(a!) x, *, str activation) -> ()");
  m.def("_add_chunk_(Tensor(a!) sums, Tensor a, Tensor b, *, str algorithm, str precision) -> ()");
  m.def("_copy_rows_(Tensor(a!) to, Tensor from) -> ()");
  m.def(
      "_copy_staged_(Tensor(a!) to, Tensor from, Tensor(b!) buffer, int threads, bool to_gpu) "
      "-> ()");
  m.def(
      "_cost_of_panels(ScalarType dtype, str algorithm, str precision, int[] sizes, "
      "bool prepared, bool keeps_flagged, int compute_capability, int sms) "
      "-> (str kernel, float cycles, int[] bytes)");
  // These have no options: parsing them takes much of the host's time for a small product.
  m.def("_plain_matmul(Tensor a, Tensor b) -> Tensor");
  m.def("_plain_matmul_out(Tensor a, Tensor b, Tensor(a!) out) -> ()");
  m.def("_plain_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def(
      "_plain_linear.prepared(Tensor x, Tensor weight, Tensor hi_lo, Tensor inverse_scales, "
      "Tensor? bias) -> Tensor");
  m.def("_plain_grouped_mm(Tensor a, Tensor b, Tensor? offs, Tensor? bias) -> Tensor");
  m.def(
      "_plain_pointwise(Tensor input, Tensor weight, Tensor? bias, bool channels_last) -> Tensor");
  m.def("_plain_gemm_(Tensor(a!) c, Tensor a, Tensor b, float alpha, float beta) -> ()");
  m.def("algorithms() -> str[]");
  m.def(
      "explain(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "int compute_capability=0, int sms=0) -> str");
  // For Python and for tensors without data: binding/registry.h.
  m.def("_registry() -> str");
  m.def(
      "_check_options(str op, str[] names, str[] dtypes, *, str? algorithm=None, "
      "str? precision=None, str? activation=None, str? out_dtype=None, str? dtype_of_out=None, "
      "str? dtype_of_c=None, str? dtype_of_bias=None) -> ()");
}

// One set of functions serves both devices; in a build without CUDA they fail with a sentence.
#define IMPLEMENT(m)                                                                      \
  m.impl("matmul", TORCH_BOX(&tiled::matmul));                                            \
  m.impl("_plain_matmul", TORCH_BOX(&tiled::plain_matmul));                               \
  m.impl("_plain_matmul_out", TORCH_BOX(&tiled::plain_matmul_out));                       \
  m.impl("_plain_linear", TORCH_BOX(&tiled::plain_linear));                               \
  m.impl("_plain_linear.prepared", TORCH_BOX(&tiled::plain_prepared_linear));             \
  m.impl("_plain_gemm_", TORCH_BOX(&tiled::plain_gemm_));                                 \
  m.impl("matmul.out", TORCH_BOX(&tiled::matmul_out));                                    \
  m.impl("matmul.prepared", TORCH_BOX(&tiled::prepared_matmul));                          \
  m.impl("gemm_", TORCH_BOX(&tiled::gemm_));                                              \
  m.impl("_gemm", TORCH_BOX(&tiled::gemm));                                               \
  m.impl("linear", TORCH_BOX(&tiled::linear));                                            \
  m.impl("linear.prepared", TORCH_BOX(&tiled::prepared_linear));                          \
  m.impl("grouped_mm", TORCH_BOX(&tiled::grouped_mm));                                    \
  m.impl("_plain_grouped_mm", TORCH_BOX(&tiled::plain_grouped_mm));                       \
  m.impl("_plain_pointwise", TORCH_BOX(&tiled::plain_pointwise));                         \
  m.impl("prepare", TORCH_BOX(&tiled::prepare_operand));                                  \
  m.impl("_conv", TORCH_BOX(&tiled::conv));                                               \
  m.impl("_conv_transposed", TORCH_BOX(&tiled::conv_transposed));                         \
  m.impl("_conv_filter_gradient", TORCH_BOX(&tiled::conv_filter_gradient));               \
  m.impl("_row_softmax", TORCH_BOX(&tiled::row_softmax));                                 \
  m.impl("_row_softmax_backward", TORCH_BOX(&tiled::row_softmax_backward));               \
  m.impl("_row_logsumexp", TORCH_BOX(&tiled::row_logsumexp));                             \
  m.impl("_row_sum", TORCH_BOX(&tiled::row_sum));                                         \
  m.impl("_row_cumsum", TORCH_BOX(&tiled::row_cumsum));                                   \
  m.impl("attention", TORCH_BOX(&tiled::run_attention));                                  \
  m.impl("attention_packed", TORCH_BOX(&tiled::run_attention_packed));                    \
  m.impl("_attention_backward", TORCH_BOX(&tiled::run_attention_backward));               \
  m.impl("_attention_packed_backward", TORCH_BOX(&tiled::run_attention_packed_backward)); \
  m.impl("_row_norm", TORCH_BOX(&tiled::run_row_norm));                                   \
  m.impl("_row_norm_backward", TORCH_BOX(&tiled::run_row_norm_backward));                 \
  m.impl("_multiply_into_", TORCH_BOX(&tiled::multiply_into_));                           \
  m.impl("_activate_", TORCH_BOX(&tiled::activate_));                                     \
  m.impl("_add_chunk_", TORCH_BOX(&tiled::add_chunk_));                                   \
  m.impl("_copy_rows_", TORCH_BOX(&tiled::copy_rows_));                                   \
  m.impl("_copy_staged_", TORCH_BOX(&tiled::copy_staged_));                               \
  m.impl("explain", TORCH_BOX(&tiled::explain_matmul))

LIBRARY_IMPL(TORCH_TILED_NAMESPACE, CPU, m) { IMPLEMENT(m); }
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, CUDA, m) { IMPLEMENT(m); }
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("algorithms", TORCH_BOX(&tiled::algorithms));
  m.impl("_explain_conv", TORCH_BOX(&tiled::explain_conv));
  m.impl("_cost_of_panels", TORCH_BOX(&tiled::cost_of_panels));
  m.impl("_registry", TORCH_BOX(&tiled::registry));
  m.impl("_check_options", TORCH_BOX(&tiled::check_options));
}
