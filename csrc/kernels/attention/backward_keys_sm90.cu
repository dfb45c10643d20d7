// The gradients of k and v: the kernel of backward.cuh with keys as rows. With up to 64 columns one
// launch computes both. More have no registers for two gradients, so each has a launch of its own.

#include "kernels/attention/backward.cuh"

namespace tiled::cuda::attention {

void launch_backward_keys(const AttentionBackward& p, const BackwardOperands& operands,
                          const Context& context) {
  const auto launch = [&]<bool kHasMask, bool kPacked>() {
    if (operands.operand[0].parts.columns == 64) {
      launch_backward<BackwardTile<false, true, true, 1, kHasMask, kPacked>>(p, operands, context);
      return;
    }
    if (p.dk.data != nullptr) {
      launch_backward<BackwardTile<false, true, false, 2, kHasMask, kPacked>>(p, operands, context);
    }
    if (p.dv.data != nullptr) {
      launch_backward<BackwardTile<false, false, true, 2, kHasMask, kPacked>>(p, operands, context);
    }
  };
  if (p.is_packed()) {
    launch.operator()<false, true>();
  } else {
    p.mask_kind != MaskKind::kNone ? launch.operator()<true, false>()
                                   : launch.operator()<false, false>();
  }
}

}  // namespace tiled::cuda::attention
