#pragma once
// From tensors to a problem, and from there to the kernel that solves it.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "binding/tensors.h"
#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "core/product.h"

namespace tiled {

// An operator's string arguments, parsed; `algorithm` lives as long as the call.
struct Options {
  const char* op;
  const std::string& algorithm;
  Precision precision;
};

// Both throw an error that lists the names where there is no such name.
Options make_options(const char* op, const std::string& algorithm, const std::string& precision);
Activation parse_activation(const char* op, const std::string& name);

// The context of a tensor's device, without an allocator.
Context make_context(const char* op, const Tensor& like);

// The problem, without its matrices.
Problem make_problem(const Options& options, const Product& product, ScalarType operands,
                     ScalarType out, const Epilogue& epilogue);

// Calls solve(problem) for each index of the outer batch dimensions, which only batches of more
// than kMaxBatchRank dimensions have; once for other batches.
void for_outer_batch(const Problem& p, std::span<const OuterDim> outer, int64_t operand_size,
                     int64_t out_size, const std::function<void(const Problem&)>& solve);

// Computes the product into c.
void run(const Options& options, const Product& product, const Tensor& a, const Tensor& c,
         const Epilogue& epilogue = {}, const Presplit& b_presplit = {},
         int64_t* recomputed = nullptr);

}  // namespace tiled
