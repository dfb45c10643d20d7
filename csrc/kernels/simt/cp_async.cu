// simt_cp_async: some warps load by cp.async, the others multiply.
//
// Idea:  Producer warps fill a ring of stages in shared memory by cp.async, several steps early, so
//        that consumer warps neither wait for memory nor spend issue slots on loads. Operands are
//        read in place: by 128-bit vectors if they are contiguous along M or N, or else by single
//        elements, which also transposes K-major ones (common/cp_async_loader.cuh). A thread has up
//        to 8 x 8 elements of C in registers, and loads the fragments for the next k while it
//        multiplies the ones of this k (register_tile.cuh). Tiles of several sizes, and split-K at
//        chunk boundaries, let small problems fill all SMs; the chunks' sums then go to a
//        workspace, and another kernel adds them in order (split_k_reduce.cuh). cp_async_kernel.cuh
//        has the kernel and draws its barriers. The numbers of a complex B, which is read in place,
//        are the elements of a stage, and a thread takes from each the two columns and the two k
//        that B' has of it (core/complex.h).
// Limit: cp.async of single elements takes an instruction for each; and a register tile of 8 x 8
//        reads 16 numbers from shared memory for 64 FMAs.
// Next:  tma_sm90.cu: one instruction of one thread loads a whole tile, and a thread has 8 x 16
//        elements.

#include "kernels/simt/cp_async_kernel.cuh"
#include "kernels/simt/plan.h"

namespace tiled::cuda {

bool launch_simt_cp_async(const Problem& p, const Plan& plan, const Context& context) {
  return simt_cp_async::run_tile<false, false>(p, plan, {}, context);
}

bool launch_simt_cp_async_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context) {
  using namespace simt_cp_async;
  return is_signed(b.signs) ? run_tile<true, true>(p, plan, b.signs, context)
                            : run_tile<true, false>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
