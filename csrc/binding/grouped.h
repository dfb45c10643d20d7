#pragma once
// Grouped products, with the semantics of torch.nn.functional.grouped_mm: see GroupedSide of
// core/problem.h. A row or column that no group has is 0.

#include <optional>
#include <string>

#include "binding/tensors.h"

namespace tiled {

// Computes group by group on the CPU, where each group's product is matmul's or linear's, and in
// one launch for all groups on a GPU.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                  const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                  const std::string& precision);

}  // namespace tiled
