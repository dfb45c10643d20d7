// f64_mma with its largest tiles, which need Hopper's shared memory and setmaxnreg.

#include "kernels/f64/mma_kernel.cuh"

namespace tiled::cuda::f64_mma {

template <bool kComplex>
void launch_large_tile(const Problem& p, const Plan& plan, const SignsOfB& signs,
                       const Context& context) {
  run_tile<0, kLargeTiles, kComplex>(p, plan, signs, context);
}
template void launch_large_tile<false>(const Problem&, const Plan&, const SignsOfB&,
                                       const Context&);
template void launch_large_tile<true>(const Problem&, const Plan&, const SignsOfB&, const Context&);

}  // namespace tiled::cuda::f64_mma
