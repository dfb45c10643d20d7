// f64_mma: float64 products by tensor cores, whatever their strides.
//
// Idea:  A float64 product of a tensor core adds its terms to C one after another, ascending in k,
//        each as by fma(). That is the chunked order to the bit (core/order_chunked.h), at twice
//        the rate of the CUDA cores. Producer warps copy operands by cp.async, MN-major, and
//        transpose K-major ones by copying single elements, since 8 bytes are enough; so there is
//        one kernel for all layouts and alignments. A consumer warp reads the fragments of a
//        product while it multiplies the one before. Registers hold the sums of a chunk
//        of K; the totals of finished chunks are in shared memory. Or blocks share K's chunks, and
//        split_k_reduce.cuh adds their sums in order. Blocks are persistent, so that producers load
//        the next tile while consumers store the last one.
// Limit: the tensor cores for large tiles; DRAM for few rows or columns.
//
//   producer warps                     consumer warps
//   ------------------------------------------------------------------------------------
//   wait empty[s]  <-----------------  the last fragments of stage s are read
//   cp.async A and B of stage s -----> wait full[s], mma.sync
//   next stage                         end of a chunk: add to the totals
//                                      end of a tile: epilogue
//
// A complex B is read in place: its numbers are the elements of a stage, and a lane takes from each
// the part that its column and its k have of B' (core/complex.h).

#include "kernels/f64/mma_kernel.cuh"
#include "kernels/f64/plan.h"

namespace tiled::cuda {
namespace f64_mma {
namespace {

// The large tiles need more shared memory than GPUs before Hopper have.
template <bool kComplex>
bool launch(const Problem& p, const Plan& plan, const SignsOfB& signs, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  if (!kComplex && plan.tile < kF64MmaLargeTiles && context.on_hopper()) {
    launch_large_tile(p, plan, context);
  } else {
    run_tile<kF64MmaLargeTiles, kTiles - kF64MmaLargeTiles, kComplex>(p, plan, signs, context);
  }
  return true;
}

}  // namespace
}  // namespace f64_mma

bool launch_f64_mma(const Problem& p, const Plan& plan, const Context& context) {
  return f64_mma::launch<false>(p, plan, {}, context);
}

bool launch_f64_mma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                            const Context& context) {
  return f64_mma::launch<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
