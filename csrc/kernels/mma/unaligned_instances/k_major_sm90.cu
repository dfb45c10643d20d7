// mma_unaligned for a K-major A.

#include "kernels/mma/unaligned_launch.cuh"

namespace tiled::cuda::mma_unaligned {

template bool launch<Half, false, false>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<Half, false, true>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<BFloat16, false, false>(const EpilogueParams&, const Plan&, const Context&);
template bool launch<BFloat16, false, true>(const EpilogueParams&, const Plan&, const Context&);

}  // namespace tiled::cuda::mma_unaligned
