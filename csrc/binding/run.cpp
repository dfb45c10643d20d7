#include "binding/run.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "binding/mixed.h"
#include "core/error.h"
#include "select/complex.h"
#include "select/ladder.h"

namespace tiled {
Precision parse_precision(const char* op, const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "ieee") return Precision::kIeee;
  if (name == "tf32") return Precision::kTf32;
  fail(op, "there is no precision \"" + name + "\"; choose fp32, ieee or tf32");
}

namespace {

void parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(0, count, 1, body);
}

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

OpEpilogue make_linear_epilogue(const char* op, Named x, Named weight, const Product& product,
                                const std::optional<Tensor>& bias, const std::string& activation,
                                ScalarType out) {
  OpEpilogue epilogue{.activation = parse_activation(op, activation)};
  if (bias) {
    check_same_device(op, {"bias", *bias}, x);
    check_dtype_of_bias(op, bias->scalar_type(), x, weight, out);
    if (bias->dim() != 1 || bias->size(0) != product.n) {
      fail(op, "bias is " + shape_of(*bias) + " and " + weight.name + " is " +
                   shape_of(weight.tensor) + "; bias must be (out_features,)");
    }
    epilogue.bias = &*bias;
  }
  check_activation(op, epilogue.activation, activation, x);
  return epilogue;
}

