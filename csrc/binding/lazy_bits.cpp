// The bits of lazy views, which PyTorch's stable ABI does not tell. The dispatcher does: it visits
// the key Conjugate for a tensor with that bit, and Negative for one with the other. The operator
// _lazy_bits has kernels there, which answer.
//
// Within a __torch_dispatch__ of Python these keys are excluded. There aten::is_conj and
// aten::is_neg answer; elsewhere, below Autograd, the keys' fallbacks would resolve the tensor
// first.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "binding/namespace.h"
#include "binding/tensors.h"

#define STRING_OF(text) #text
#define NAME_OF(space, op) STRING_OF(space) "::" op

namespace tiled {
namespace {

constexpr int64_t kConjugated = 1, kNegated = 2;

template <class T>
T ask(const char* op, const Tensor& x) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(x)};
  if (torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION) != TORCH_SUCCESS) {
    throw std::runtime_error(std::string("torch_tiled: PyTorch could not call ") + op);
  }
  return torch::stable::detail::to<T>(stack[0]);
}

int64_t ask_keys(const Tensor& x) {
  return ask<int64_t>(NAME_OF(TORCH_TILED_NAMESPACE, "_lazy_bits"), x);
}

// The dispatcher visits Negative first.
int64_t bits_at_negative(const Tensor& x) {
  return kNegated | ask<int64_t>(NAME_OF(TORCH_TILED_NAMESPACE, "_conj_bit"), x);
}
int64_t bits_at_conjugate(const Tensor&) { return kConjugated; }
int64_t no_bits(const Tensor&) { return 0; }

// A conjugate view, or nothing if PyTorch did not make one.
std::optional<Tensor> make_conjugate() try {
  constexpr int64_t kSize = 1;
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(1, &kSize, &kSize, aoti_torch_dtype_complex64(),
                               aoti_torch_device_type_cpu(), 0, &handle) != 0) {
    return std::nullopt;
  }
  return ask<Tensor>("aten::_conj", Tensor(handle));
} catch (const std::exception&) {
  return std::nullopt;
}

// Returns whether the keys may be excluded in this thread, as a conjugate view tells that is known
// to be one.
bool keys_may_be_excluded() {
  static const auto* conjugate = new auto(make_conjugate());  // is never freed
  return !*conjugate || ask_keys(**conjugate) != kConjugated;
}

// For a tensor without bits by keys.
Lazy hidden_bits(const Tensor& x) {
  if (!keys_may_be_excluded()) return {};
  return {.conjugated = ask<bool>("aten::is_conj", x), .negated = ask<bool>("aten::is_neg", x)};
}

}  // namespace

Lazy lazy_bits(const Tensor& x) {
  if (!is_complex(x.scalar_type())) return {};
  const int64_t bits = ask_keys(x);
  if (bits == 0) return hidden_bits(x);
  return {.conjugated = (bits & kConjugated) != 0, .negated = (bits & kNegated) != 0};
}

bool hides_lazy_bits(const Tensor& x) {
  return is_complex(x.scalar_type()) && ask_keys(x) == 0 && hidden_bits(x) != Lazy{};
}

}  // namespace tiled

LIBRARY_FRAGMENT(TORCH_TILED_NAMESPACE, m) {
  m.def("_lazy_bits(Tensor x) -> int");
  m.def("_conj_bit(Tensor x) -> int");
}
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_lazy_bits", TORCH_BOX(&tiled::no_bits));
  m.impl("_conj_bit", TORCH_BOX(&tiled::no_bits));
}
// At Negative _conj_bit falls through, which torch_tiled/_op/lazy.py registers.
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, Negative, m) {
  m.impl("_lazy_bits", TORCH_BOX(&tiled::bits_at_negative));
}
LIBRARY_IMPL(TORCH_TILED_NAMESPACE, Conjugate, m) {
  m.impl("_lazy_bits", TORCH_BOX(&tiled::bits_at_conjugate));
  m.impl("_conj_bit", TORCH_BOX(&tiled::bits_at_conjugate));
}
