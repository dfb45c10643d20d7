// mma_tma's tiles of 192 columns.

#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

MMA_TMA_TILE(128, 192, 1);
MMA_TMA_TILE(128, 192, 2);
MMA_TMA_TILE(64, 192, 1);

}  // namespace tiled::cuda
