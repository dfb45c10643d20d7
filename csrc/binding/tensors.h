#pragma once
// PyTorch's tensors as the operators need them: names in messages, checks, memory, and new tensors.
// Failures throw std::runtime_error (core/error.h).

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/lazy.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "core/product.h"
#include "core/strided.h"

namespace tiled {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// As in Python: "torch.float32", "cuda:0", "(2, 3)".
std::string dtype_name(ScalarType type);
std::string device_name(const Tensor& x);
std::string shape_of(const Tensor& x);

// The dtype in which products of `type` are computed: for complex numbers, that of their parts.
std::optional<DType> supported(ScalarType type);
bool is_16bit(ScalarType type);
bool is_complex(ScalarType type);
// Returns whether one operand is float16 or bfloat16 and the other float32: binding/mixed.h.
bool is_mixed(ScalarType a, ScalarType b);
// Returns the dtype of a product unless its caller asks for another: float32 for mixed operands.
inline ScalarType dtype_of_product(ScalarType a, ScalarType b) {
  return a == b ? a : ScalarType::Float;
}

// A tensor, and its name in messages.
struct Named {
  const char* name;
  const Tensor& tensor;
};

// The dtype of a tensor, and the tensor's name in messages.
struct NamedDtype {
  const char* name;
  ScalarType type;

  NamedDtype(const char* name, ScalarType type) : name(name), type(type) {}
  NamedDtype(const char* name, const Tensor& x) : NamedDtype(name, x.scalar_type()) {}
  NamedDtype(Named x) : name(x.name), type(x.tensor.scalar_type()) {}
};

void check_given(const char* op, Named x);
void check_dtype(const char* op, NamedDtype x);
void check_same_dtype(const char* op, NamedDtype x, NamedDtype y);
void check_same_device(const char* op, Named x, Named y);
// Checks that operands of these dtypes have a product: they have one dtype or are mixed.
void check_dtypes(const char* op, NamedDtype x, NamedDtype y);
// Makes all of these checks for the operands of a product.
void check_operands(const char* op, Named x, Named y);
// Returns the dtype of a product, for which the caller may ask by `out`: an operand's, or float32
// for float16 and bfloat16.
ScalarType check_out_dtype(const char* op, ScalarType a, ScalarType b,
                           std::optional<ScalarType> out);
void check_dtype_of_out(const char* op, ScalarType out, ScalarType a, ScalarType b);
// Checks c of gemm_, which has the operands' dtype or is float32 beside 16-bit ones.
void check_dtype_of_c(const char* op, ScalarType c, NamedDtype a, NamedDtype b);
// Checks the bias of a layer with a result of dtype `out`: it has that dtype, or an operand's.
void check_dtype_of_bias(const char* op, ScalarType bias, NamedDtype x, NamedDtype weight,
                         ScalarType out);

// The bits of a lazy view of complex numbers. Real ones have none here: the dispatcher's key
// Negative resolves them.
Lazy lazy_bits(const Tensor& x);
// Returns whether x has such bits that PyTorch's operators would not see here.
bool hides_lazy_bits(const Tensor& x);
// The address of what is read. Throws a sentence if x has elements and no memory.
const void* data_of(const Tensor& x);
// Reading a copy-on-write tensor leaves it shared; writing does not.
Strided readable(const Tensor& x);
Strided writable(const Tensor& x);
// Checks that c can be written while the product's operands are read.
void check_written(const char* op, Named c, const Product& product);
// Returns the product of a and b, after all checks of them and of `out`, to which it is written.
Product make_product_into(const char* op, const Tensor& a, const Tensor& b, const Tensor& out);

// Returns a tensor on the device of `like`, which messages call `what`, or nothing if there is no
// memory for it. It is contiguous, or has the strides that are given. PyTorch's own text of a
// failure does not cross the ABI.
std::optional<Tensor> try_allocate(const char* op, const Shape& shape, ScalarType dtype,
                                   const Tensor& like, const char* what,
                                   const Shape* strides = nullptr);
[[noreturn]] void fail_out_of_memory(const char* op, const Shape& shape, ScalarType dtype,
                                     const Tensor& like, const char* what);
// try_allocate(), or else fail_out_of_memory().
Tensor allocate(const char* op, const Shape& shape, ScalarType dtype, const Tensor& like,
                const char* what = "result", const Shape* strides = nullptr);

// A right operand that tiled::prepare has read. Its pointers are null if its tensors are empty,
// since b was not worth preparing.
struct PreparedOperand {
  Presplit presplit;
  const void* packed = nullptr;  // B' of a complex b (core/complex.h), which follows the split
};
// The sizes of what tiled::prepare returns for a (k, n) matrix.
struct PreparedSizes {
  int64_t presplit_bytes = 0, packed_bytes = 0, scales = 0;
  int64_t bytes() const { return presplit_bytes + packed_bytes; }
};
inline Presplit presplit_columns(ScalarType type, int64_t k, int64_t n) {
  const int parts = is_complex(type) ? 2 : 1;
  return {.rows = parts * n, .k = parts * k};
}
PreparedSizes prepared_sizes(ScalarType type, int64_t k, int64_t n, bool splits);
// Returns what tiled::prepare made of b, from its tensors.
PreparedOperand prepared_operand(const char* op, Named b, const Product& product,
                                 const Tensor& hi_lo, const Tensor& inverse_scales);

}  // namespace tiled
