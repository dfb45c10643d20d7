#pragma once
// From tensors to a problem, and from there to the kernel that solves it.

#include <torch/csrc/stable/accelerator.h>

#include <complex>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "binding/tensors.h"
#include "core/complex.h"
#include "core/context.h"
#include "core/problem.h"
#include "core/product.h"

namespace tiled {

// An operator's string arguments, parsed; `algorithm` lives as long as the call.
struct Options {
  const char* op;
  const std::string& algorithm;
  Precision precision;
};

// What is done with the sums, of real or complex operands.
struct OpEpilogue {
  std::complex<double> alpha = 1;  // real, as beta, for real operands
  std::complex<double> beta = 0;   // 0: C is never read
  const Tensor* bias = nullptr;
  Activation activation = Activation::kNone;  // kNone for complex operands

  Epilogue real() const;
  ComplexEpilogue complex() const;
};

// These throw an error that lists the names if there is no such name.
Precision parse_precision(const char* op, const std::string& name);
Options make_options(const char* op, const std::string& algorithm, const std::string& precision);
Activation parse_activation(const char* op, const std::string& name);

// Refuses an activation of real numbers, of this name, for complex operands.
void check_activation(const char* op, Activation activation, const std::string& name, NamedDtype x);

// Checks the bias and the activation of a layer's product, which has the dtype `out`; the epilogue
// points to the bias.
OpEpilogue make_linear_epilogue(const char* op, Named x, Named weight, const Product& product,
                                const std::optional<Tensor>& bias, const std::string& activation,
                                ScalarType out);

// The context of a tensor's device, without an allocator.
Context make_context(const char* op, const Tensor& like);

// What launches on a tensor's device need: it is the current one, and workspaces live until
// free_workspaces(), which is after all kernels of a product are launched.
class Launches {
 public:
  Launches(const char* op, const Tensor& like);
  Launches(const Launches&) = delete;

  Context context;
  void free_workspaces() { workspaces_.clear(); }
  // Says for how many bytes there was no memory.
  [[noreturn]] void fail_for_memory() const;

 private:
  void* allocate(int64_t bytes);

  const char* op_;
  const Tensor& like_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  std::vector<Tensor> workspaces_;
  int64_t refused_ = 0;  // the fewest bytes for which there was no memory
};

// The problem, without its matrices and its epilogue.
Problem make_problem(const Options& options, const Product& product, ScalarType operands,
                     ScalarType out);

// The complex problem, without its matrices and its epilogue.
ComplexProblem make_complex_problem(const Options& options, const Product& product,
                                    ScalarType operands);

// Calls solve(problem) for each index of the outer batch dimensions, which only batches of more
// than kMaxBatchRank dimensions have; once for other batches.
void for_outer_batch(const Problem& p, std::span<const OuterDim> outer, int64_t operand_size,
                     int64_t out_size, const std::function<void(const Problem&)>& solve);

// Throws if twice a size, or the cycles of a plan, could not be counted in 63 bits.
void check_countable(const char* op, const Product& product);

// Says what becomes of the flagged elements of products in "fp32" and "tf32".
struct Flagged {
  int64_t* recomputed = nullptr;  // counts them; or null
  bool kept = false;              // they become NaN, for the caller to recompute
};

// Throws a sentence that names both dtypes if the algorithm does not take mixed operands.
void check_mixed(const Options& options, ScalarType a, ScalarType b);

// Computes the product into c. Its operands have the dtype and the device of `a`.
void run(const Options& options, const Product& product, const Tensor& a, const Tensor& c,
         const OpEpilogue& epilogue = {}, const PreparedOperand& prepared_b = {},
         const Flagged& flagged = {});

// Computes the product of mixed operands into a float32 c on a GPU, if the fastest kernel reads the
// 16-bit operand in place. Otherwise returns false: it has to be upcast (binding/mixed.h).
bool run_in_place(const Options& options, const Product& product, const Tensor& a, const Tensor& b,
                  const Tensor& c, const OpEpilogue& epilogue = {},
                  const PreparedOperand& prepared_b = {});

}  // namespace tiled
