#pragma once
// PyTorch's tensors as the operators need them: names in messages, checks, memory, and new tensors.
// Failures throw std::runtime_error (core/error.h).

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

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

std::optional<DType> supported(ScalarType type);
bool is_16bit(ScalarType type);
// Returns whether a product may be written as `out`: the operands' dtype, or float32 for float16
// and bfloat16.
bool may_hold(ScalarType out, ScalarType operands);

// A tensor, and its name in messages.
struct Named {
  const char* name;
  const Tensor& tensor;
};

void check_given(const char* op, Named x);
void check_dtype(const char* op, Named x);
void check_same_dtype(const char* op, Named x, Named y);
void check_same_device(const char* op, Named x, Named y);
// Makes all of these checks for the operands of a product.
void check_operands(const char* op, Named x, Named y);
// Returns the dtype of a product, whose caller may ask for `out`.
ScalarType check_out_dtype(const char* op, ScalarType operands, std::optional<ScalarType> out);

// Reading a copy-on-write tensor leaves it shared; writing does not.
Strided readable(const Tensor& x);
Strided writable(const Tensor& x);
// Checks that c can be written while the product's operands are read.
void check_written(const char* op, Named c, const Product& product);

// Returns a contiguous tensor on the device of `like`, which messages call `what`, or nothing where
// there is no memory for it. PyTorch's own text of a failure does not cross the ABI.
std::optional<Tensor> try_allocate(const char* op, const Shape& shape, ScalarType dtype,
                                   const Tensor& like, const char* what);
[[noreturn]] void fail_out_of_memory(const char* op, const Shape& shape, ScalarType dtype,
                                     const Tensor& like, const char* what);
// try_allocate(), or else fail_out_of_memory().
Tensor allocate(const char* op, const Shape& shape, ScalarType dtype, const Tensor& like,
                const char* what = "result");

inline Presplit presplit_columns(int64_t k, int64_t n) { return {.rows = n, .k = k}; }
// Returns the split that tiled::prepare made of b. Its pointers are null where the tensors are
// empty, since b was not worth splitting.
Presplit presplit_operand(const char* op, Named b, const Product& product, const Tensor& hi_lo,
                          const Tensor& inverse_scales);

}  // namespace tiled
