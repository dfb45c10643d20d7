#pragma once
// The kernels of fp16x3 that read a complex B in place: the plans and the launches of rows of
// select/kernels.def (ReadsComplexB in select/ladder.h).

#include <cstdint>
#include <optional>

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/fp16x3/costs_h200.h"

namespace tiled {

inline std::optional<Plan> fp16x3_small_complex_plan(const Plan& packed, const Problem&,
                                                     const SignsOfB&, int64_t) {
  return packed;
}
// It splits a number once for both of its columns.
inline std::optional<Plan> fp16x3_direct_complex_plan(const Plan& packed, const Problem&,
                                                      const SignsOfB&, int64_t) {
  Plan plan = packed;
  plan.cycles *= h200::Fp16x3::kDirectComplexB;
  return plan;
}
// B has to be the long operand. The plan of this kernel has no choice of tiles.
inline std::optional<Plan> fp16x3_skinny_complex_plan(const Plan& packed, const Problem& p,
                                                      const SignsOfB&, int64_t) {
  if (p.m > p.n) return std::nullopt;
  Plan plan = packed;
  plan.cycles *= h200::Fp16x3::kSkinnyComplexB;
  return plan;
}
// B is split in place. Flagged elements are recomputed by B', which a pass then writes.
inline std::optional<Plan> fp16x3_wgmma_complex_plan(const Plan& packed, const Problem&,
                                                     const SignsOfB&, int64_t) {
  return packed;
}

namespace cuda {

bool launch_fp16x3_small_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                 const Context& context);
bool launch_fp16x3_direct_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context);
bool launch_fp16x3_skinny_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context);
bool launch_fp16x3_wgmma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                 const Context& context);

}  // namespace cuda
}  // namespace tiled
