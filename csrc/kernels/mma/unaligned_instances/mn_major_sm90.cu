// mma_unaligned for an MN-major A.

#include "kernels/mma/unaligned_launch.cuh"

namespace tiled::cuda::mma_unaligned {

template bool launch<Half, true, false>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<Half, true, true>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<BFloat16, true, false>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<BFloat16, true, true>(const EpilogueParams&, const Plan&, const Context&);

}  // namespace tiled::cuda::mma_unaligned
