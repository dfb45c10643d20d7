#pragma once
// What mma_tma's kernels of grouped products share: their work tiles, and the epilogue.

#include <cstdint>

#include "kernels/common/group_tiles.h"
#include "kernels/mma/tma_epilogue.cuh"
#include "kernels/mma/tma_kernel.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {

// launch_grouped_mma_tma() of groups along K.
bool launch_grouped_mma_tma_k(const Problem& p, const Context& context);

}  // namespace tiled::cuda

namespace tiled::cuda::mma_tma {

struct GroupedParams : EpilogueParams {
  GroupTiles list;
};

struct GroupedTileCoord : TileCoord {
  int row_end, col_end;  // of the tile in C
  bool has_group;
};

struct GroupedWorkTile {
  static constexpr bool kHasK = false;  // a group may have none
  GroupedTileCoord tile;
  int64_t index, k_begin, k_end;
  int rows, cols;
};

// Returns the cycles of the busiest SM if all groups have the mean size.
inline double grouped_cycles(const Problem& p, const h200::MmaTmaTile& tile, int64_t sms) {
  const auto mean = [&](GroupedSide side, int64_t length) {
    return p.groups.side == side ? ceil_div(length, p.batch.count) : length;
  };
  const int64_t rows = tile.m * tile.cluster;
  const int64_t tiles = ceil_div(mean(GroupedSide::kM, p.m), rows) * tile.cluster *
                        ceil_div(mean(GroupedSide::kN, p.n), tile.n) * p.batch.count;
  return wave_cycles(tiles, sms, tile.m, tile.n, mean(GroupedSide::kK, p.k), tile.overhead,
                     tile.rate);
}

// --- The epilogue: a bias at most ----------------------------------------------------------------

template <class Tile, class Params_>
struct GroupedEpilogue {
  using Own = Epilogue<Tile>;
  using Params = Params_;  // derived from GroupedParams
  using Smem = typename Own::Smem;
  static constexpr int kAccRegisters = Own::kAccRegisters, kSharedTotal = Own::kSharedTotal;

  const Params& params;
  Own own;

  __device__ GroupedEpilogue(const Params& params, Smem& smem)
      : params(params), own{params, smem} {}

  __device__ static TmaCoords batch_coords(const Problem& p, const Matrix& matrix, int64_t index) {
    return Own::batch_coords(p, matrix, index);
  }
  __device__ void begin_tile(const GroupedTileCoord& tile) const {
    if (params.p.epilogue.bias == nullptr) return;
    load_bias<typename Tile::T>(params.p.epilogue, tile.batch, tile.col_end, tile.col,
                                1 + warpgroup(), own.smem.bias[warpgroup()]);
  }
  __device__ void end_chunk(const TileCoord&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const GroupedTileCoord& tile, float (&acc)[Tile::kElements]) const {
    const Problem& p = params.p;
    if (tile.has_group) {
      apply_bias_relu(p.epilogue, own.smem.bias[warpgroup()], Own::columns_of(tile), acc);
    }
    const int warp = ptx::warp_uniform(threadIdx.x / 32) - 4;
    const bool by_tma = params.by_tma && tile.row + warp * 16 + 16 <= tile.row_end;
    if (params.by_tma && !by_tma) {  // TMA may still read the previous tile's boxes
      if (threadIdx.x % 32 == 0) ptx::tma_store_wait_group_read<0>();
      __syncwarp();
    }
    own.store_tile({tile.row_end, tile.col_end}, tile.batch * p.c.batch_stride[0], tile, by_tma,
                   acc);
  }
  __device__ float4* shared_total() const { return own.shared_total(); }
  __device__ void finish() const { own.finish(); }

 private:
  __device__ static int warpgroup() { return static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1; }
};

}  // namespace tiled::cuda::mma_tma
