// The operators as PyTorch sees them: schemas, outputs and streams. With tensors.h the only file
// that knows PyTorch, and of PyTorch only its stable ABI, so that one binary serves many versions.
//
// Everything is checked before an aten operator is called: when one of those throws across the ABI,
// its text is lost.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/context.h"
#include "cpu/apply_epilogue.h"
#include "core/error.h"
#include "select/ladder.h"
#include "core/presplit.h"
#include "select/presplit.h"
#include "core/product.h"
#include "core/strided.h"
#include "binding/tensors.h"

namespace tiled {
namespace {

// --- options -----------------------------------------------------------------------------------

Precision parse_precision(const char* op, const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "ieee") return Precision::kIeee;
  if (name == "tf32") return Precision::kTf32;
  fail(op, "there is no precision \"" + name + "\"; choose fp32, ieee or tf32");
}

Activation parse_activation(const char* op, const std::string& name) {
  if (name == "none") return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "tanh") return Activation::kTanh;
  if (name == "silu") return Activation::kSilu;
  fail(op,
       "there is no activation \"" + name + "\"; choose none, relu, gelu, gelu_tanh, tanh or silu");
}

struct Options {
  const char* op;
  const std::string& algorithm;
  Precision precision;
};

Options make_options(const char* op, const std::string& algorithm, const std::string& precision) {
  return {op, algorithm, parse_precision(op, precision)};
}

// --- running -----------------------------------------------------------------------------------

void parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(0, count, 1, body);
}

Context make_context(const char* op, const Tensor& like) {
  if (!like.is_cuda()) {
    return {.sms = static_cast<int>(torch::stable::get_num_threads()),
            .parallel_for = parallel_for};
  }
#ifdef TORCH_TILED_WITH_CUDA
  const Context context = cuda_context(like.get_device_index());
  if (context.compute_capability < 80) {
    fail(op, "the GPU has compute capability " + std::to_string(context.compute_capability / 10) +
                 "." + std::to_string(context.compute_capability % 10) +
                 "; at least 8.0 (Ampere) is needed");
  }
  return context;
#else
  fail(op, "the operands are on " + device_name(like) +
               " and this torch_tiled was built without CUDA; rebuild it with nvcc on the PATH "
               "and TORCH_TILED_CUDA=1");
#endif
}

// A problem but for where its matrices lie.
Problem make_problem(const Options& options, const Product& product, ScalarType operands,
                     ScalarType out, const Epilogue& epilogue) {
  Problem p;
  p.op = options.op;
  p.dtype = *supported(operands);
  p.out_dtype = *supported(out);
  p.precision = options.precision;
  p.m = product.m;
  p.n = product.n;
  p.k = product.k;
  p.epilogue = epilogue;
  return p;
}

// Launches once for each index of the outer batch dimensions: once, in all but strange cases.
void launch(Launch rung, const Problem& p, const Context& context, std::span<const OuterDim> outer,
            int64_t operand_size, int64_t out_size) {
  if (outer.empty()) return rung(p, context);
  auto advance = [](Matrix& matrix, int64_t bytes) {
    matrix.data = static_cast<char*>(matrix.data) + bytes;
  };
  const OuterDim& dim = outer.front();
  for (int64_t i = 0; i < dim.size; ++i) {
    Problem inner = p;
    advance(inner.a, i * dim.a_stride * operand_size);
    advance(inner.b, i * dim.b_stride * operand_size);
    advance(inner.c, i * dim.c_stride * out_size);
    launch(rung, inner, context, outer.subspan(1), operand_size, out_size);
  }
}

