// The bits of lazy views, which PyTorch's stable ABI does not tell. The dispatcher does: it visits
// the key Conjugate for a tensor with that bit, and Negative for one with the other. Two operators
// have kernels there, which answer.
//
// Within a __torch_dispatch__ of Python these keys are excluded. There aten::is_conj and
// aten::is_neg answer; elsewhere, below Autograd, the keys' fallbacks would resolve the tensor
// first.

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <stdexcept>
#include <string>

#include "binding/namespace.h"
#include "binding/tensors.h"

#define STRING_OF(text) #text
#define NAME_OF(space, op) STRING_OF(space) "::" op

namespace tiled {
namespace {

bool yes(const Tensor&) { return true; }
bool no(const Tensor&) { return false; }

bool ask(const char* op, const Tensor& x) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(x)};
  if (torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION) != TORCH_SUCCESS) {
    throw std::runtime_error(std::string("torch_tiled: PyTorch could not call ") + op);
  }
  return torch::stable::detail::to<bool>(stack[0]);
}

Lazy bits_by_keys(const Tensor& x) {
  return {.conjugated = ask(NAME_OF(TORCH_TILED_NAMESPACE, "_is_conj"), x),
          .negated = ask(NAME_OF(TORCH_TILED_NAMESPACE, "_is_neg"), x)};
}

// For a tensor without bits_by_keys().
Lazy hidden_bits(const Tensor& x) {
  return {.conjugated = ask("aten::is_conj", x), .negated = ask("aten::is_neg", x)};
}

}  // namespace

Lazy lazy_bits(const Tensor& x) {
  if (!is_complex(x.scalar_type())) return {};
  const Lazy bits = bits_by_keys(x);
  return bits == Lazy{} ? hidden_bits(x) : bits;
}

bool hides_lazy_bits(const Tensor& x) {
  return is_complex(x.scalar_type()) && bits_by_keys(x) == Lazy{} && hidden_bits(x) != Lazy{};
}

}  // namespace tiled

LIBRARY_FRAGMENT(TORCH_TILED_NAMESPACE, m) {
  m.def("_is_conj(Tensor x) -> bool");
  m.def("_is_neg(Tensor x) -> bool");
}
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_is_conj", TORCH_BOX(&tiled::no));
  m.impl("_is_neg", TORCH_BOX(&tiled::no));
}
// Negative comes first. There _is_conj falls through, which torch_tiled/_op/lazy.py registers.
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, Negative, m) { m.impl("_is_neg", TORCH_BOX(&tiled::yes)); }
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, Conjugate, m) {
  m.impl("_is_conj", TORCH_BOX(&tiled::yes));
  m.impl("_is_neg", TORCH_BOX(&tiled::no));
}
