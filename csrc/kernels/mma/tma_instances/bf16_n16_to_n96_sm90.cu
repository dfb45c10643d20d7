// mma_tma's tiles of 16 to 96 columns, for bf16.

#include "core/element.h"
#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 96, 1)>(const Problem&, int64_t,
                                                                  const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 96, 2)>(const Problem&, int64_t,
                                                                  const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 64, 1)>(const Problem&, int64_t,
                                                                  const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 64, 2)>(const Problem&, int64_t,
                                                                  const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 32, 1)>(const Problem&, int64_t,
                                                                  const Context&);
template bool run_mma_tma_tile<BFloat16, mma_tma_tile(64, 16, 1)>(const Problem&, int64_t,
                                                                  const Context&);

}  // namespace tiled::cuda
