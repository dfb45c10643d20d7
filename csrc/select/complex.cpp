#include "select/complex.h"

#include <algorithm>

#include "cpu/complex.h"

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

// A kernel that reads B as it lies. A null launch is that of fp16x3_wgmma, which needs B' where it
// recomputes elements.
struct InPlace {
  std::string_view kernel;
  bool (*launch)(const Problem&, const Plan&, const SignsOfB&, const Context&);
  bool if_b_is_longer = false;
};
constexpr std::string_view kSkinny = "fp16x3_skinny", kWgmma = "fp16x3_wgmma";

const InPlace* in_place(std::string_view kernel, const Problem& p) {
#ifdef TORCH_TILED_WITH_CUDA
  static constexpr InPlace kKernels[] = {
      {"f64_mma", cuda::launch_f64_mma_complex},
      {"f64_direct", cuda::launch_f64_direct_complex},
      {"fp16x3_small", cuda::launch_fp16x3_small_complex},
      {"fp16x3_direct", cuda::launch_fp16x3_direct_complex},
      {kSkinny, cuda::launch_fp16x3_skinny_complex, /*if_b_is_longer=*/true},
      {kWgmma, nullptr},
  };
  for (const InPlace& each : kKernels) {
    if (each.kernel == kernel && (!each.if_b_is_longer || p.m <= p.n)) return &each;
  }
#else
  static_cast<void>(kernel), static_cast<void>(p);
#endif
  return nullptr;
}

// Moves such a kernel to the front, if it takes fewer cycles so than others with a pass over B.
bool prefer_in_place(const RealProblem& real, std::vector<Choice>& choices,
                     const Context& context) {
  const Problem& p = real.problem;
  if (context.on_host() || !real.pack_b) return false;
  const auto found = std::ranges::find_if(
      choices, [&](const Choice& choice) { return in_place(choice.kernel->name, p) != nullptr; });
  if (found == choices.end()) return false;
  const double packed = choices.front().plan.cycles + pack_cycles(real, context);
  if (found->plan.cycles > packed) return false;
  std::rotate(choices.begin(), found, found + 1);
  return true;
}

// Launches the choice without a pass over B. `p` is the real problem.
bool launch_in_place(const Choice& choice, const ComplexProblem& z, const RealProblem& real,
                     Problem p, const Context& context) {
  const SignsOfB signs = signs_of_b(z);
  if (const auto launch = in_place(choice.kernel->name, p)->launch) {
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
  plan.reads_b_in_place = prefer_in_place(plan.real, plan.choices, context);
  if (z.prepared_b == nullptr) return plan;
  // With few rows B itself, which is a quarter of B' and its split, is the better operand.
  constexpr double kCyclesInPlace = 0.8;  // of fp16x3_skinny by B'
  ComplexProblem unprepared = z;
  unprepared.prepared_b = nullptr;
  unprepared.problem.b_presplit = {};
  ComplexPlan in_place = plan_complex(algorithm, unprepared, context);
  const Choice& first = in_place.choices.front();
  const bool is_skinny = in_place.reads_b_in_place && first.kernel->name == kSkinny;
  const bool is_faster = kCyclesInPlace * first.plan.cycles <= plan.choices.front().plan.cycles;
  return is_skinny && is_faster ? in_place : plan;
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
