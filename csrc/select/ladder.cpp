#include "select/ladder.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
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

// Declares what a row names, so that a kernel needs no header. Only rows that name
// launch_<name>_complex or launch_<name>_mixed need to define it.
#define KERNEL(name, family, twin, ...)                                                       \
  Plan name##_plan(const Problem&, int64_t sms);                                              \
  namespace cuda {                                                                            \
  bool launch_##name(const Problem&, const Plan&, const Context&);                            \
  bool launch_##name##_complex(const Problem&, const Plan&, const ComplexB&, const Context&); \
  bool launch_##name##_mixed(const Problem&, const Plan&, const Narrow&, const Context&);     \
  }                                                                                           \
  namespace cpu {                                                                             \
  bool launch_##twin(const Problem&, const Plan&, const Context&);                            \
  }
#include "select/kernels.def"
#undef KERNEL

#ifdef TORCH_TILED_WITH_CUDA
#define TILED_CUDA(launch) cuda::launch
#else
#define TILED_CUDA(launch) nullptr
#endif
#define READS_COMPLEX_B(name) \
  {.plan = name##_complex_plan, .launch = TILED_CUDA(launch_##name##_complex)}
#define READS_MIXED(name) \
  {.in_place = name##_reads_mixed, .launch = TILED_CUDA(launch_##name##_mixed)}
#define READS_MIXED_BY_PLAN(name)               \
  {.in_place = name##_reads_mixed,              \
   .launch = TILED_CUDA(launch_##name##_mixed), \
   .plan = name##_mixed_plan}
#define READS_COMPLEX_OPERANDS(name) \
  {.plan = name##_complex_plan, .launch = TILED_CUDA(launch_##name##_complex), .reads_a = true}
#define READS_COMPLEX_B_AND_PACK(name) \
  {.plan = name##_complex_plan, .launch = TILED_CUDA(launch_##name##_complex), .needs_pack = true}

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

// Returns whether the rows of each family stand together, and have one order, dtypes and
// by_name_only.
constexpr bool families_agree() {
  for (const Kernel& kernel : kKernels) {
    bool ended = false;
    for (const Kernel* other = &kernel; other != std::end(kKernels); ++other) {
      if (other->family != kernel.family) {
        ended = true;
      } else if (ended || other->order != kernel.order || other->dtypes != kernel.dtypes ||
                 other->by_name_only != kernel.by_name_only) {
        return false;
      }
    }
  }
  return true;
}
static_assert(families_agree(), "the rows of a family stand together, in one order and dtypes");

// Returns whether each kernel has a name of its own, which is no other kernel's family either.
constexpr bool names_are_unique() {
  for (const Kernel& kernel : kKernels) {
    for (const Kernel& other : kKernels) {
      const bool taken = other.name == kernel.name || other.family == kernel.name;
      if (taken && &other != &kernel) return false;
    }
  }
  return true;
}
static_assert(names_are_unique(), "two rows have one name, or a kernel has a family's name");

// Returns whether each kernel takes the dtypes of its order alone.
constexpr bool orders_have_their_dtypes() {
  for (const Kernel& kernel : kKernels) {
    const bool is_16bit = kernel.order == Order::kMma;
    const bool is_float32 = kernel.order == Order::kFp16x3 || kernel.order == Order::kTf32;
    if (is_16bit && kernel.dtypes != Dtypes::k16Bit) return false;
    if (is_float32 && kernel.dtypes != Dtypes::kFloat32) return false;
  }
  return true;
}
static_assert(orders_have_their_dtypes(), "mma takes 16-bit floats; fp16x3 and tf32 take float32");

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

// The kernels of that name or family: a family stands together, and has one order and dtypes.
std::span<const Kernel> named(std::string_view algorithm) {
  const auto has_name = [&](const Kernel& kernel) {
    return kernel.name == algorithm || kernel.family == algorithm;
  };
  const auto first = std::ranges::find_if(kKernels, has_name);
  return {first, std::find_if_not(first, std::end(kKernels), has_name)};
}

void check_dtype_and_precision(const char* op, const Kernel& kernel, std::string_view algorithm,
                               Precision precision, DType dtype, bool complex,
                               const std::optional<Narrow>& narrow = {}) {
  const std::string name = "algorithm \"" + std::string(algorithm) + "\" ";
  if (!has_dtype(kernel.dtypes, dtype)) {
    const char* taken = kernel.dtypes == Dtypes::k16Bit     ? "float16 and bfloat16"
                        : kernel.dtypes == Dtypes::kFloat64 ? "float64 and complex128"
                                                            : "float32 and complex64";
    std::string given = name_of(dtype, complex);
    if (narrow) {
      const std::string other = name_of(narrow->dtype, false);
      given = narrow->is_a ? other + " and " + given : given + " and " + other;
    }
    fail(op, name + "takes " + taken + " operands, and these are " + given +
                 "; choose auto, naive or tiled, or " + family_for(dtype));
  }
  if (kernel.order == Order::kFp16x3 && precision == Precision::kIeee) {
    fail(op, name +
                 "does not sum by IEEE FMAs, as precision ieee asks; choose auto, naive, "
                 "tiled or simt, or precision fp32");
  }
  if (kernel.order == Order::kTf32 && precision != Precision::kTf32) {
    fail(op, name +
                 "rounds operands to 11 bits, which precision tf32 alone allows; choose auto, "
                 "or precision tf32");
  }
}

// Returns whether a kernel gives the bits of an order, and may do so in another kernel's place.
bool stands_in(const Kernel& kernel, Order order, const Problem& p, const Context& context) {
  return kernel.order == order && !kernel.by_name_only && kernel.runs_on(context, p.dtype) &&
         kernel.takes(p, context);
}

// Returns the kernels among which `algorithm` lets the cost models choose, in the table's order: at
// least one.
std::vector<const Kernel*> candidates(std::string_view algorithm, const Problem& p,
                                      const Context& context, bool complex) {
  std::vector<const Kernel*> found;
  found.reserve(std::size(kKernels));
  Order order;
  if (algorithm == "auto") {
    order = order_of(p, context);
  } else {
    const std::span<const Kernel> asked_for = named(algorithm);
    if (asked_for.empty()) check_algorithm_name(p.op, algorithm);
    const Kernel& first = asked_for.front();
    check_dtype_and_precision(p.op, first, algorithm, p.precision, p.dtype, complex);
    bool runs = false;
    for (const Kernel& kernel : asked_for) {
      if (!kernel.runs_on(context, p.dtype)) continue;
      runs = true;
      if (kernel.takes(p, context)) found.push_back(&kernel);
    }
    if (!runs) {
      fail(p.op, "algorithm \"" + std::string(algorithm) +
                     "\" needs a Hopper GPU (compute capability 9.0), and this one has " +
                     std::to_string(context.compute_capability / 10) + "." +
                     std::to_string(context.compute_capability % 10) +
                     (first.dtypes == Dtypes::k16Bit ? "; choose auto, naive, tiled or mma_sync"
                                                     : "; choose auto, naive, tiled or simt"));
    }
    order = first.order;
  }
  const bool falls_back = !traits(order).sums(p.k);
  if (falls_back) order = Order::kChunked;
  // If no kernel of that name takes the sizes or layouts, others of its order give the same bits.
  if (found.empty() || falls_back) {
    found.clear();
    for (const Kernel& kernel : kKernels) {
      if (stands_in(kernel, order, p, context)) found.push_back(&kernel);
    }
  }
  return found;
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

// Everything that choices() depends on. Of pointers that is their alignment.
struct Question {
  Problem problem;
  std::string algorithm;
  int sms, compute_capability;
  bool complex;

  Question(std::string_view name, const Problem& p, const Context& context, bool is_complex)
      : problem(p),
        algorithm(name),
        sms(context.sms),
        compute_capability(context.compute_capability),
        complex(is_complex) {
    problem.op = "";
    keep_alignment(problem.a.data);
    keep_alignment(problem.b.data);
    keep_alignment(problem.c.data);
    keep_alignment(problem.b_presplit.hi_lo);
    keep_alignment(problem.b_presplit.inverse_scales);
    keep_alignment(problem.epilogue.bias);
  }
  bool operator==(const Question&) const = default;

  size_t hash() const {
    const Problem& p = problem;
    size_t value = 0;
    for (const int64_t part : {p.m, p.n, p.k, p.batch.count, p.a.row_stride, p.b.row_stride}) {
      value = (value ^ static_cast<size_t>(part)) * 0x9E3779B97F4A7C15;
    }
    return value ^ value >> 32;
  }

 private:
  template <class T>
  static void keep_alignment(T*& pointer) {
    constexpr uintptr_t kAlignment = kCacheLineBytes;  // more than a plan asks for
    if (pointer == nullptr) return;
    const uintptr_t offset = reinterpret_cast<uintptr_t>(pointer) % kAlignment;
    pointer = reinterpret_cast<T*>(kAlignment + offset);
  }
};

// The answers to the last questions of a thread, about products on a GPU.
class KeptChoices {
 public:
  template <class Answer>
  const std::vector<Choice>& find(Question question, const Answer& answer) {
    Entry& entry = entries_[question.hash() % entries_.size()];
    if (!entry || entry->first != question) entry.emplace(std::move(question), answer());
    return entry->second;
  }

 private:
  using Entry = std::optional<std::pair<Question, std::vector<Choice>>>;
  std::vector<Entry> entries_ = std::vector<Entry>(64);
};

bool keeps_choices() {
  static const char* value = std::getenv("TORCH_TILED_KEEP_PLANS");
  return value == nullptr || std::string_view(value) != "0";
}

}  // namespace

bool Kernel::runs_on(const Context& context, DType dtype) const {
  return has_dtype(dtypes, dtype) &&
         (gpus == Gpus::kAny || context.on_host() || context.on_hopper());
}

bool Kernel::takes(const Problem& p, const Context& context) const {
  const bool flags = traits(order).is_guarded && !context.on_host();
  if (p.keeps_flagged && flags && !keeps_flagged) return false;
  return min_k <= p.k && p.k <= max_k && accepts(p);
}

std::span<const Kernel> kernels() { return kKernels; }

const OrderTraits& traits(Order order) {
  static constexpr OrderTraits kTraits[] = {
      {.name = "plain"},
      {.name = "chunked", .chunk = kChunk},
      {.name = "fp16x3", .chunk = kChunk, .min_k = fp16x3::kMinK, .is_guarded = true},
      {.name = "mma", .chunk = mma_order::kChunk, .first_total = 0},
      {.name = "tf32",
       .chunk = mma_order::kChunk,
       .min_k = tf32::kMinK,
       .max_k = tf32::kMaxK,
       .is_guarded = true,
       .first_total = 0},
  };
  return kTraits[static_cast<int>(order)];
}

bool has_dtype(Dtypes dtypes, DType dtype) {
  switch (dtypes) {
    case Dtypes::kAny: return true;
    case Dtypes::kFloat32: return dtype == DType::kFloat32;
    case Dtypes::kFloat64: return dtype == DType::kFloat64;
    case Dtypes::k16Bit: return is_16bit(dtype);
  }
  return false;
}

void check_algorithm_name(const char* op, std::string_view algorithm) {
  if (algorithm == "auto" || !named(algorithm).empty()) return;
  fail(op, "there is no algorithm \"" + std::string(algorithm) + "\"; choose auto, " +
               join(algorithms()));
}

void check_algorithm(const char* op, std::string_view algorithm, Precision precision, DType dtype,
                     bool complex, const std::optional<Narrow>& narrow) {
  check_algorithm_name(op, algorithm);
  if (algorithm == "auto") return;
  const Kernel& first = named(algorithm).front();
  check_dtype_and_precision(op, first, algorithm, precision, dtype, complex, narrow);
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
  const auto choose = [&] {
    return planned(candidates(algorithm, p, context, complex), p, context);
  };
  if (context.on_host() || !keeps_choices()) return choose();
  thread_local KeptChoices kept;
  return kept.find(Question(algorithm, p, context, complex), choose);
}

std::vector<Choice> mixed_choices(std::string_view algorithm, const Problem& p,
                                  const Narrow& narrow, const Context& context) {
  // Of the copy: its launch, 3 us, and bytes per cycle and SM.
  constexpr double kLaunch = 5000, kDram = 13;
  const int64_t elements = (narrow.is_a ? p.m : p.n) * p.k * p.batch.count;
  const auto bytes = static_cast<double>(elements) * (size_of(narrow.dtype) + sizeof(float));
  std::vector<Choice> all = choices(algorithm, p, context);
  for (Choice& choice : all) {
    const ReadsMixed& mixed = choice.kernel->mixed;
    if (!mixed.in_place(p, narrow)) {
      choice.plan.cycles += kLaunch + bytes / context.sms / kDram;
    } else if (mixed.plan != nullptr) {
      choice.plan = mixed.plan(p, narrow, context.sms);
    }
  }
  std::ranges::stable_sort(all, {}, [](const Choice& choice) { return choice.plan.cycles; });
  return all;
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
    if (!tried && stands_in(kernel, choices.front().kernel->order, p, context)) {
      others.push_back(&kernel);
    }
  }
  return std::ranges::any_of(planned(others, p, context), run);
}

}  // namespace tiled
