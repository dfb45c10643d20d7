#include "select/complex.h"

#include <algorithm>
#include <optional>

#include "cpu/complex.h"
#include "kernels/complex/plan.h"

#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/complex/passes.h"
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

// Adds the cycles of the passes over A and B to all choices. Then moves the fastest kernel that
// reads B in place to the front, with its plan, if it is as fast as the first one. A prepared B has
// no pass, and is not read in place.
void prefer_in_place(const ComplexProblem& z, const Context& context, ComplexPlan& complex_plan) {
  if (context.on_host()) return;
  const RealProblem& real = complex_plan.real;
  std::vector<Choice>& choices = complex_plan.choices;
  const SignsOfB signs = signs_of_b(z);
  const double pass_a = real.pack_a ? pack_cycles(real.a_bytes, context.sms) : 0;
  const double pass_b = real.pack_b ? pack_cycles(real.b_bytes, context.sms) : 0;
  auto fastest = choices.end();
  std::optional<Plan> plan;
  bool reads_a = false;
  for (auto choice = choices.begin(); choice != choices.end(); ++choice) {
    const ReadsComplexB& reads = choice->kernel->complex_b;
    if (real.pack_b && reads.plan != nullptr) {
      Problem p = real.problem;
      p.b = in_place_b(z);
      const auto plan_of = [&] { return reads.plan(choice->plan, p, signs, context.sms); };
      std::optional<Plan> own;
      if (real.pack_a && reads.reads_a) {
        p.a = in_place_a(z);
        own = plan_of();
      }
      const bool with_a = own.has_value();
      if (!with_a) {
        p.a = real.problem.a;
        own = plan_of();
        if (own) own->cycles += pass_a;
      }
      if (own && (!plan || own->cycles < plan->cycles)) {
        fastest = choice, plan = own, reads_a = with_a;
      }
    }
    choice->plan.cycles += pass_a + pass_b;
  }
  if (!plan || plan->cycles > choices.front().plan.cycles) return;
  fastest->plan = *plan;
  std::rotate(choices.begin(), fastest, fastest + 1);
  complex_plan.reads_b_in_place = true, complex_plan.reads_a_in_place = reads_a;
}

// Launches the choice without a pass over B.
bool launch_in_place(const Choice& choice, const ComplexProblem& z, const RealProblem& real,
                     Problem p, const Context& context) {
  ComplexB b{
      .in_place = in_place_b(z), .signs = signs_of_b(z), .packed = p.b, .pack = *real.pack_b};
  b.packed.data = b.pack.to;
  p.b = b.in_place;
  return choice.kernel->complex_b.launch(p, choice.plan, b, context);
}

}  // namespace

ComplexPlan plan_complex(std::string_view algorithm, const ComplexProblem& z,
                         const Context& context) {
  ComplexPlan plan{.real = as_real(z), .choices = {}};
  plan.choices = choices(algorithm, plan.real.problem, context, /*complex=*/true);
  prefer_in_place(z, context, plan);
  if (z.prepared_b == nullptr) return plan;
  // With few rows B itself, which is a quarter of B' and its split, is the better operand.
  ComplexProblem unprepared = z;
  unprepared.prepared_b = nullptr;
  unprepared.problem.b_presplit = {};
  ComplexPlan in_place = plan_complex(algorithm, unprepared, context);
  const Choice& first = in_place.choices.front();
  const bool needs_no_pass = in_place.reads_b_in_place && !first.kernel->complex_b.needs_pack;
  const bool is_faster = first.plan.cycles <= plan.choices.front().plan.cycles;
  return needs_no_pass && is_faster ? in_place : plan;
}

bool launch_complex(const ComplexPlan& plan, const ComplexProblem& z, const Context& context) {
  RealProblem real = plan.real;
  Problem& p = real.problem;
  // Memory for a pass; null only if there is none.
  const auto allocate = [&](int64_t bytes, auto& data) {
    data = bytes > 0 ? context.allocate(bytes) : nullptr;
    return bytes == 0 || data != nullptr;
  };
  const Choice& first = plan.choices.front();
  const bool packs_b = real.pack_b && !plan.reads_b_in_place;
  const bool may_pack_b = plan.reads_b_in_place ? first.kernel->complex_b.needs_pack : packs_b;
  const bool packs_a = real.pack_a && !plan.reads_a_in_place;
  if (packs_a && !allocate(real.a_bytes, real.pack_a->to)) return false;
  if (may_pack_b && !allocate(real.b_bytes, real.pack_b->to)) return false;
  if (real.combine && !allocate(real.sum_bytes, p.c.data)) return false;
  if (packs_a) {
    run_pack(*real.pack_a, context);
    p.a.data = real.pack_a->to;
  } else if (real.pack_a) {
    p.a = in_place_a(z);
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
