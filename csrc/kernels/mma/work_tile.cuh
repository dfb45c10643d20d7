#pragma once
// The parameters of mma_tma's kernels, and the work tiles that a block takes one after another.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/tile.cuh"

namespace tiled::cuda::mma_tma {

// The maps of an operand; "rows" are A's rows or B's columns. TMA takes longer to fill a row that
// is outside the matrix with zeros than to load one, so there are maps for boxes that end with it.
//
// K-major: `box` has the rows of a tile, `edge_box` those that the last tile has of the matrix.
// MN-major: `box` has 64 rows, `edge_box` those of the narrow box. Both read on into the memory
// behind a row, which the *_k_tail maps, of the last stage of K, do not: nothing may follow there.
struct TensorMaps {
  CUtensorMap box, edge_box;
  CUtensorMap box_k_tail, edge_box_k_tail;
};

// Members stand in the order in which a block first reads them: each cache line of the parameters
// costs a miss.
struct MainloopParams {
  TileScheduler scheduler;
  uint32_t k_splits = 1;
  int64_t k_per_split = 0;  // the last split has the rest of K
  int64_t tiles = 0;        // clusters' tiles of C
  FastDivmod by_tiles{};    // divides by `tiles`, where k_splits > 1
  Problem p;
  TensorMaps a, b;
  // Float4s of each block's consumer threads: running totals that found no place elsewhere, or with
  // K splits the partial sums of each chunk of each tile.
  float4* workspace = nullptr;
};

// Blocks of a cluster compute tiles that lie one above the other, and share B. The scheduler
// rasterizes eight rows of clusters together where tiles have 128 rows, and four where they have
// 64, of which more run at a time.
template <class Tile>
struct ClusterTile {
  static constexpr int kM = Tile::kCluster * Tile::kM, kN = Tile::kN;
  static constexpr int kRasterRows = Tile::kM / 16;
};

// The block's rank in its cluster.
template <class Tile>
__device__ int rank() {
  return static_cast<int>(blockIdx.x % Tile::kCluster);
}

// This block's tile of the cluster's tile `index`.
template <class Tile>
__device__ TileCoord locate_in_cluster(const TileScheduler& scheduler, int64_t index) {
  TileCoord tile = locate<ClusterTile<Tile>>(scheduler, index);
  tile.row += rank<Tile>() * Tile::kM;
  return tile;
}

// A tile of C over one K split.
struct WorkTile {
  TileCoord tile;
  int64_t index;  // of the cluster's tile
  int64_t k_begin, k_end;
};

template <class Tile>
__device__ WorkTile locate_work_tile(const MainloopParams& params, int64_t index) {
  uint32_t split = 0;
  if (params.k_splits > 1) {
    split = params.by_tiles.divide(static_cast<uint32_t>(index));
    index -= split * params.tiles;
  }
  const int64_t k_begin = split * params.k_per_split;
  return {locate_in_cluster<Tile>(params.scheduler, index), index, k_begin,
          min(k_begin + params.k_per_split, params.p.k)};
}

}  // namespace tiled::cuda::mma_tma
