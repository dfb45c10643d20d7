// The gradients of q and of the scores: the kernel of backward.cuh with queries as rows.

#include "kernels/attention/backward.cuh"

namespace tiled::cuda::attention {

void launch_backward_queries(const AttentionBackward& p, const BackwardOperands& operands,
                             const Context& context) {
  const auto launch = [&]<bool kHasMask, bool kPacked>() {
    operands.operand[0].parts.columns == 64
        ? launch_backward<BackwardTile<true, true, false, 1, kHasMask, kPacked>>(p, operands,
                                                                                 context)
        : launch_backward<BackwardTile<true, true, false, 2, kHasMask, kPacked>>(p, operands,
                                                                                 context);
  };
  if (p.is_packed()) {
    launch.operator()<false, true>();
  } else {
    p.mask_kind != MaskKind::kNone ? launch.operator()<true, false>()
                                   : launch.operator()<false, false>();
  }
}

}  // namespace tiled::cuda::attention
