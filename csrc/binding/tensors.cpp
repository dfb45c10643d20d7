#include "binding/tensors.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "core/complex.h"
#include "core/context.h"
#include "core/error.h"

namespace tiled {
namespace {

constexpr uintptr_t kAlignment = 16;  // that bulk copies need

int64_t size_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return 1;
    case ScalarType::Double:
    case ScalarType::ComplexFloat: return 8;
    case ScalarType::ComplexDouble: return 16;
    default: return is_16bit(dtype) ? 2 : 4;
  }
}

// Returns what to do with an operand of a dtype that is not supported.
const char* conversion_of(ScalarType type) {
  switch (type) {
    case ScalarType::ComplexHalf: return "convert it, for example with .to(torch.complex64)";
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::UInt32:
    case ScalarType::UInt64:
      return "convert it, for example with .to(torch.float64), exact for integers up to 2**53";
    default: return "convert it, for example with .to(torch.float32)";
  }
}

// Returns whether the operator or function of this name computes grouped products, which are of
// real numbers.
bool takes_groups(std::string_view op) {
  return op == "tiled::grouped_mm" || op == "torch_tiled.segment_matmul";
}

// Returns whether a product of operands that check_dtypes() takes may be written as `out`.
bool may_hold(ScalarType out, ScalarType a, ScalarType b) {
  return out == a || out == b || (out == ScalarType::Float && is_16bit(a));
}

std::string names_of(ScalarType a, ScalarType b) {
  return a == b ? dtype_name(a) : dtype_name(a) + " and " + dtype_name(b);
}

Strided describe(const Tensor& x, const void* data) {
  return {.data = data,
          .element_size = static_cast<int64_t>(x.element_size()),
          .sizes = Shape(x.sizes().begin(), x.sizes().end()),
          .strides = Shape(x.strides().begin(), x.strides().end()),
          .lazy = lazy_bits(x)};
}

}  // namespace

std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "torch.uint8";
    case ScalarType::Char: return "torch.int8";
    case ScalarType::Short: return "torch.int16";
    case ScalarType::Int: return "torch.int32";
    case ScalarType::Long: return "torch.int64";
    case ScalarType::Half: return "torch.float16";
    case ScalarType::Float: return "torch.float32";
    case ScalarType::Double: return "torch.float64";
    case ScalarType::ComplexHalf: return "torch.complex32";
    case ScalarType::ComplexFloat: return "torch.complex64";
    case ScalarType::ComplexDouble: return "torch.complex128";
    default: break;  // elsewhere Python's name is C++'s in lower case
  }
  std::string name = torch::headeronly::toString(type);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return "torch." + name;
}

std::string device_name(const Tensor& x) {
  return x.is_cuda() ? "cuda:" + std::to_string(x.get_device_index()) : "cpu";
}

std::string shape_of(const Tensor& x) { return to_string({x.sizes().data(), x.sizes().size()}); }

std::optional<DType> supported(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
    case ScalarType::ComplexFloat: return DType::kFloat32;
    case ScalarType::Double:
    case ScalarType::ComplexDouble: return DType::kFloat64;
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    default: return std::nullopt;
  }
}

bool is_16bit(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }

bool is_complex(ScalarType type) {
  return type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble;
}

bool is_mixed(ScalarType a, ScalarType b) {
  return (is_16bit(a) && b == ScalarType::Float) || (a == ScalarType::Float && is_16bit(b));
}

void check_dtype(const char* op, NamedDtype x) {
  const bool is_grouped = takes_groups(op);
  if (supported(x.type) && !(is_grouped && is_complex(x.type))) return;
  const bool is_any_complex = is_complex(x.type) || x.type == ScalarType::ComplexHalf;
  fail(op, std::string(x.name) + " is " + dtype_name(x.type) +
               "; supported are float32, float64, " +
               (is_grouped ? "float16 and bfloat16: "
                           : "float16, bfloat16, complex64 and complex128: ") +
               (is_grouped && is_any_complex ? "call torch_tiled.matmul for each group"
                                             : conversion_of(x.type)));
}

void check_same_dtype(const char* op, NamedDtype x, NamedDtype y) {
  if (x.type == y.type) return;
  check_dtype(op, x);
  check_dtype(op, y);
  const auto is_wide = [](ScalarType type) {
    return type == ScalarType::Double || type == ScalarType::ComplexDouble;
  };
  const bool wide = is_wide(x.type) || is_wide(y.type);
  const bool complex = is_complex(x.type) || is_complex(y.type);
  const ScalarType both = complex ? (wide ? ScalarType::ComplexDouble : ScalarType::ComplexFloat)
                                  : (wide ? ScalarType::Double : ScalarType::Float);
  fail(op, std::string(x.name) + " is " + dtype_name(x.type) + " and " + y.name + " is " +
               dtype_name(y.type) + "; pass both in one dtype, for example with .to(" +
               dtype_name(both) + "), which has all values of both");
}