// Computes into c by a rung of the ladder.
void run(const Options& options, const Product& product, const Tensor& a, const Tensor& c,
         const Epilogue& epilogue = {}, const Presplit& b_presplit = {},
         int64_t* recomputed = nullptr) {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (a.is_cuda()) guard.emplace(a.get_device_index());
  Context context = make_context(options.op, a);
  context.recomputed = recomputed;
  struct {
    const char* op;
    const Tensor& like;
    std::vector<Tensor> made;  // live until everything is launched
  } workspaces{options.op, a, {}};
  context.allocate = [&workspaces](int64_t bytes) {  // one reference: std::function allocates none
    auto& [op, like, made] = workspaces;
    made.push_back(allocate(op, {bytes}, ScalarType::Byte, like, "workspace"));
    return made.back().mutable_data_ptr();
  };
  Problem p = make_problem(options, product, a.scalar_type(), c.scalar_type(), epilogue);
  p.b_presplit = b_presplit;
  const Strided c_matrices = product.matrices(writable(c));
  const auto outer = lay_out_batch(product.a, product.b, c_matrices, p);
  const Rung& rung = pick(options.algorithm, p, context);
  if (c_matrices.empty()) return;
  launch(a.is_cuda() ? rung.cuda : rung.cpu, p, context, outer, product.a.element_size,
         c_matrices.element_size);
}

// --- PyTorch's own product, which is `auto` on the CPU, flags and all ---------------------------

bool is_torch_product(const Tensor& a, const Options& options) {
  return !a.is_cuda() && options.algorithm == "auto";
}

// Calls an aten operator of one result; all arguments were checked before.
template <typename... Args>
Tensor call(const char* name, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

void torch_product(const Tensor& a, const Tensor& b, const Tensor& out) {
  using torch::stable::unsqueeze;
  const ScalarType type = out.scalar_type();
  if (a.dim() == 1 && b.dim() > 1) {  // as a row: for a vector torch.matmul resizes out
    torch_product(unsqueeze(a, 0), b, unsqueeze(out, -2));
  } else if (a.scalar_type() == type) {
    call("aten::matmul", "out", a, b, out);
  } else {  // halves to float32: exact products
    call("aten::matmul", "out", torch::stable::to(a, type), torch::stable::to(b, type), out);
  }
}

Tensor torch_activation(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return call("aten::relu", "", x);
    case Activation::kGelu: return call("aten::gelu", "", x, std::string("none"));
    case Activation::kGeluTanh: return call("aten::gelu", "", x, std::string("tanh"));
    case Activation::kTanh: return call("aten::tanh", "", x);
    case Activation::kSilu: return call("aten::silu", "", x);
  }
  return x;
}

// c = alpha * sums + beta * c, where sums are of the type that c's elements are summed in.
void combine(const Options& options, Product product, const Tensor& sums, const Tensor& c,
             const Epilogue& epilogue) {
  product.a = readable(sums);
  product.b = {.element_size = 1, .sizes = {product.n, product.n}, .strides = {0, 0}};
  Problem p = make_problem(options, product, c.scalar_type(), c.scalar_type(), epilogue);
  const Strided written = writable(c);
  const auto outer = lay_out_batch(product.a, product.b, written, p);
  launch(cpu::apply_epilogue, p, make_context(options.op, c), outer, product.a.element_size,
         written.element_size);
}

// --- the operators -----------------------------------------------------------------------------

Tensor multiply(const Options& options, const Product& product, const Tensor& a, const Tensor& b,
                ScalarType out, const Presplit& b_presplit) {
  const Tensor c = allocate(options.op, product.shape, out, a);
  if (is_torch_product(a, options)) {
    torch_product(a, b, c);
  } else {
    run(options, product, a, c, {}, b_presplit);
  }
  return c;
}

Tensor matmul(const Tensor& a, const Tensor& b, const std::string& algorithm,
              const std::string& precision, std::optional<ScalarType> out_dtype) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const ScalarType out = check_out_dtype(options.op, a.scalar_type(), out_dtype);
  const Product product = make_product(options.op, readable(a), readable(b));
  return multiply(options, product, a, b, out, {});
}

Tensor prepared_matmul(const Tensor& a, const Tensor& b, const Tensor& hi_lo, const Tensor& inverse_scales,
                       const std::string& algorithm, const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const Product product = make_product(options.op, readable(a), readable(b));
  const Presplit presplit = presplit_operand(options.op, {"b", b}, product, hi_lo, inverse_scales);
  return multiply(options, product, a, b, a.scalar_type(), presplit);
}

