#include "select/complex.h"

#include <algorithm>
#include <optional>

#include "cpu/complex.h"
#include "kernels/f64/plan.h"
#include "kernels/simt/complex_b.h"

#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/complex/passes.h"
#include "kernels/f64/complex_mma.h"
#include "kernels/fp16x3/complex_b.h"
#endif

namespace tiled {

void run_pack(const Pack& pack, const Context& context) {
  if (context.on_host()) return cpu::run_pack(pack, context);
#ifdef TORCH_TILED_WITH_CUDA
  cuda::launch_pack(pack, context);
#endif
}

void run_combine(const Combine& combine, const Context& context) {
  if (context.on_host()) return cpu::run_combine(combine, context);
#ifdef TORCH_TILED_WITH_CUDA
  cuda::launch_combine(combine, context);
#endif
}

namespace {

// The cycles of a pass over B: a launch, and the bandwidth of DRAM for each SM.
double pack_cycles(const RealProblem& real, const Context& context) {
  constexpr double kLaunch = 3000, kDram = 13;
  const double bytes = 1.5 * static_cast<double>(real.b_bytes);  // B is read, B' is written
  return kLaunch + bytes / (kDram * context.sms);
}

// A kernel that reads B as it lies, and its plan for a problem whose `b` is that of in_place_b():
// that by B' with a share of its cycles, or another one, or nothing where it cannot read B so.
struct InPlace {
  std::string_view kernel;
  std::optional<Plan> (*plan)(const Plan& packed, const Problem&, const SignsOfB&, int64_t sms);
  bool (*launch)(const Problem&, const Plan&, const SignsOfB&, const Context&);
};
constexpr std::string_view kWgmma = "fp16x3_wgmma";

#ifdef TORCH_TILED_WITH_CUDA
#define LAUNCH_IN_PLACE(kernel) cuda::launch_##kernel##_complex
#else
#define LAUNCH_IN_PLACE(kernel) nullptr
#endif

const InPlace* find_in_place(std::string_view kernel) {
  using MaybePlan = std::optional<Plan>;
  static constexpr auto kAsPacked = [](const Plan& packed, const Problem&, const SignsOfB&,
                                       int64_t) -> MaybePlan { return packed; };
  static constexpr auto kShare = [](Plan packed, double share) -> MaybePlan {
    packed.cycles *= share;
    return packed;
  };
  static constexpr InPlace kKernels[] = {
      {"f64_mma",
       [](const Plan&, const Problem& p, const SignsOfB&, int64_t sms) {
         return MaybePlan(f64_mma_complex_plan(p, sms));
       },
       LAUNCH_IN_PLACE(f64_mma)},
      {"f64_direct",
       [](const Plan&, const Problem& p, const SignsOfB&, int64_t sms) {
         return MaybePlan(f64_direct_complex_plan(p, sms));
       },
       LAUNCH_IN_PLACE(f64_direct)},
      {"fp16x3_small", kAsPacked, LAUNCH_IN_PLACE(fp16x3_small)},
      {"fp16x3_direct",  // it splits a number once for both of its columns
       [](const Plan& packed, const Problem&, const SignsOfB&, int64_t) {
         return kShare(packed, 0.85);
       },
       LAUNCH_IN_PLACE(fp16x3_direct)},
      {"fp16x3_skinny",
       [](const Plan& packed, const Problem& p, const SignsOfB&, int64_t) {
         return p.m <= p.n ? kShare(packed, 0.9) : std::nullopt;
       },
       LAUNCH_IN_PLACE(fp16x3_skinny)},
      {kWgmma, kAsPacked, nullptr},  // it needs B' where it recomputes elements
      {"simt_skinny",
       [](const Plan&, const Problem& p, const SignsOfB&, int64_t sms) {
         return simt_skinny_complex_accepts(p) ? MaybePlan(simt_skinny_complex_plan(p, sms))
                                               : std::nullopt;
       },
       LAUNCH_IN_PLACE(simt_skinny)},
      {"simt_small",
       [](const Plan&, const Problem& p, const SignsOfB&, int64_t sms) -> MaybePlan {
         return simt_small_complex_plan(p, sms);
       },
       LAUNCH_IN_PLACE(simt_small)},
      {"simt_cp_async",
       [](const Plan&, const Problem& p, const SignsOfB& signs, int64_t sms) {
         return MaybePlan(simt_cp_async_complex_plan(p, signs, sms));
       },
       LAUNCH_IN_PLACE(simt_cp_async)},
  };
  const auto found = std::ranges::find(kKernels, kernel, &InPlace::kernel);
  return found == std::end(kKernels) ? nullptr : found;
}

#undef LAUNCH_IN_PLACE

// Adds the cycles of the pass over B to all choices. Then moves the fastest kernel that needs no
// pass to the front, with its plan, if it is as fast as the first one.
bool prefer_in_place(const ComplexProblem& z, const RealProblem& real, std::vector<Choice>& choices,
                     const Context& context) {
  if (context.on_host() || !real.pack_b) return false;
  Problem p = real.problem;
  p.b = in_place_b(z);
  const SignsOfB signs = signs_of_b(z);
  const double pass = pack_cycles(real, context);
  auto fastest = choices.end();
  std::optional<Plan> plan;
  for (auto choice = choices.begin(); choice != choices.end(); ++choice) {
    if (const InPlace* kernel = find_in_place(choice->kernel->name)) {
      const std::optional<Plan> in_place = kernel->plan(choice->plan, p, signs, context.sms);
      if (in_place && (!plan || in_place->cycles < plan->cycles)) fastest = choice, plan = in_place;
    }
    choice->plan.cycles += pass;
  }
  if (!plan || plan->cycles > choices.front().plan.cycles) return false;
  fastest->plan = *plan;
  std::rotate(choices.begin(), fastest, fastest + 1);
  return true;
}

// Launches the choice without a pass over B. `p` is the real problem.
bool launch_in_place(const Choice& choice, const ComplexProblem& z, const RealProblem& real,
                     Problem p, const Context& context) {
  const SignsOfB signs = signs_of_b(z);
  if (const auto launch = find_in_place(choice.kernel->name)->launch) {
    p.b = in_place_b(z);
    return launch(p, choice.plan, signs, context);
  }
#ifdef TORCH_TILED_WITH_CUDA
  const cuda::ComplexB b{.in_place = in_place_b(z), .signs = signs, .pack = *real.pack_b};
  p.b.data = b.pack.to;
  return cuda::launch_fp16x3_wgmma_complex(p, b, choice.plan, context);
#else
  static_cast<void>(real);
  return false;
#endif
}

}  // namespace

ComplexPlan plan_complex(std::string_view algorithm, const ComplexProblem& z,
                         const Context& context) {
  ComplexPlan plan{.real = as_real(z), .choices = {}, .reads_b_in_place = false};
  plan.choices = choices(algorithm, plan.real.problem, context, /*complex=*/true);
  plan.reads_b_in_place = prefer_in_place(z, plan.real, plan.choices, context);
  if (z.prepared_b == nullptr) return plan;
  // With few rows B itself, which is a quarter of B' and its split, is the better operand.
  ComplexProblem unprepared = z;
  unprepared.prepared_b = nullptr;
  unprepared.problem.b_presplit = {};
  ComplexPlan in_place = plan_complex(algorithm, unprepared, context);
  const Choice& first = in_place.choices.front();
  const bool needs_no_pass = in_place.reads_b_in_place && first.kernel->name != kWgmma;
  const bool is_faster = first.plan.cycles <= plan.choices.front().plan.cycles;
  return needs_no_pass && is_faster ? in_place : plan;
}

bool launch_complex(const ComplexPlan& plan, const ComplexProblem& z, const Context& context) {
  RealProblem real = plan.real;
  Problem& p = real.problem;
  // Memory for a pass; null only where there is none.
  const auto allocate = [&](int64_t bytes, auto& data) {
    data = bytes > 0 ? context.allocate(bytes) : nullptr;
    return bytes == 0 || data != nullptr;
  };
  const Choice& first = plan.choices.front();
  const bool packs_b = real.pack_b && !plan.reads_b_in_place;
  const bool may_pack_b = packs_b || (plan.reads_b_in_place && first.kernel->name == kWgmma);
  if (real.pack_a && !allocate(real.a_bytes, real.pack_a->to)) return false;
  if (may_pack_b && !allocate(real.b_bytes, real.pack_b->to)) return false;
  if (real.combine && !allocate(real.sum_bytes, p.c.data)) return false;
  if (real.pack_a) {
    run_pack(*real.pack_a, context);
    p.a.data = real.pack_a->to;
  }
  if (packs_b) {
    run_pack(*real.pack_b, context);
    p.b.data = real.pack_b->to;
  }
  const bool launched = plan.reads_b_in_place ? launch_in_place(first, z, real, p, context)
                                              : launch(plan.choices, p, context);
  if (!launched) return false;
  if (real.combine) {
    real.combine->problem.a.data = p.c.data;
    run_combine(*real.combine, context);
  }
  return true;
}

}  // namespace tiled
