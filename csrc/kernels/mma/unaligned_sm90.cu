// mma_unaligned: threads copy the longer operand as it is stored; wgmma reads it from registers.
//
// Idea:  TMA cannot read rows that are not 16-byte aligned. If the other operand is short, copying
//        such an operand first takes longer than the product. But wgmma takes A from registers,
//        too. So producer threads copy A by cp.async in aligned pieces of 16 bytes, and consumers
//        read their fragments of A from there, shifted by an element if necessary. TMA loads B,
//        from an aligned copy if B is unaligned, too; if tiles are wide, pairs of blocks share it.
//        If B is the longer operand, the kernel computes C transposed (swap_ab).
// Limit: an MN-major A takes two requests to L2 for each stored row of a step. A step with a
//        K-major A takes longer than each of its parts would by itself. A is loaded once for each
//        column of tiles, so mma_tma, which copies A first, is faster for large products.
// Next:  reading an unaligned B without a copy, for which this kernel waits.
//
//   two producer warpgroups, alternating     consumer warpgroups
//   ------------------------------------     -----------------------------------------------
//   wait empty[s] <----------------------------------------------------------------+
//   cp.async A of stage s, tma_load B        issue the four wgmma of a step        |
//     -> full[s] --------------------------> wait full[] of the next step's stage, |
//   go on with stage s + 2                     read its A into registers           |
//                                            wait until those wgmma have ended ----+
//
//   A step with a K-major A begins in one stage and ends in the next: consumers wait for the second
//   one and free the first.
//
// unaligned_kernel.cuh has the kernel, unaligned_launch.cuh its epilogue and launch.
// docs/notes/mma.md has what was tried.

#include <optional>

#include "core/context.h"
#include "core/plan.h"
#include "core/problem.h"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/plan.h"
#include "kernels/mma/unaligned_launch.h"

namespace tiled::cuda {

bool launch_mma_unaligned(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  mma_unaligned::EpilogueParams params{};
  params.swap_ab = mma_unaligned_swaps_ab(p);
  params.bias_relu_at_most = p.epilogue.is_bias_relu_at_most();
  const Problem own = params.swap_ab ? swap_ab(p) : p;
  constexpr bool kOnlyB = true;
  const std::optional<Problem> aligned = align_operands(own, context, kOnlyB);
  if (!aligned) return false;
  params.p = *aligned;
  params.a_is_ready = aligned->b.data != own.b.data;
  bool launched = false;
  with_mma_kind(*aligned, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    launched = mma_unaligned::launch<T, kAMnMajor, kBMnMajor>(params, plan, context);
  });
  return launched;
}

}  // namespace tiled::cuda
