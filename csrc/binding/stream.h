#pragma once
// The operators that products larger than the GPU need beside matmul: torch_tiled/stream calls
// them.

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "binding/tensors.h"

namespace tiled {

// Writes activation(a b + bias) to c, which has the product's shape. hi_lo and inverse_scales are
// what prepare(b) returned, or empty.
void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                    const std::string& activation, const std::string& algorithm,
                    const std::string& precision);

// Adds the sums of one chunk of K to `sums`: after all chunks, in order, these are the sums of the
// whole product, to the bit. They are float32 or float64, and of float16 and bfloat16 operands
// float32. A flagged element becomes NaN, and is left to the caller, who has all of K.
void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision);

// Returns how a GPU would multiply panels of a streamed product: the kernel, its cycles, and the
// bytes of each allocation that it makes, at most, however the panels are stored. `sizes` are the
// number of matrices, m, n and k. `prepared`: B is what prepare(b) returned. `keeps_flagged`: as
// add_chunk_() does.
std::tuple<std::string, double, std::vector<int64_t>> cost_of_panels(
    torch::headeronly::ScalarType dtype, const std::string& algorithm, const std::string& precision,
    const std::vector<int64_t>& sizes, bool prepared, bool keeps_flagged,
    int64_t compute_capability, int64_t sms);

// Applies an activation to finished sums, as a kernel's epilogue does.
void activate_(const Tensor& x, const std::string& activation);

}  // namespace tiled
