#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "binding/tensors.h"

namespace tiled {

// How a product would be computed: a list of heading, text, heading, text. With a compute
// capability (90 for 9.0) and a number of SMs that are not 0, on such a GPU, and then nothing is
// computed.
std::vector<std::string> explain_matmul(const Tensor& a, const Tensor& b,
                                        const std::string& algorithm, const std::string& precision,
                                        int64_t compute_capability, int64_t sms);

}  // namespace tiled
