// mma_tma's tiles of 128 columns.

#include "kernels/mma/tma_launch.cuh"

namespace tiled::cuda {

MMA_TMA_TILE(128, 128, 1);
MMA_TMA_TILE(128, 128, 2);
MMA_TMA_TILE(64, 128, 1);
MMA_TMA_TILE(64, 128, 2);

}  // namespace tiled::cuda
