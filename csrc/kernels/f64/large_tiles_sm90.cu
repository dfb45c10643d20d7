// f64_mma with its largest tiles, which need Hopper's shared memory and setmaxnreg.

#include "kernels/common/dispatch.h"
#include "kernels/f64/instance.h"
#include "kernels/f64/launch.cuh"

namespace tiled::cuda::f64_mma {

void launch_large_tile(const Problem& p, const Plan& plan, const Context& context) {
  with_tile<kLargeTiles>(plan.tile, [&]<int kIndex>() {
    run<Tile<kIndex>>(p, plan, context);
    return true;
  });
}

}  // namespace tiled::cuda::f64_mma
