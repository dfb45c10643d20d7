// f64_mma of a complex B, which it reads in place: its numbers are the elements of a stage, and a
// lane takes from each the part that its column and its k have of B' (core/complex.h).

#include "kernels/f64/complex_mma.h"
#include "kernels/f64/instance.h"
#include "kernels/f64/mma_kernel.cuh"

namespace tiled::cuda {

bool launch_f64_mma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                            const Context& context) {
  using namespace f64_mma;
  if (count_tiles(p, 1, 1) == 0) return true;
  if (plan.tile < kLargeTiles && context.on_hopper()) {
    launch_large_complex_tile(p, plan, b.signs, context);
  } else {
    run_tile<kLargeTiles, kTiles - kLargeTiles, true>(p, plan, b.signs, context);
  }
  return true;
}

}  // namespace tiled::cuda
