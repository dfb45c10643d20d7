// mma_tma's tiles of 128 columns, for fp16.

#include "core/element.h"
#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

template bool run_mma_tma_tile<Half, mma_tma_tile(128, 128, 1)>(const Problem&, int64_t,
                                                                const Context&);
template bool run_mma_tma_tile<Half, mma_tma_tile(128, 128, 2)>(const Problem&, int64_t,
                                                                const Context&);
template bool run_mma_tma_tile<Half, mma_tma_tile(64, 128, 1)>(const Problem&, int64_t,
                                                               const Context&);
template bool run_mma_tma_tile<Half, mma_tma_tile(64, 128, 2)>(const Problem&, int64_t,
                                                               const Context&);

}  // namespace tiled::cuda