Tensor plain_matmul(const Tensor& a, const Tensor& b) { return matmul(a, b, "auto", "fp32", {}); }

void matmul_out(const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision, const Tensor& out) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  check_same_device(options.op, {"out", out}, {"a", a});
  const ScalarType type = out.scalar_type();
  if (!may_hold(type, a.scalar_type())) {
    fail(options.op, "out is " + dtype_name(type) + " and the operands are " +
                         dtype_name(a.scalar_type()) +
                         "; it may have the operands' dtype or, for float16 and bfloat16, "
                         "torch.float32");
  }
  const Product product = make_product(options.op, readable(a), readable(b));
  if (!std::ranges::equal(out.sizes(), product.shape)) {
    fail(options.op, "out is " + shape_of(out) + " and the product is " + to_string(product.shape) +
                         "; pass an out of that shape (it is never resized)");
  }
  check_written(options.op, {"out", out}, product);
  if (!is_torch_product(a, options)) {
    run(options, product, a, out);
  } else if (out.is_contiguous()) {
    torch_product(a, b, out);
  } else {  // torch.matmul folds a batch into rows, which not every out can be viewed as
    const Tensor c = allocate(options.op, product.shape, type, a);
    torch_product(a, b, c);
    Tensor written = out;
    torch::stable::copy_(written, c);
  }
}

void gemm_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta,
           const std::string& algorithm, const std::string& precision) {
  const Options options = make_options("tiled::gemm_", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  check_same_device(options.op, {"c", c}, {"a", a});
  check_same_dtype(options.op, {"c", c}, {"a", a});
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
  check_written(options.op, {"c", c}, product);
  if (alpha == 0) product.k = 0;  // as in BLAS: A and B are not read
  const Epilogue epilogue{.alpha = alpha, .beta = beta};
  if (is_torch_product(a, options) && product.k > 0) {
    const ScalarType type = is_16bit(a.scalar_type()) ? ScalarType::Float : a.scalar_type();
    const Tensor sums = allocate(options.op, product.shape, type, a);
    torch_product(a, b, sums);
    combine(options, product, sums, c, epilogue);
  } else {
    run(options, product, a, c, epilogue);
  }
}

// What linear's arguments come to.
struct Layer {
  Options options;
  Product product;
  Epilogue epilogue;
};

Layer make_layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                 const std::string& activation, const std::string& algorithm,
                 const std::string& precision) {
  const Options options = make_options("tiled::linear", algorithm, precision);
  Epilogue epilogue{.activation = parse_activation(options.op, activation)};
  check_operands(options.op, {"x", x}, {"weight", weight});
  Product product = make_linear(options.op, readable(x), readable(weight));
  if (bias) {
    check_same_device(options.op, {"bias", *bias}, {"x", x});
    check_same_dtype(options.op, {"bias", *bias}, {"x", x});
    if (bias->dim() != 1 || bias->size(0) != product.n) {
      fail(options.op, "bias is " + shape_of(*bias) + " and weight is " + shape_of(weight) +
                           "; bias must be (out_features,)");
    }
    epilogue.bias = bias->const_data_ptr();
    epilogue.bias_stride = bias->stride(0);
  }
  return {options, std::move(product), epilogue};
}

Tensor run_layer(const Layer& layer, const Tensor& x, const Tensor& weight,
                 const std::optional<Tensor>& bias, const Presplit& weight_presplit) {
  const auto& [options, product, epilogue] = layer;
  if (is_torch_product(x, options)) {  // not linear.out, which rounds twice
    try {
      return torch_activation(epilogue.activation, call("aten::linear", "", x, weight, bias));
    } catch (const std::runtime_error&) {
      allocate(options.op, product.shape, x.scalar_type(), x);  // says so where memory ran out
      throw;
    }
  }
  const Tensor y = allocate(options.op, product.shape, x.scalar_type(), x);
  run(options, product, x, y, epilogue, weight_presplit);
  return y;
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::string& activation, const std::string& algorithm,
              const std::string& precision) {
  const Layer layer = make_layer(x, weight, bias, activation, algorithm, precision);
  return run_layer(layer, x, weight, bias, {});
}

