// Lists the tiles of a grouped product.
//
// One block goes through the groups, a thread a group. A scan of maxima cuts ends that descend, and
// a scan of sums numbers the tiles; then each thread writes the tiles of its group.

#include <cub/block/block_scan.cuh>
#include <cuda/functional>

#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 1024;

struct Params {
  const int32_t* ends;
  int groups, length, tile, pad;
  GroupTiles out;
};

__global__ void __launch_bounds__(kThreads)
    group_tiles_kernel(const __grid_constant__ Params params) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const auto [ends, groups, length, tile, pad, out] = params;
  int end_before = 0, tiles_before = 0, padded_before = 0;  // of the groups of earlier rounds
  // The group after the last one is the rest.
  for (int round = 0; round <= groups; round += kThreads) {
    const int group = round + static_cast<int>(threadIdx.x);
    const bool exists = group <= groups;
    int end = length;
    if (group < groups) end = max(min(ends[group], length), 0);
    int begin, largest;
    // What a thread gets is the largest end before its own.
    Scan(smem).ExclusiveScan(end, begin, end_before, ::cuda::maximum<int>{}, largest);
    begin = max(begin, end_before);
    end = max(begin, end);
    const int count = exists ? end - begin : 0;
    const int tiles = static_cast<int>(ceil_div(count, tile));
    const int padded = static_cast<int>(ceil_div(count, pad));
    int first_tile, all_tiles, first_padded, all_padded;
    __syncthreads();
    Scan(smem).ExclusiveSum(tiles, first_tile, all_tiles);
    __syncthreads();
    Scan(smem).ExclusiveSum(padded, first_padded, all_padded);
    __syncthreads();
    first_tile += tiles_before, first_padded += padded_before;
    if (exists) {
      out.ranges[group] = {begin, end};
      out.first_tile[group] = first_tile;
      if (group == groups) out.first_tile[groups + 1] = first_tile + tiles;
    }
    for (int i = 0; i < tiles; ++i) {
      out.tiles[first_tile + i] = {group < groups ? group : GroupTile::kNoGroup, begin + i * tile,
                                   min(count - i * tile, tile), first_padded + i * (tile / pad)};
    }
    end_before = max(end_before, largest);
    tiles_before += all_tiles, padded_before += all_padded;
  }
  for (int64_t i = tiles_before + threadIdx.x; i < out.most; i += kThreads) {
    out.tiles[i] = {GroupTile::kNoGroup, length, 0, padded_before};
  }
}

}  // namespace

GroupTiles GroupTiles::take(const Problem& p, int tile, Workspace& workspace) {
  GroupTiles tiles;
  const int64_t groups = p.batch.count;
  tiles.most = grouped_length(p) / tile + groups + 1;
  tiles.tiles = workspace.take<GroupTile>(tiles.most).data();
  tiles.ranges = workspace.take<GroupRange>(groups + 1).data();
  tiles.first_tile = workspace.take<int>(groups + 2).data();
  return tiles;
}

void launch_group_tiles(const Problem& p, int tile, int pad, const GroupTiles& tiles,
                        const Context& context) {
  const Params params{p.groups.ends,
                      static_cast<int>(p.batch.count),
                      static_cast<int>(grouped_length(p)),
                      tile,
                      pad,
                      tiles};
  launch_pdl(group_tiles_kernel, 1, kThreads, 0, context, params);
}

}  // namespace tiled::cuda
