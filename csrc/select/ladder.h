#pragma once
// The table of kernels, and the choice among them.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/context.h"
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

// Returns whether the order scales rows and columns, and recomputes elements that lose too much
// precision by it.
inline bool is_guarded(Order order) { return order == Order::kFp16x3 || order == Order::kTf32; }

enum class Dtypes { kAny, kFloat32, kFloat64, k16Bit };
enum class Gpus { kAny, kHopper };

// Computes C by the plan. Returns false, with C untouched, where there is no memory for a
// workspace.
using Launch = bool (*)(const Problem&, const Plan&, const Context&);

inline bool accepts_all(const Problem&) { return true; }

struct Kernel {
  std::string_view name, family;  // a family's name stands for the fastest of its kernels
  Plan (*plan)(const Problem&, int64_t sms);
  Launch cuda;  // null in a build without CUDA
  Launch cpu;
  Order order;
  Dtypes dtypes = Dtypes::kAny;
  Gpus gpus = Gpus::kAny;  // the host runs every kernel's twin
  int64_t min_k = 0, max_k = std::numeric_limits<int64_t>::max();
  bool (*accepts)(const Problem&) = accepts_all;  // sizes and layouts

  bool runs_on(const Context& context, DType dtype) const;
  bool takes(const Problem& p) const { return min_k <= p.k && p.k <= max_k && accepts(p); }
};

struct Choice {
  const Kernel* kernel;
  Plan plan;
};

// The names that `algorithm` may be, slowest first, without "auto".
std::vector<std::string> algorithms();

// The kernels that may solve the problem, fastest first by their cost models: the one of that name,
// or those of that family, or, for "auto", all of the order that precision, dtype, K and the device
// determine. Returns at least one; throws a sentence where there is none. `complex`: the problem is
// that of a complex one, which the sentence names.
std::vector<Choice> choices(std::string_view algorithm, const Problem& p, const Context& context,
                            bool complex = false);

// Solves the problem by the first choice that finds memory for its workspace, or else by any other
// kernel of the same order, which gives the same bits. Returns false, with C untouched, where none
// does.
bool launch(const std::vector<Choice>& choices, const Problem& p, const Context& context);

// The choice and its reasons, as pairs of a heading and a text.
std::vector<std::pair<std::string, std::string>> explain(const std::vector<Choice>& choices,
                                                         const Problem& p, const Context& context);

}  // namespace tiled
