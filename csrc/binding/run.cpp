#include "binding/run.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "select/ladder.h"

namespace tiled {
namespace {

Precision parse_precision(const char* op, const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "ieee") return Precision::kIeee;
  if (name == "tf32") return Precision::kTf32;
  fail(op, "there is no precision \"" + name + "\"; choose fp32, ieee or tf32");
}

void parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(0, count, 1, body);
}

// The workspaces of one product, which live until all of its kernels are launched.
struct Workspaces {
  const char* op;
  const Tensor& like;
  std::vector<Tensor> made = {};
  int64_t refused = 0;  // the fewest bytes for which there was no memory

  void* allocate(int64_t bytes) {
    auto workspace = try_allocate(op, {bytes}, ScalarType::Byte, like, "workspace");
    if (!workspace) {
      refused = refused == 0 ? bytes : std::min(refused, bytes);
      return nullptr;
    }
    made.push_back(*std::move(workspace));
    return made.back().mutable_data_ptr();
  }
};

}  // namespace

Options make_options(const char* op, const std::string& algorithm, const std::string& precision) {
  return {op, algorithm, parse_precision(op, precision)};
}

Activation parse_activation(const char* op, const std::string& name) {
  if (name == "none") return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "tanh") return Activation::kTanh;
  if (name == "silu") return Activation::kSilu;
  fail(op,
       "there is no activation \"" + name + "\"; choose none, relu, gelu, gelu_tanh, tanh or silu");
}

Context make_context(const char* op, const Tensor& like) {
  if (!like.is_cuda()) {
    return {.sms = static_cast<int>(torch::stable::get_num_threads()),
            .parallel_for = parallel_for};
  }
#ifdef TORCH_TILED_WITH_CUDA
  const Context context = cuda_context(like.get_device_index());
  if (context.compute_capability < 80) {
    fail(op, "the GPU has compute capability " + std::to_string(context.compute_capability / 10) +
                 "." + std::to_string(context.compute_capability % 10) +
                 "; at least 8.0 (Ampere) is needed");
  }
  return context;
#else
  fail(op, "the operands are on " + device_name(like) +
               " and this torch_tiled was built without CUDA; rebuild it with nvcc on the PATH "
               "and TORCH_TILED_CUDA=1");
#endif
}

Problem make_problem(const Options& options, const Product& product, ScalarType operands,
                     ScalarType out, const Epilogue& epilogue) {
  Problem p;
  p.op = options.op;
  p.dtype = *supported(operands);
  p.out_dtype = *supported(out);
  p.precision = options.precision;
  p.m = product.m;
  p.n = product.n;
  p.k = product.k;
  p.epilogue = epilogue;
  return p;
}

void for_outer_batch(const Problem& p, std::span<const OuterDim> outer, int64_t operand_size,
                     int64_t out_size, const std::function<void(const Problem&)>& solve) {
  if (outer.empty()) return solve(p);
  const OuterDim& dim = outer.front();
  for (int64_t i = 0; i < dim.size; ++i) {
    Problem inner = p;
    const auto bytes = [&](int64_t stride, int64_t size) { return i * stride * size; };
    inner.a.data = static_cast<const char*>(p.a.data) + bytes(dim.a_stride, operand_size);
    inner.b.data = static_cast<const char*>(p.b.data) + bytes(dim.b_stride, operand_size);
    inner.c.data = static_cast<char*>(p.c.data) + bytes(dim.c_stride, out_size);
    for_outer_batch(inner, outer.subspan(1), operand_size, out_size, solve);
  }
}

void run(const Options& options, const Product& product, const Tensor& a, const Tensor& c,
         const Epilogue& epilogue, const Presplit& b_presplit, int64_t* recomputed) {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (a.is_cuda()) guard.emplace(a.get_device_index());
  Context context = make_context(options.op, a);
  context.recomputed = recomputed;
  Workspaces workspaces{options.op, a};
  context.allocate = [&workspaces](int64_t bytes) { return workspaces.allocate(bytes); };
  Problem p = make_problem(options, product, a.scalar_type(), c.scalar_type(), epilogue);
  p.b_presplit = b_presplit;
  const Strided c_matrices = product.matrices(writable(c));
  const auto outer = lay_out_batch(product.a, product.b, c_matrices, c.mutable_data_ptr(), p);
  const std::vector<Choice> chosen = choices(options.algorithm, p, context);
  if (c_matrices.empty()) return;
  const auto solve = [&](const Problem& inner, const std::vector<Choice>& best) {
    const bool launched = launch(best, inner, context);
    workspaces.made.clear();
    if (launched) return;
    fail_out_of_memory(options.op, {workspaces.refused}, ScalarType::Byte, a, "workspace");
  };
  if (outer.empty()) return solve(p, chosen);
  for_outer_batch(p, outer, product.a.element_size, c_matrices.element_size,
                  [&](const Problem& inner) {
                    // Matrices of the outer batch may be aligned differently, so each is planned.
                    solve(inner, choices(options.algorithm, inner, context));
                  });
}

}  // namespace tiled
