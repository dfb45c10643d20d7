#pragma once
// PyTorch's own product, which is `auto` on the CPU, with the flags and the threads of its user.
//
// Everything is checked before an aten operator is called: when one throws across the ABI, its text
// is lost before torch 2.13.

#include <optional>

#include "binding/run.h"
#include "binding/tensors.h"
#include "core/problem.h"
#include "core/product.h"

namespace tiled {

// Returns whether PyTorch computes the product: on the CPU by algorithm auto, unless it would not
// see the bits of a lazy operand.
bool is_torch_product(const Tensor& a, const Tensor& b, const Options& options);

// Writes a @ b to `out`, which has the product's shape.
void torch_product(const char* op, const Tensor& a, const Tensor& b, const Tensor& out);

// activation(x @ weight.mT + bias).
Tensor torch_linear(const char* op, const Tensor& x, const Tensor& weight,
                    const std::optional<Tensor>& bias, Activation activation);

// c = alpha * sums + beta * c; `sums` have the dtype that c's elements are summed in.
void apply_epilogue_to(const Options& options, Product product, const Tensor& sums, const Tensor& c,
                       const OpEpilogue& epilogue);

}  // namespace tiled
