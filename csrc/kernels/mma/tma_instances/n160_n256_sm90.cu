// mma_tma's tiles of 160 and 256 columns.

#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

MMA_TMA_TILE(128, 256, 2);
MMA_TMA_TILE(128, 160, 1);

}  // namespace tiled::cuda
