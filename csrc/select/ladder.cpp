#include "select/ladder.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <ranges>
#include <utility>

#include "core/error.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/order_mma.h"
#include "core/order_tf32.h"
#include "kernels/basics/plan.h"
#include "kernels/f64/plan.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/mma/plan.h"
#include "kernels/simt/plan.h"
#include "kernels/tf32/plan.h"

namespace tiled {

// Declares what a row names, so that a kernel needs no header.
#define KERNEL(name, family, twin, ...)                            \
  Plan name##_plan(const Problem&, int64_t sms);                   \
  namespace cuda {                                                 \
  bool launch_##name(const Problem&, const Plan&, const Context&); \
  }                                                                \
  namespace cpu {                                                  \
  bool launch_##twin(const Problem&, const Plan&, const Context&); \
  }
#include "select/kernels.def"
#undef KERNEL

#ifdef TORCH_TILED_WITH_CUDA
#define TILED_CUDA(launch) cuda::launch
#else
#define TILED_CUDA(launch) nullptr
#endif

namespace {

constexpr Kernel kKernels[] = {
#define KERNEL(name_, family_, twin, ...) \
  {.name = #name_,                        \
   .family = #family_,                    \
   .plan = name_##_plan,                  \
   .cuda = TILED_CUDA(launch_##name_),    \
   .cpu = cpu::launch_##twin,             \
   __VA_ARGS__},
#include "select/kernels.def"
#undef KERNEL
};

bool has_dtype(Dtypes dtypes, DType dtype) {
  switch (dtypes) {
    case Dtypes::kAny: return true;
    case Dtypes::kFloat32: return dtype == DType::kFloat32;
    case Dtypes::kFloat64: return dtype == DType::kFloat64;
    case Dtypes::k16Bit: return is_16bit(dtype);
  }
  return false;
}

const char* name_of(DType dtype, bool complex) {
  switch (dtype) {
    case DType::kFloat32: return complex ? "complex64" : "float32";
    case DType::kFloat64: return complex ? "complex128" : "float64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
  }
  return "";
}

// The families that were made for a dtype.
const char* family_for(DType dtype) {
  return is_16bit(dtype) ? "mma" : dtype == DType::kFloat64 ? "f64" : "simt or fp16x3";
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The order of "auto": a function of dtype, precision and the device.
Order order_of(const Problem& p, const Context& context) {
  if (is_16bit(p.dtype)) return Order::kMma;
  if (p.dtype != DType::kFloat32 || !context.on_hopper()) return Order::kChunked;
  switch (p.precision) {
    case Precision::kFp32: return Order::kFp16x3;
    case Precision::kTf32: return Order::kTf32;
    case Precision::kIeee: return Order::kChunked;
  }
  return Order::kChunked;
}

// Returns whether sums of that K are in the chunked order although another was asked for.
bool falls_back_to_chunked(Order order, int64_t k) {
  return (order == Order::kFp16x3 && k < fp16x3::kMinK) ||
         (order == Order::kTf32 && (k < tf32::kMinK || k > tf32::kMaxK));
}

// Throws a sentence where `algorithm`, which names the kernel or its family, cannot solve the
// problem. `runs`: at least one kernel of that name runs on the device.
void check_algorithm(const Kernel& kernel, bool runs, std::string_view algorithm, const Problem& p,
                     const Context& context, bool complex) {
  const std::string name = "algorithm \"" + std::string(algorithm) + "\" ";
  const bool takes_16bit = kernel.dtypes == Dtypes::k16Bit;
  if (!runs && !has_dtype(kernel.dtypes, p.dtype)) {
    const char* taken = takes_16bit                         ? "float16 and bfloat16"
                        : kernel.dtypes == Dtypes::kFloat64 ? "float64 and complex128"
                                                            : "float32 and complex64";
    fail(p.op, name + "takes " + taken + " operands, and these are " + name_of(p.dtype, complex) +
                   "; choose auto, naive or tiled, or " + family_for(p.dtype));
  }
  if (kernel.order == Order::kFp16x3 && p.precision == Precision::kIeee) {
    fail(p.op, name +
                   "does not sum by IEEE FMAs, as precision ieee asks; choose auto, naive, "
                   "tiled or simt, or precision fp32");
  }
  if (kernel.order == Order::kTf32 && p.precision != Precision::kTf32) {
    fail(p.op, name +
                   "rounds operands to 11 bits, which precision tf32 alone allows; choose auto, "
                   "or precision tf32");
  }
  if (!runs) {
    fail(p.op, name + "needs a Hopper GPU (compute capability 9.0), and this one has " +
                   std::to_string(context.compute_capability / 10) + "." +
                   std::to_string(context.compute_capability % 10) +
                   (takes_16bit ? "; choose auto, naive, tiled or mma_sync"
                                : "; choose auto, naive, tiled or simt"));
  }
}

// Returns the kernels among which `algorithm` lets the cost models choose, in the table's order: at
// least one.
std::vector<const Kernel*> candidates(std::string_view algorithm, const Problem& p,
                                      const Context& context, bool complex) {
  std::vector<const Kernel*> kernels;
  kernels.reserve(std::size(kKernels));
  const Kernel* named = nullptr;  // any kernel of that name: a family has one order
  bool runs = false;
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != algorithm && kernel.family != algorithm) continue;
    named = &kernel;
    if (!kernel.runs_on(context, p.dtype)) continue;
    runs = true;
    if (kernel.takes(p)) kernels.push_back(&kernel);
  }
  if (named != nullptr) check_algorithm(*named, runs, algorithm, p, context, complex);
  if (named == nullptr && algorithm != "auto") {
    fail(p.op, "there is no algorithm \"" + std::string(algorithm) + "\"; choose auto, " +
                   join(algorithms()));
  }
  Order order = named != nullptr ? named->order : order_of(p, context);
  const bool falls_back = falls_back_to_chunked(order, p.k);
  if (falls_back) order = Order::kChunked;
  // Where no kernel of that name takes the sizes or layouts, others of its order give the same
  // bits.
  if (kernels.empty() || falls_back) {
    kernels.clear();
    for (const Kernel& kernel : kKernels) {
      const bool same_bits = kernel.order == order && kernel.runs_on(context, p.dtype);
      if (same_bits && kernel.takes(p)) kernels.push_back(&kernel);
    }
  }
  return kernels;
}

// Returns the kernels with their plans, fastest first; ties are in the table's order.
std::vector<Choice> planned(const std::vector<const Kernel*>& kernels, const Problem& p,
                            const Context& context) {
  std::vector<Choice> choices;
  choices.reserve(kernels.size());
  for (const Kernel* kernel : kernels) {
    choices.push_back({kernel, kernel->plan(p, context.sms)});
  }
  std::ranges::sort(choices, {}, [](const Choice& choice) {
    return std::pair(choice.plan.cycles, choice.kernel);
  });
  return choices;
}

std::string describe(Order order, int64_t k) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(k, kChunk));
  const std::string in_chunks = std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks") +
                                " of at most " + std::to_string(kChunk) + " in K, ";
  switch (order) {
    case Order::kPlain: return "ascending in K";
    case Order::kChunked: return in_chunks + "each ascending, added in order";
    case Order::kFp16x3:
      return in_chunks + "each three float16 products promoted every " +
             std::to_string(fp16x3::promotion(k)) + ", added in order";
    case Order::kMma:
    case Order::kTf32: {
      const int64_t chains = std::max<int64_t>(1, ceil_div(k, mma_order::kChunk));
      return std::to_string(chains) + (chains == 1 ? " chain" : " chains") + " of at most " +
             std::to_string(mma_order::kChunk) + " in K on tensor cores" +
             (order == Order::kTf32 ? ", of scaled float16" : "") + ", added in order";
    }
  }
  return "";
}