Tensor plain_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear(x, weight, bias, "none", "auto", "fp32");
}

Tensor prepared_linear(const Tensor& x, const Tensor& weight, const Tensor& hi_lo,
                       const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                       const std::string& activation, const std::string& algorithm,
                       const std::string& precision) {
  const Layer layer = make_layer(x, weight, bias, activation, algorithm, precision);
  const Presplit presplit =
      presplit_operand(layer.options.op, {"weight", weight}, layer.product, hi_lo, inverse_scales);
  return run_layer(layer, x, weight, bias, presplit);
}

std::tuple<Tensor, Tensor> prepare_operand(const Tensor& b) {
  const char* op = "tiled::prepare";
  check_given(op, {"b", b});
  check_dtype(op, {"b", b});
  if (b.dim() != 2) fail(op, "b is " + shape_of(b) + "; it must be a matrix (k, n)");
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (b.is_cuda()) guard.emplace(b.get_device_index());
  const Context context = make_context(op, b);
  Presplit presplit = presplit_columns(b.size(0), b.size(1));
  if (!count_elements(std::array{b.size(0) + Presplit::kK, b.size(1) + Presplit::kK}, 4)) {
    fail(op, "b is " + shape_of(b) + ", more bytes than 63 bits can count");
  }
  const bool splits = takes_16bit(*supported(b.scalar_type()), presplit.k, context);
  const int64_t bytes = splits ? presplit.matrix_bytes() : 0;
  const int64_t groups = splits ? presplit.matrix_groups() : 0;
  const Tensor hi_lo = allocate(op, {bytes}, ScalarType::Byte, b, "prepared operand");
  const Tensor inverse_scales = allocate(op, {groups}, ScalarType::Float, b, "prepared operand");
  if (bytes > 0) {
    presplit.hi_lo = static_cast<uint8_t*>(hi_lo.mutable_data_ptr());
    presplit.inverse_scales = static_cast<float*>(inverse_scales.mutable_data_ptr());
    const Strided source = readable(b);
    const Matrix columns{
        .data = source.data, .row_stride = source.strides[1], .col_stride = source.strides[0]};
    write_presplit(columns, presplit, context);
  }
  return {hi_lo, inverse_scales};
}

// On a GPU of that compute capability (90 for 9.0) with that many SMs where either is not 0; the
// product is then not computed.
std::vector<std::string> explain_matmul(const Tensor& a, const Tensor& b,
                                        const std::string& algorithm, const std::string& precision,
                                        int64_t compute_capability, int64_t sms) {
  const Options options = make_options("tiled::explain", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const Product product = make_product(options.op, readable(a), readable(b));
  auto layout = [](const Strided& x) {
    const int64_t row = x.strides[x.rank() - 2], col = x.strides[x.rank() - 1];
    return col == 1 ? "N" : row == 1 ? "T" : "strided";
  };
  std::vector<std::string> lines{
      "problem",
      "m = " + std::to_string(product.m) + ", n = " + std::to_string(product.n) +
          ", k = " + std::to_string(product.k) + ", result " + to_string(product.shape),
      "dtype",
      dtype_name(a.scalar_type()) + ", precision " + precision,
      "layout",
      std::string("a ") + layout(product.a) + ", b " + layout(product.b)};
  const bool hypothetical = compute_capability != 0 || sms != 0;
  if (hypothetical && (compute_capability < 80 || sms < 1 || sms > 1 << 16)) {
    fail(options.op, "compute_capability is " + std::to_string(compute_capability) +
                         " and sms is " + std::to_string(sms) +
                         "; a GPU has at least 80 (for 8.0) and from 1 to 65536 SMs, such as 90 "
                         "and 132");
  }
  if (!hypothetical && is_torch_product(a, options)) {
    lines.insert(lines.end(),
                 {"algorithm", "torch.matmul", "why", "on the CPU auto is PyTorch's own product"});
    return lines;
  }
  Problem p = make_problem(options, product, a.scalar_type(), a.scalar_type(), {});
  Strided c{
      .element_size = 1, .sizes = product.shape, .strides = contiguous_strides(product.shape)};
  lay_out_batch(product.a, product.b, product.matrices(std::move(c)), p);
  const Context context = hypothetical
                              ? Context{.sms = static_cast<int>(sms),
                                        .compute_capability = static_cast<int>(compute_capability)}
                              : make_context(options.op, a);
  for (auto& [heading, text] : explain(algorithm, p, context)) {
    lines.insert(lines.end(), {std::move(heading), std::move(text)});
  }
  if (hypothetical) return lines;
  if (is_guarded(pick(algorithm, p, context).order)) {  // only the product itself can tell
    const Tensor result = allocate(options.op, product.shape, a.scalar_type(), a);
    int64_t recomputed = 0;
    run(options, product, a, result, {}, {}, &recomputed);
    lines.insert(lines.end(), {"recomputed", std::to_string(recomputed) + " of " +
                                                 std::to_string(result.numel()) + " elements"});
  }
  return lines;
}

}  // namespace
}  // namespace tiled

