// mma_tma's tiles of 16 to 96 columns.

#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

MMA_TMA_TILE(64, 96, 1);
MMA_TMA_TILE(64, 96, 2);
MMA_TMA_TILE(64, 64, 1);
MMA_TMA_TILE(64, 64, 2);
MMA_TMA_TILE(64, 32, 1);
MMA_TMA_TILE(64, 16, 1);

}  // namespace tiled::cuda
