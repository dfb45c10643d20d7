#pragma once
// The bodies of operators of ops.cpp that other operators call.

#include <optional>
#include <string>

#include "binding/tensors.h"

namespace tiled {

Tensor matmul(const Tensor& a, const Tensor& b, const std::string& algorithm,
              const std::string& precision, std::optional<ScalarType> out_dtype);

void matmul_out(const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision, const Tensor& out);

void gemm_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha_real, double beta_real,
           const std::string& algorithm, const std::string& precision, double alpha_imag,
           double beta_imag);

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::string& activation, const std::string& algorithm,
              const std::string& precision, std::optional<ScalarType> out_dtype);

}  // namespace tiled