STABLE_TORCH_LIBRARY(tiled, m) {
  m.def(
      "matmul(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "matmul.out(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "Tensor(a!) out) -> ()");
  // With b as presplit(b) splits it; what is empty was not worth splitting. The bits are the same.
  m.def(
      "matmul.prepared(Tensor a, Tensor b, Tensor hi_lo, Tensor inverse_scales, *, "
      "str algorithm=\"auto\", str precision=\"fp32\") -> Tensor");
  m.def(
      "gemm_(Tensor(a!) c, Tensor a, Tensor b, *, float alpha=1, float beta=1, "
      "str algorithm=\"auto\", str precision=\"fp32\") -> ()");
  m.def(
      "linear(Tensor x, Tensor weight, Tensor? bias=None, *, str activation=\"none\", "
      "str algorithm=\"auto\", str precision=\"fp32\") -> Tensor");
  m.def(
      "linear.prepared(Tensor x, Tensor weight, Tensor hi_lo, Tensor inverse_scales, Tensor? bias=None, *, "
      "str activation=\"none\", str algorithm=\"auto\", str precision=\"fp32\") -> Tensor");
  m.def("prepare(Tensor b) -> (Tensor hi_lo, Tensor inverse_scales)");
  // Without options, for callers who know that nobody asks for more: options are a good part of
  // what a small product costs.
  m.def("_plain_matmul(Tensor a, Tensor b) -> Tensor");
  m.def("_plain_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("algorithms() -> str[]");
  m.def(
      "explain(Tensor a, Tensor b, *, str algorithm=\"auto\", str precision=\"fp32\", "
      "int compute_capability=0, int sms=0) -> str[]");
}

// One set of functions serves both devices; without CUDA in the build they say so.
#define IMPLEMENT(m)                                             \
  m.impl("matmul", TORCH_BOX(&tiled::matmul));                   \
  m.impl("_plain_matmul", TORCH_BOX(&tiled::plain_matmul));      \
  m.impl("_plain_linear", TORCH_BOX(&tiled::plain_linear));      \
  m.impl("matmul.out", TORCH_BOX(&tiled::matmul_out));           \
  m.impl("matmul.prepared", TORCH_BOX(&tiled::prepared_matmul)); \
  m.impl("gemm_", TORCH_BOX(&tiled::gemm_));                     \
  m.impl("linear", TORCH_BOX(&tiled::linear));                   \
  m.impl("linear.prepared", TORCH_BOX(&tiled::prepared_linear)); \
  m.impl("prepare", TORCH_BOX(&tiled::prepare_operand));         \
  m.impl("explain", TORCH_BOX(&tiled::explain_matmul))

STABLE_TORCH_LIBRARY_IMPL(tiled, CPU, m) { IMPLEMENT(m); }
STABLE_TORCH_LIBRARY_IMPL(tiled, CUDA, m) { IMPLEMENT(m); }
STABLE_TORCH_LIBRARY_IMPL(tiled, CompositeExplicitAutograd, m) {
  m.impl("algorithms", TORCH_BOX(&tiled::algorithms));
}
