#pragma once
// Tensors of PyTorch as the operators need them: their names in messages, what is checked of them,
// where they lie, and new ones. What fails raises std::runtime_error (fail.h).

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
// What a product may be written as: the operands' dtype, or float32 for halves.
bool may_hold(ScalarType out, ScalarType operands);

// A tensor, and what messages call it.
struct Named {
  const char* name;
  const Tensor& tensor;
};

void check_given(const char* op, Named x);
void check_dtype(const char* op, Named x);
void check_same_dtype(const char* op, Named x, Named y);
void check_same_device(const char* op, Named x, Named y);
// All of these, of a product's.
void check_operands(const char* op, Named x, Named y);
// The dtype of a product, where `out` may be asked for.
ScalarType check_out_dtype(const char* op, ScalarType operands, std::optional<ScalarType> out);

// Reading a copy-on-write tensor leaves it shared; writing does not.
Strided readable(const Tensor& x);
Strided writable(const Tensor& x);
// Whether c may be written while the product's operands are read.
void check_written(const char* op, Named c, const Product& product);

// A contiguous tensor beside `like`; a failure calls it `what`. PyTorch's own text of one does not
// cross the ABI.
Tensor allocate(const char* op, const Shape& shape, ScalarType dtype, const Tensor& like,
                const char* what = "result");

inline Presplit presplit_columns(int64_t k, int64_t n) { return {.rows = n, .k = k}; }
// What presplit() made of b, or nothing: its tensors are empty where there was nothing to split.
Presplit presplit_operand(const char* op, Named b, const Product& product, const Tensor& hi_lo,
                      const Tensor& inverse_scales);

}  // namespace tiled
