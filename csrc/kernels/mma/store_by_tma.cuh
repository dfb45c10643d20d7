#pragma once
// Stores 16-bit results by TMA, while the warp goes on to the next tile.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/store_16bit.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda::mma_tma {

// Shared memory has room for two boxes of each warp beside the stages of the widest tiles. A box
// has 128 bytes of each of the warp's 16 rows, and is swizzled by 128 bytes.
template <class Tile>
constexpr bool kStoresByTma = Tile::kN == 256;
using StoreBox = uint8_t[16 * kStagedCols16Bit * 2];

// Stores the rows of warp `warp` of the consumers. One box is filled while TMA reads the other.
template <class Tile>
__device__ void store_by_tma(const Problem& p, const CUtensorMap& map, const TileCoord& tile,
                             int warp, StoreBox (&staging)[2],
                             const float (&acc)[Tile::kElements]) {
  const int lane = threadIdx.x % 32, row = tile.row + warp * 16;
  const TmaCoords matrix(p.batch, p.c, tile.batch);
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStagedCols16Bit) {
    StoreBox& box = staging[first / kStagedCols16Bit % 2];
    if (lane == 0) ptx::tma_store_wait_group_read<1>();
    __syncwarp();
    UNROLL
    for (int right = 0; right < kStagedCols16Bit; right += 16) {
      uint32_t packed[4];
      pack_16bit<Tile>(first + right, acc, packed);
      const int row_byte = (lane % 16) * kStagedCols16Bit * 2;
      const int byte_in_row = (right + lane / 16 * 8) * 2;
      ptx::stmatrix_x4(&box[row_byte + (byte_in_row ^ lane % 8 * 16)], packed);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      const int coords[] = {tile.col + first, row, matrix.at[0], matrix.at[1], matrix.at[2]};
      if (row < p.m && coords[0] < p.n) ptx::tma_store(&map, coords, box);
      ptx::tma_store_commit_group();
    }
  }
}

}  // namespace tiled::cuda::mma_tma