void check_activation(const char* op, Activation activation, const std::string& name,
                      NamedDtype x) {
  if (activation == Activation::kNone || !is_complex(x.type)) return;
  fail(op, "activation \"" + name + "\" is one of real numbers, and " + x.name + " is " +
               dtype_name(x.type) + "; choose none");
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

Launches::Launches(const char* op, const Tensor& like) : op_(op), like_(like) {
  if (like.is_cuda()) guard_.emplace(like.get_device_index());
  context = make_context(op, like);
  context.allocate = [this](int64_t bytes) { return allocate(bytes); };
}

void* Launches::allocate(int64_t bytes) {
  auto workspace = try_allocate(op_, {bytes}, ScalarType::Byte, like_, "workspace");
  if (!workspace) {
    refused_ = refused_ == 0 ? bytes : std::min(refused_, bytes);
    return nullptr;
  }
  workspaces_.push_back(*std::move(workspace));
  return workspaces_.back().mutable_data_ptr();
}

void Launches::fail_for_memory() const {
  fail_out_of_memory(op_, {refused_}, ScalarType::Byte, like_, "workspace");
}

Epilogue OpEpilogue::real() const {
  return {.alpha = alpha.real(),
          .beta = beta.real(),
          .bias = bias == nullptr ? nullptr : data_of(*bias),
          .bias_stride = bias == nullptr ? 0 : bias->stride(0),
          .activation = activation};
}

ComplexEpilogue OpEpilogue::complex() const {
  ComplexEpilogue epilogue{.alpha = alpha, .beta = beta};
  if (bias != nullptr) {
    epilogue.bias = data_of(*bias);
    epilogue.bias_stride = bias->stride(0);
    epilogue.bias_lazy = lazy_bits(*bias);
  }
  return epilogue;
}

Problem make_problem(const Options& options, const Product& product, ScalarType operands,
                     ScalarType out) {
  Problem p;
  p.op = options.op;
  p.dtype = *supported(operands);
  p.out_dtype = *supported(out);
  p.precision = options.precision;
  p.m = product.m;
  p.n = product.n;
  p.k = product.k;
  return p;
}

void check_countable(const char* op, const Product& product) {
  constexpr int64_t kMost = int64_t{1} << 60;
  if (std::max({product.m, product.n, product.k}) <= kMost) return;
  fail(op, "m = " + std::to_string(product.m) + ", n = " + std::to_string(product.n) +
               ", k = " + std::to_string(product.k) + "; none of them may be above 2**60");
}

ComplexProblem make_complex_problem(const Options& options, const Product& product,
                                    ScalarType operands) {
  ComplexProblem z;
  z.problem = make_problem(options, product, operands, operands);
  z.a = product.a.lazy;
  z.b = product.b.lazy;
  return z;
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

namespace {

// The parts of run() that real and complex products share.
struct Run {
  const Options& options;
  Launches& launches;
  bool keeps_flagged;
};

void run_real(const Run& run, const Product& product, const Tensor& c, const OpEpilogue& epilogue,
              ScalarType operands, const Presplit& b_presplit) {
  const Context& context = run.launches.context;
  Problem p = make_problem(run.options, product, operands, c.scalar_type());
  p.epilogue = epilogue.real();
  p.b_presplit = b_presplit;
  p.keeps_flagged = run.keeps_flagged;
  const Strided c_matrices = product.matrices(writable(c));
  const auto outer = lay_out_batch(product.a, product.b, c_matrices, c.mutable_data_ptr(), p);
  const std::vector<Choice> chosen = choices(run.options.algorithm, p, context);
  if (c_matrices.empty()) return;
  const auto solve = [&](const Problem& inner, const std::vector<Choice>& best) {
    const bool launched = launch(best, inner, context);
    run.launches.free_workspaces();
    if (!launched) run.launches.fail_for_memory();
  };
  if (outer.empty()) return solve(p, chosen);
  for_outer_batch(p, outer, product.a.element_size, c_matrices.element_size,
                  [&](const Problem& inner) {
                    // Matrices of the outer batch may be aligned differently, so each is planned.
                    solve(inner, choices(run.options.algorithm, inner, context));
                  });
}

// Solves the problem, or parts of it one after another if there is no memory for its passes.
void solve_complex(const Run& run, const ComplexProblem& z) {
  const Context& context = run.launches.context;
  const ComplexPlan plan = plan_complex(run.options.algorithm, z, context);
  const bool launched = launch_complex(plan, z, context);
  run.launches.free_workspaces();
  if (launched) return;
  const auto parts = split_in_two(z);
  if (!parts) run.launches.fail_for_memory();
  solve_complex(run, parts->first);
  solve_complex(run, parts->second);
}

void run_complex(const Run& run, const Product& product, const Tensor& c,
                 const OpEpilogue& epilogue, const PreparedOperand& prepared_b) {
  check_countable(run.options.op, product);
  ComplexProblem z = make_complex_problem(run.options, product, c.scalar_type());
  z.epilogue = epilogue.complex();
  z.prepared_b = prepared_b.packed;
  z.problem.b_presplit = prepared_b.presplit;
  z.problem.keeps_flagged = run.keeps_flagged;
  const Strided c_matrices = product.matrices(writable(c));
  z.c = c_matrices.lazy;
  const auto outer =
      lay_out_batch(product.a, product.b, c_matrices, c.mutable_data_ptr(), z.problem);
  if (c_matrices.empty()) {
    plan_complex(run.options.algorithm, z, run.launches.context);  // refuses what it would refuse
    return;
  }
  for_outer_batch(z.problem, outer, product.a.element_size, c_matrices.element_size,
                  [&](const Problem& inner) {
                    ComplexProblem part = z;
                    part.problem = inner;
                    solve_complex(run, part);
                  });
}

}  // namespace

void check_mixed(const Options& options, ScalarType a, ScalarType b) {
  check_algorithm(options.op, options.algorithm, options.precision, DType::kFloat32, false,
                  narrow_of(a, b));
}

void run(const Options& options, const Product& product, const Tensor& a, const Tensor& c,
         const OpEpilogue& epilogue, const PreparedOperand& prepared_b, const Flagged& flagged) {
  Launches launches(options.op, a);
  launches.context.recomputed = flagged.recomputed;
  const Run run{options, launches, flagged.kept};
  if (is_complex(a.scalar_type())) return run_complex(run, product, c, epilogue, prepared_b);
  run_real(run, product, c, epilogue, a.scalar_type(), prepared_b.presplit);
}

bool run_in_place(const Options& options, const Product& product, const Tensor& a, const Tensor& b,
                  const Tensor& c, const OpEpilogue& epilogue, const PreparedOperand& prepared_b) {
  if (!c.is_cuda()) return false;
  Launches launches(options.op, c);
  const Context& context = launches.context;
  Problem p = make_problem(options, product, ScalarType::Float, ScalarType::Float);
  p.epilogue = epilogue.real();
  p.b_presplit = prepared_b.presplit;
  const Strided c_matrices = product.matrices(writable(c));
  const auto outer = lay_out_batch(product.a, product.b, c_matrices, c.mutable_data_ptr(), p);
  if (!outer.empty() || c_matrices.empty()) return false;
  const Narrow narrow = narrow_of(a.scalar_type(), b.scalar_type());
  const Choice best = mixed_choices(options.algorithm, p, narrow, context).front();
  const ReadsMixed& mixed = best.kernel->mixed;
  return mixed.launch != nullptr && mixed.in_place(p, narrow) &&
         mixed.launch(p, best.plan, narrow, context);
}

}  // namespace tiled