void check_dtypes(const char* op, NamedDtype x, NamedDtype y) {
  check_dtype(op, x);
  check_dtype(op, y);
  if (!is_mixed(x.type, y.type)) check_same_dtype(op, x, y);
}

void check_given(const char* op, Named x) {
  if (!x.tensor.defined()) fail(op, std::string(x.name) + " is None; it must be a tensor");
}

void check_same_device(const char* op, Named x, Named y) {
  check_given(op, x);
  check_given(op, y);
  const bool x_cuda = x.tensor.is_cuda(), y_cuda = y.tensor.is_cuda();
  const bool known = (x_cuda || x.tensor.is_cpu()) && (y_cuda || y.tensor.is_cpu());
  if (known && x_cuda == y_cuda && x.tensor.get_device_index() == y.tensor.get_device_index()) {
    return;
  }
  if (!known) fail(op, std::string(x.name) + " and " + y.name + " must be on one device");
  fail(op, std::string(x.name) + " is on " + device_name(x.tensor) + " and " + y.name + " is on " +
               device_name(y.tensor) + "; move one of them so that both are on one device");
}

void check_operands(const char* op, Named x, Named y) {
  check_same_device(op, x, y);
  const ScalarType type = x.tensor.scalar_type();  // each call searches all dtypes
  if (supported(type) && type == y.tensor.scalar_type()) return;
  check_dtypes(op, x, y);
}

ScalarType check_out_dtype(const char* op, ScalarType a, ScalarType b,
                           std::optional<ScalarType> out) {
  if (!out) return dtype_of_product(a, b);
  if (may_hold(*out, a, b)) return *out;
  fail(op, "out_dtype is " + dtype_name(*out) + " and the operands are " + names_of(a, b) +
               "; it may be the operands' dtype or, for float16 and bfloat16, torch.float32");
}

void check_dtype_of_out(const char* op, ScalarType out, ScalarType a, ScalarType b) {
  if (may_hold(out, a, b)) return;
  fail(op, "out is " + dtype_name(out) + " and the operands are " + names_of(a, b) +
               "; it may have the operands' dtype or, for float16 and bfloat16, torch.float32");
}

void check_dtype_of_c(const char* op, ScalarType c, NamedDtype a, NamedDtype b) {
  if (c == ScalarType::Float && may_hold(c, a.type, b.type)) return;
  for (const NamedDtype& operand : {a, b}) check_same_dtype(op, {"c", c}, operand);
}

void check_dtype_of_bias(const char* op, ScalarType bias, NamedDtype x, NamedDtype weight,
                         ScalarType out) {
  if (bias == x.type || bias == weight.type || bias == out) return;
  check_same_dtype(op, {"bias", bias}, x);
}

const void* data_of(const Tensor& x) {
  const void* data = x.const_data_ptr();
  if (data == nullptr && x.numel() > 0) {
    fail("tiled", "a tensor of shape " + shape_of(x) +
                      " has no memory: its storage was freed, or is not allocated yet (FSDP frees "
                      "that of parameters between their uses); pass it while it has memory");
  }
  return data;
}
Strided readable(const Tensor& x) { return describe(x, data_of(x)); }
Strided writable(const Tensor& x) {
  data_of(x);
  return describe(x, x.mutable_data_ptr());
}

void check_written(const char* op, Named c, const Product& product) {
  const Strided written = writable(c.tensor);
  if (overlaps_itself(written)) {
    fail(op, std::string(c.name) + " has elements that share memory (shape " + shape_of(c.tensor) +
                 ", strides " + to_string(written.strides) +
                 "); pass a tensor whose elements lie apart, such as its clone(), which then has "
                 "the result");
  }
  for (const auto& [name, operand] : {std::pair("a", &product.a), std::pair("b", &product.b)}) {
    if (overlap(written, *operand)) {
      fail(op, std::string(c.name) + " shares memory with " + name + "; pass " + name + ".clone()");
    }
  }
}

Product make_product_into(const char* op, const Tensor& a, const Tensor& b, const Tensor& out) {
  check_operands(op, {"a", a}, {"b", b});
  check_same_device(op, {"out", out}, {"a", a});
  check_dtype_of_out(op, out.scalar_type(), a.scalar_type(), b.scalar_type());
  Product product = make_product(op, readable(a), readable(b));
  if (!std::ranges::equal(out.sizes(), product.shape)) {
    fail(op, "out is " + shape_of(out) + " and the product is " + to_string(product.shape) +
                 "; pass an out of that shape (it is never resized)");
  }
  check_written(op, {"out", out}, product);
  return product;
}

