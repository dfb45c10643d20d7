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

// The kernels that may read B as it lies. fp16x3_skinny does so if B is the longer operand, and
// fp16x3_wgmma needs B' where it recomputes elements.
constexpr std::string_view kF64Mma = "f64_mma", kSmall = "fp16x3_small", kDirect = "fp16x3_direct",
                           kSkinny = "fp16x3_skinny", kWgmma = "fp16x3_wgmma";

bool may_read_in_place(std::string_view kernel, const Problem& p) {
  return kernel == kF64Mma || kernel == kSmall || kernel == kDirect || kernel == kWgmma ||
         (kernel == kSkinny && p.m <= p.n);
}

// Moves such a kernel to the front, if it takes fewer cycles so than others with a pass over B.
bool prefer_in_place(const RealProblem& real, std::vector<Choice>& choices,
                     const Context& context) {
  const Problem& p = real.problem;
  if (context.on_host() || !real.pack_b) return false;
  const auto in_place = std::ranges::find_if(
      choices, [&](const Choice& choice) { return may_read_in_place(choice.kernel->name, p); });
  if (in_place == choices.end()) return false;
  const double packed = choices.front().plan.cycles + pack_cycles(real, context);
  if (in_place->plan.cycles > packed) return false;
  std::rotate(choices.begin(), in_place, in_place + 1);
  return true;
}

// Launches the choice without a pass over B. `p` is the real problem.
bool launch_in_place(const Choice& choice, const ComplexProblem& z, const RealProblem& real,
                     Problem p, const Context& context) {
#ifdef TORCH_TILED_WITH_CUDA
  const SignsOfB signs = signs_of_b(z);
  if (choice.kernel->name == kWgmma) {
    const cuda::ComplexB b{.in_place = in_place_b(z), .signs = signs, .pack = *real.pack_b};
    p.b.data = b.pack.to;
    return cuda::launch_fp16x3_wgmma_complex(p, b, choice.plan, context);
  }
  p.b = in_place_b(z);
  if (choice.kernel->name == kSkinny) {
    return cuda::launch_fp16x3_skinny_complex(p, signs, context);
  }
  const auto launch = choice.kernel->name == kSmall    ? cuda::launch_fp16x3_small_complex
                      : choice.kernel->name == kDirect ? cuda::launch_fp16x3_direct_complex
                                                       : cuda::launch_f64_mma_complex;
  return launch(p, choice.plan, signs, context);
#else
  static_cast<void>(choice), static_cast<void>(z), static_cast<void>(real);
  static_cast<void>(p), static_cast<void>(context);
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
