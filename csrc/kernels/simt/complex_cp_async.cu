// simt_cp_async of a complex B, which it reads in place: its numbers are the elements of a stage,
// and a thread takes from each the two columns and the two k that B' has of it (core/complex.h).

#include "kernels/simt/complex_b.h"
#include "kernels/simt/cp_async_kernel.cuh"

namespace tiled::cuda {

bool launch_simt_cp_async_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context) {
  using namespace simt_cp_async;
  return is_signed(b.signs) ? run_tile<true, true>(p, plan, b.signs, context)
                            : run_tile<true, false>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