std::optional<Tensor> try_allocate(const char* op, const Shape& shape, ScalarType dtype,
                                   const Tensor& like, const char* what, const Shape* strides) {
  if (!count_elements(shape, size_of(dtype))) {
    fail(op, std::string("the ") + what + " would be " + to_string(shape) +
                 ", more bytes than 63 bits can count");
  }
  const Shape dense = strides == nullptr ? contiguous_strides(shape) : *strides;
  AtenTensorHandle handle = nullptr;
  const auto dtype_code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  const auto device = like.is_cuda() ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  if (aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), dense.data(),
                               dtype_code, device, like.get_device_index(), &handle) == 0) {
    return Tensor(handle);
  }
#ifdef TORCH_TILED_WITH_CUDA
  if (like.is_cuda() && cuda_pending_error()[0] != '\0') {
    fail(op,
         std::string("CUDA says \"") + cuda_pending_error() + "\", left behind by an earlier call");
  }
#endif
  return std::nullopt;
}

void fail_out_of_memory(const char* op, const Shape& shape, ScalarType dtype, const Tensor& like,
                        const char* what) {
  const int64_t bytes = *count_elements(shape, size_of(dtype)) * size_of(dtype);
  fail(op, std::string("out of memory: the ") + what + " " + to_string(shape) + " of " +
               dtype_name(dtype) + " needs " + std::to_string(bytes) + " bytes on " +
               device_name(like));
}

Tensor allocate(const char* op, const Shape& shape, ScalarType dtype, const Tensor& like,
                const char* what, const Shape* strides) {
  std::optional<Tensor> made = try_allocate(op, shape, dtype, like, what, strides);
  if (!made) fail_out_of_memory(op, shape, dtype, like, what);
  return *std::move(made);
}

PreparedSizes prepared_sizes(ScalarType type, int64_t k, int64_t n, bool splits) {
  PreparedSizes sizes;
  const Presplit presplit = presplit_columns(type, k, n);
  if (splits) {
    sizes.presplit_bytes = presplit.matrix_bytes();
    sizes.scales = presplit.matrix_groups();
  }
  // f64_mma reads a complex128 B in place, faster than B'.
  if (type == ScalarType::ComplexFloat) sizes.packed_bytes = prepared_bytes(k, n);
  return sizes;
}

PreparedOperand prepared_operand(const char* op, Named b, const Product& product,
                                 const Tensor& hi_lo, const Tensor& inverse_scales) {
  check_same_device(op, {"hi_lo", hi_lo}, b);
  check_same_device(op, {"inverse_scales", inverse_scales}, b);
  if (b.tensor.dim() != 2) {
    fail(op,
         std::string(b.name) + " is " + shape_of(b.tensor) + "; a prepared operand is one matrix");
  }
  if (hi_lo.numel() == 0 && inverse_scales.numel() == 0) return {};
  const ScalarType type = b.tensor.scalar_type();
  const bool splits = inverse_scales.numel() > 0;
  const PreparedSizes sizes = prepared_sizes(type, product.k, product.n, splits);
  auto fits = [](const Tensor& x, ScalarType dtype, int64_t size) {
    return x.dim() == 1 && x.size(0) == size && x.is_contiguous() && x.scalar_type() == dtype;
  };
  const bool has_split = type == ScalarType::Float || type == ScalarType::ComplexFloat;
  if (!fits(hi_lo, ScalarType::Byte, sizes.bytes()) ||
      !fits(inverse_scales, ScalarType::Float, sizes.scales) || (splits && !has_split)) {
    auto describe = [](const Tensor& x) { return shape_of(x) + " " + dtype_name(x.scalar_type()); };
    fail(op, "hi_lo is " + describe(hi_lo) + " and inverse_scales is " + describe(inverse_scales) +
                 ", which is not what torch_tiled.prepare makes of " + b.name + ", " +
                 describe(b.tensor) + "; prepare it again");
  }
  auto* bytes = static_cast<uint8_t*>(const_cast<void*>(data_of(hi_lo)));
  if (reinterpret_cast<uintptr_t>(bytes) % kAlignment != 0) {
    fail(op, "hi_lo does not begin at a multiple of " + std::to_string(kAlignment) +
                 " bytes; pass its clone()");
  }
  PreparedOperand prepared{.presplit = presplit_columns(type, product.k, product.n)};
  if (splits) {
    prepared.presplit.hi_lo = bytes;
    prepared.presplit.inverse_scales =
        static_cast<float*>(const_cast<void*>(data_of(inverse_scales)));
  }
  if (sizes.packed_bytes > 0) prepared.packed = bytes + sizes.presplit_bytes;
  return prepared;
}

}  // namespace tiled
