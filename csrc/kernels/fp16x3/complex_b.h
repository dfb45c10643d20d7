#pragma once
// The kernels of fp16x3 that read a complex B as it lies (core/complex.h). Their problem is the
// real one, and they return false, with C untouched, where there is no memory for a workspace.

#include "core/complex.h"
#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled::cuda {

// Computes a product with few rows. The problem's `b` is that of in_place_b(), and is the longer
// operand. The plan of this kernel has no choice of tiles.
bool launch_fp16x3_skinny_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                                  const Context& context);

// Compute small products, and many products of short K. The problem's `b` is that of in_place_b().
bool launch_fp16x3_small_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                                 const Context& context);
bool launch_fp16x3_direct_complex(const Problem& p, const Plan& plan, const SignsOfB& signs,
                                  const Context& context);

struct ComplexB {
  Matrix in_place;  // in_place_b()
  SignsOfB signs;
  Pack pack;  // to the problem's `b`, which has memory
};

// Computes a product whose B is split as it lies. Flagged elements are recomputed by B', which the
// pass then writes.
bool launch_fp16x3_wgmma_complex(const Problem& p, const ComplexB& b, const Plan& plan,
                                 const Context& context);

}  // namespace tiled::cuda
