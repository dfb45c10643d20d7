#pragma once

#include <cstdint>
#include <string>

#include "binding/tensors.h"

namespace tiled {

// Returns how a product would be computed, as the fields of a JSON object, which
// torch_tiled/explanation.py prints. If the compute capability (90 for 9.0) and the number of SMs
// are not 0, the product is that on such a GPU, and nothing is computed.
std::string explain_matmul(const Tensor& a, const Tensor& b, const std::string& algorithm,
                           const std::string& precision, int64_t compute_capability, int64_t sms);

}  // namespace tiled
