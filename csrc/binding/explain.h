#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "binding/tensors.h"

namespace tiled {

// Returns how a product would be computed, as a list of heading, text, heading, text. If the
// compute capability (90 for 9.0) and the number of SMs are not 0, that is on such a GPU, and
// nothing is computed.
std::vector<std::string> explain_matmul(const Tensor& a, const Tensor& b,
                                        const std::string& algorithm, const std::string& precision,
                                        int64_t compute_capability, int64_t sms);

}  // namespace tiled
