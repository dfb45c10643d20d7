// f64_mma with its largest tiles, which need Hopper's shared memory and setmaxnreg.

#include "kernels/f64/mma_kernel.cuh"

namespace tiled::cuda::f64_mma {

void launch_large_tile(const Problem& p, const Plan& plan, const Context& context) {
  run_tile<0, kF64MmaLargeTiles, false>(p, plan, {}, context);
}

}  // namespace tiled::cuda::f64_mma
