// mma_tma's tiles of 192 columns, for bf16.

#include "core/element.h"
#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

template bool run_mma_tma_tile<BFloat16, mma_tma_tile(128, 192, 1)>(const Problem&, int64_t,
                                                                    const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(128, 192, 2)>(const Problem&, int64_t,
                                                                    const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 192, 1)>(const Problem&, int64_t,
                                                                   const Context&);

}  // namespace tiled::cuda
