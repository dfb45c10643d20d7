#pragma once
// The simt kernels that read a complex B in place: the plans and the launches of rows of
// select/kernels.def (ReadsComplexB in select/ladder.h).

#include <cstdint>
#include <optional>

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

inline std::optional<Plan> simt_small_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                   int64_t sms) {
  return simt_small_plan_of(with_parts_of_b(p), sms, kShareOfB);
}

// Returns whether B' has other signs than -y in b = x + iy.
inline bool is_signed(const SignsOfB& signs) { return signs.x_even || signs.y_even || signs.x_odd; }
inline std::optional<Plan> simt_cp_async_complex_plan(const Plan&, const Problem& p,
                                                      const SignsOfB& signs, int64_t sms) {
  Plan plan = simt_cp_async_plan_of(with_parts_of_b(p), sms, kShareOfB);
  if (is_signed(signs)) plan.cycles *= h200::Simt::kComplexBSigned;
  if (plan.tile == 0) plan.cycles *= h200::Simt::kComplexBLargeTile;
  return plan;
}

// B has to be the long operand, and a tensor map has to describe the parts of its numbers.
inline std::optional<Plan> simt_skinny_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                    int64_t sms) {
  if (p.m > p.n || !is_tma_aligned(p.batch, with_parts_of_b(p).b)) return std::nullopt;
  return simt_skinny_plan_of(h200::kSimtSkinnyComplexTiles, p, sms, kShareOfB);
}

namespace cuda {

bool launch_simt_small_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                               const Context& context);
bool launch_simt_cp_async_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context);
bool launch_simt_skinny_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                const Context& context);

}  // namespace cuda
}  // namespace tiled