std::string three_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

bool Kernel::runs_on(const Context& context, DType dtype) const {
  return has_dtype(dtypes, dtype) &&
         (gpus == Gpus::kAny || context.on_host() || context.on_hopper());
}

std::vector<std::string> algorithms() {
  std::vector<std::string> names;
  for (const Kernel* kernel = std::begin(kKernels); kernel != std::end(kKernels); ++kernel) {
    names.emplace_back(kernel->name);
    const Kernel* next = kernel + 1;
    const bool last_of_family = next == std::end(kKernels) || next->family != kernel->family;
    if (last_of_family && kernel->family != kernel->name) names.emplace_back(kernel->family);
  }
  return names;
}

std::vector<Choice> choices(std::string_view algorithm, const Problem& p, const Context& context,
                            bool complex) {
  return planned(candidates(algorithm, p, context, complex), p, context);
}

bool launch(const std::vector<Choice>& choices, const Problem& p, const Context& context) {
  const auto run = [&](const Choice& choice) {
    const Launch launch = context.on_host() ? choice.kernel->cpu : choice.kernel->cuda;
    return launch(p, choice.plan, context);
  };
  if (std::ranges::any_of(choices, run)) return true;
  std::vector<const Kernel*> others;
  for (const Kernel& kernel : kKernels) {
    const bool tried = std::ranges::find(choices, &kernel, &Choice::kernel) != choices.end();
    const bool same_bits = kernel.order == choices.front().kernel->order;
    if (!tried && same_bits && kernel.runs_on(context, p.dtype) && kernel.takes(p)) {
      others.push_back(&kernel);
    }
  }
  return std::ranges::any_of(planned(others, p, context), run);
}

std::vector<std::pair<std::string, std::string>> explain(const std::vector<Choice>& choices,
                                                         const Problem& p, const Context& context) {
  const auto& [kernel, plan] = choices.front();
  std::vector<std::string> others;
  for (const Choice& other : choices | std::views::drop(1)) {
    others.push_back(std::string(other.kernel->name) + " " + three_digits(other.plan.cycles));
  }
  std::vector<std::pair<std::string, std::string>> facts{
      {"algorithm", std::string(kernel->name)},
      {"tile", std::to_string(plan.m) + "x" + std::to_string(plan.n)},
      {"blocks", std::to_string(plan.blocks)},
      {"waves", std::to_string(ceil_div(plan.blocks, context.sms)) + " of " +
                    std::to_string(context.sms) + " SMs"},
      {"cycles", three_digits(plan.cycles) + " by the model"},
      {"why", others.empty() ? "the only candidate" : "fewest cycles, against " + join(others)},
      {"order", describe(kernel->order, p.k)},
  };
  if (is_guarded(kernel->order)) {
    const int chunk = kernel->order == Order::kTf32 ? mma_order::kChunk : kChunk;
    const int64_t chunks = ceil_div(p.k, chunk);
    facts.emplace_back("scale_groups", std::to_string(p.m * chunks) + " of a's rows and " +
                                           std::to_string(p.n * chunks) +
                                           " of b's columns in a matrix, one a chunk");
  }
  return facts;
}

}  // namespace tiled
