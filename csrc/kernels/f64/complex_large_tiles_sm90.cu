// f64_mma of a complex B with the largest tiles.

#include "kernels/f64/instance.h"
#include "kernels/f64/mma_kernel.cuh"

namespace tiled::cuda::f64_mma {

void launch_large_complex_tile(const Problem& p, const Plan& plan, const SignsOfB& signs,
                               const Context& context) {
  run_tile<0, kLargeTiles, true>(p, plan, signs, context);
}

}  // namespace tiled::cuda::f64_mma
