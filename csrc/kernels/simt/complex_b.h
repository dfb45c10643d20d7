#pragma once
// The simt kernels that read a complex B as it lies (core/complex.h): their plans and launches. The
// problem is the real one, whose `b` is that of in_place_b().

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/simt/plan.h"

namespace tiled {

// The problem with the parts of B's numbers as its B.
inline Problem with_parts_of_b(Problem p) {
  p.b = parts_of_b(p.b);
  return p;
}

inline Plan simt_small_complex_plan(const Problem& p, int64_t sms) {
  return simt_small_plan_of(with_parts_of_b(p), sms, kShareOfB);
}

// Returns whether B' has other signs than those of -y in b = x + iy.
inline bool is_signed(const SignsOfB& signs) { return signs.x_even || signs.y_even || signs.x_odd; }
inline Plan simt_cp_async_complex_plan(const Problem& p, const SignsOfB& signs, int64_t sms) {
  constexpr double kSigned = 1.05;  // for the instructions that set signs
  constexpr double kLarge = 1.15;   // of the largest tile, as measured
  Plan plan = simt_cp_async_plan_of(with_parts_of_b(p), sms, kShareOfB);
  if (is_signed(signs)) plan.cycles *= kSigned;
  if (plan.tile == 0) plan.cycles *= kLarge;
  return plan;
}

// B has to be the long operand, and a tensor map has to describe the parts of its numbers.
inline bool simt_skinny_complex_accepts(const Problem& p) {
  return p.m <= p.n && is_tma_aligned(p.batch, with_parts_of_b(p).b);
}
inline Plan simt_skinny_complex_plan(const Problem& p, int64_t sms) {
  return simt_skinny_plan_of(h200::kSimtSkinnyComplexTiles, p, sms, kShareOfB);
}

namespace cuda {

// Launch those plans. They return false, with C untouched, where there is no memory for a
// workspace.
bool launch_simt_small_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                               const Context& context);
bool launch_simt_cp_async_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                                  const Context& context);
bool launch_simt_skinny_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                                const Context& context);

}  // namespace cuda
}  // namespace tiled
