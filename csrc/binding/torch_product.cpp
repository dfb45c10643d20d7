#include "binding/torch_product.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <exception>
#include <string>

#include "core/error.h"
#include "cpu/apply_epilogue.h"
#include "select/complex.h"

// The text of the last exception that a call of the stable ABI has caught. From torch 2.13 on.
extern "C" [[gnu::weak]] const char* torch_exception_get_what_without_backtrace();

namespace tiled {
namespace {

[[noreturn]] void fail_as_torch(const char* op, const std::string& name) {
  const std::string text = torch_exception_get_what_without_backtrace != nullptr
                               ? torch_exception_get_what_without_backtrace()
                               : "";
  if (text.find("allocate memory") != std::string::npos) fail(op, "out of memory: " + text);
  fail(op,
       "PyTorch's " + name + ", by which algorithm auto multiplies on a CPU, failed" +
           (text.empty() ? "; algorithm tiled needs no memory beside the result" : ": " + text));
}

// Calls an aten operator of one result.
template <typename... Args>
Tensor call(const char* op, const char* name, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  const auto status = torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION);
  if (status != TORCH_SUCCESS) fail_as_torch(op, name);
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor cast(const char* op, const Tensor& x, ScalarType type) try {
  return torch::stable::to(x, type);
} catch (const std::exception&) {
  fail_as_torch(op, "aten::to");
}

Tensor activate(const char* op, Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return call(op, "aten::relu", "", x);
    case Activation::kGelu: return call(op, "aten::gelu", "", x, std::string("none"));
    case Activation::kGeluTanh: return call(op, "aten::gelu", "", x, std::string("tanh"));
    case Activation::kTanh: return call(op, "aten::tanh", "", x);
    case Activation::kSilu: return call(op, "aten::silu", "", x);
  }
  return x;
}

}  // namespace

bool is_torch_product(const Tensor& a, const Tensor& b, const Options& options) {
  if (a.is_cuda() || options.algorithm != "auto") return false;
  return !hides_lazy_bits(a) && !hides_lazy_bits(b);
}

void torch_product(const char* op, const Tensor& a, const Tensor& b, const Tensor& out) {
  using torch::stable::unsqueeze;
  const ScalarType type = out.scalar_type();
  if (a.dim() == 1 && b.dim() > 1) {  // as a row, since torch.matmul resizes the out of a vector
    torch_product(op, unsqueeze(a, 0), b, unsqueeze(out, -2));
  } else if (a.scalar_type() == type) {
    call(op, "aten::matmul", "out", a, b, out);
  } else {  // float16 or bfloat16 to float32, so products are exact
    call(op, "aten::matmul", "out", cast(op, a, type), cast(op, b, type), out);
  }
}

Tensor torch_linear(const char* op, const Tensor& x, const Tensor& weight,
                    const std::optional<Tensor>& bias, Activation activation) {
  return activate(op, activation, call(op, "aten::linear", "", x, weight, bias));
}

void apply_epilogue_to(const Options& options, Product product, const Tensor& sums, const Tensor& c,
                       const OpEpilogue& epilogue) {
  product.a = readable(sums);
  product.b = {.element_size = 1, .sizes = {product.n, product.n}, .strides = {0, 0}};
  const Strided written = writable(c);
  const Context context = make_context(options.op, c);
  const bool complex = is_complex(c.scalar_type());
  ComplexProblem z = make_complex_problem(options, product, c.scalar_type());
  z.c = written.lazy;
  if (complex) {
    z.epilogue = epilogue.complex();
  } else {
    z.problem.epilogue = epilogue.real();
  }
  const auto outer = lay_out_batch(product.a, product.b, written, c.mutable_data_ptr(), z.problem);
  for_outer_batch(z.problem, outer, product.a.element_size, written.element_size,
                  [&](const Problem& inner) {
                    if (!complex) return cpu::apply_epilogue(inner, context);
                    ComplexProblem part = z;
                    part.problem = inner;
                    run_combine(make_combine(part, inner.a, {}), context);
                  });
}

}  // namespace tiled
