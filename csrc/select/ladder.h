#pragma once
// The table of kernels, and the choice among them.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/complex.h"
#include "core/context.h"
#include "core/mixed.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled {

// The order in which an element is summed: its bits depend on nothing else.
enum class Order {
  kPlain,    // ascending in K
  kChunked,  // core/order_chunked.h
  kFp16x3,   // core/order_fp16x3.h
  kMma,      // core/order_mma.h
  kTf32,     // core/order_tf32.h
};

inline constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

struct OrderTraits {
  std::string_view name;
  int64_t chunk = 0;                      // of K: sums may be cut at its multiples; 0 if nowhere
  int64_t min_k = 0, max_k = kAnyLength;  // other sums are in the chunked order
  // Rows and columns are scaled, and elements that lose too much precision by it are flagged and
  // recomputed in the chunked order.
  bool is_guarded = false;
  double first_total = -0.0;  // to which the first chunk is added

  bool sums(int64_t k) const { return min_k <= k && k <= max_k; }
};
const OrderTraits& traits(Order order);

enum class Dtypes { kAny, kFloat32, kFloat64, k16Bit };
bool has_dtype(Dtypes dtypes, DType dtype);
enum class Gpus { kAny, kHopper };

// Computes C by the plan. Returns false, with C untouched, if there is no memory for a workspace.
using Launch = bool (*)(const Problem&, const Plan&, const Context&);

// How a kernel reads a complex B in place (core/complex.h). The problem is the real one, and its
// `b` is that of in_place_b().
struct ReadsComplexB {
  // Returns the plan, or nothing if the kernel cannot read this B in place. `packed` is its plan
  // for B'.
  std::optional<Plan> (*plan)(const Plan& packed, const Problem&, const SignsOfB&,
                              int64_t sms) = nullptr;
  bool (*launch)(const Problem&, const Plan&, const ComplexB&, const Context&) = nullptr;
  bool needs_pack = false;  // memory for B', which the kernel may come to need
  // The kernel can read A's numbers in place, too, as in_place_a() describes them: if `plan`
  // returns one for such an A.
  bool reads_a = false;
};

inline WorkspaceBytes no_workspace(const Problem&, const Plan&, int64_t) { return {}; }
inline bool accepts_all(const Problem&) { return true; }

// How a kernel reads the 16-bit operand of a mixed product in place, on the GPU (core/mixed.h).
struct ReadsMixed {
  bool (*in_place)(const Problem&, const Narrow&) = [](const Problem&, const Narrow&) {
    return false;
  };
  // Returns false, with C untouched, if there is no memory for its workspace.
  bool (*launch)(const Problem&, const Plan&, const Narrow&, const Context&) = nullptr;
  Plan (*plan)(const Problem&, const Narrow&, int64_t sms) = nullptr;  // by default, float32's
};

struct Kernel {
  std::string_view name, family;  // a family's name stands for the fastest of its kernels
  Plan (*plan)(const Problem&, int64_t sms);
  Launch cuda;  // null in a build without CUDA
  Launch cpu;
  Order order;
  bool by_name_only = false;  // runs if its name or its family's is given, never in another's place
  Dtypes dtypes = Dtypes::kAny;
  Gpus gpus = Gpus::kAny;  // the host runs every kernel's twin
  int64_t min_k = 0, max_k = kAnyLength;
  bool (*accepts)(const Problem&) = accepts_all;  // sizes and layouts
  bool keeps_flagged = false;                     // on the GPU, as Problem::keeps_flagged asks
  bool reads_presplit_b = false;                  // of torch_tiled.prepare, if there is one
  // What a launch of the plan allocates. With less memory it may still solve the problem.
  WorkspaceBytes (*workspace)(const Problem&, const Plan&, int64_t sms) = no_workspace;
  ReadsComplexB complex_b = {};  // by default, a pass writes B'
  ReadsMixed mixed = {};         // by default, a pass upcasts the 16-bit operand

  bool runs_on(const Context& context, DType dtype) const;
  bool takes(const Problem& p, const Context& context) const;
};
std::span<const Kernel> kernels();

struct Choice {
  const Kernel* kernel;
  Plan plan;
};

// The names that `algorithm` may be, without "auto": kernels in the table's order, and each family
// behind its kernels.
std::vector<std::string> algorithms();

// The kernels that may solve the problem, fastest first by their cost models: the one of that name,
// or all of that family, or, for "auto", all of the order that precision, dtype, K and the device
// determine and that are not by_name_only. Returns at least one; throws a sentence if there is
// none. `complex`: the problem is that of a complex one, which the sentence names.
std::vector<Choice> choices(std::string_view algorithm, const Problem& p, const Context& context,
                            bool complex = false);

// choices() of a mixed product on a GPU: cycles count a copy to float32 of the 16-bit operand for
// each kernel that cannot read it in place. `p` is the float32 problem, with that operand's
// strides.
std::vector<Choice> mixed_choices(std::string_view algorithm, const Problem& p,
                                  const Narrow& narrow, const Context& context);

// Throws the sentence of choices() that follows from the arguments alone, for any device. Mixed
// operands are float32 and `narrow`, and the sentence names both.
void check_algorithm(const char* op, std::string_view algorithm, Precision precision, DType dtype,
                     bool complex, const std::optional<Narrow>& narrow = {});
// Throws a sentence if there is no such algorithm.
void check_algorithm_name(const char* op, std::string_view algorithm);

// Solves the problem by the first choice that finds memory for its workspace, or else by any other
// kernel of the same order that is not by_name_only, which gives the same bits. Returns false, with
// C untouched, if none does.
bool launch(const std::vector<Choice>& choices, const Problem& p, const Context& context);

}  // namespace tiled
