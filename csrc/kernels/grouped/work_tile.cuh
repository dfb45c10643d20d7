#pragma once
// The tiles of C in a grouped product, for kernels with a block for each.

#include <algorithm>
#include <cstdint>

#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// A tile of C, as a tile of its group's own product. The offsets count elements.
struct GroupedWorkTile {
  int64_t a, b, c;  // of the tile's first row of A, column of B, and element of C
  int64_t bias;     // of the tile's first column
  bool has_group;   // what no group has is zero, without a bias
  int rows, cols;   // of the tile in C
  int64_t k;        // the length of K
};

// Returns tile `index` of the list, or the range of group `index` if K is cut. Without a list the
// thread goes through the ends.
__device__ inline GroupTile group_tile(const Problem& p, const GroupTiles& list, int tile,
                                       int64_t index) {
  const bool cuts_k = p.groups.side == GroupedSide::kK;
  if (list.tiles != nullptr && !cuts_k) return list.tiles[index];
  if (list.tiles != nullptr) {
    const GroupRange range = list.ranges[index];
    return {static_cast<int>(index), range.begin, range.end - range.begin, 0};
  }
  const int groups = static_cast<int>(p.batch.count), length = static_cast<int>(grouped_length(p));
  for (int group = 0, begin = 0; group <= groups; ++group) {
    const int end = group < groups ? max(begin, min(p.groups.ends[group], length)) : length;
    const int64_t tiles = cuts_k ? 1 : ceil_div(end - begin, tile);
    if (index < tiles) {
      const int before = cuts_k ? 0 : static_cast<int>(index) * tile;
      const int count = cuts_k ? end - begin : min(end - begin - before, tile);
      return {group < groups ? group : GroupTile::kNoGroup, begin + before, count, 0};
    }
    index -= tiles, begin = end;
  }
  return {GroupTile::kNoGroup, length, 0, 0};
}

// Finds tile `index`; its count of rows or columns is 0 if it is behind the last one. One thread
// calls it, and the block keeps the tile in shared memory, which costs no registers.
template <class Tile>
__device__ GroupedWorkTile locate_grouped(const Problem& p, const GroupTiles& tiles,
                                          int64_t index) {
  GroupedWorkTile tile;
  int64_t group, row, col, k = 0;
  int64_t rows = Tile::kM, cols = Tile::kN;
  if (p.groups.side == GroupedSide::kK) {
    const TileIndex of_c = tile_index<Tile>(p, index);
    const GroupTile range = group_tile(p, tiles, 1, of_c.batch);
    group = of_c.batch, row = of_c.row, col = of_c.col;
    k = range.first, tile.k = range.count;
  } else {
    const bool cuts_m = p.groups.side == GroupedSide::kM;
    const int64_t across = cuts_m ? ceil_div(p.n, Tile::kN) : ceil_div(p.m, Tile::kM);
    const GroupTile cut = group_tile(p, tiles, cuts_m ? Tile::kM : Tile::kN, index / across);
    const int64_t place = index % across;
    group = cut.group;
    row = cuts_m ? cut.first : place * Tile::kM, col = cuts_m ? place * Tile::kN : cut.first;
    (cuts_m ? rows : cols) = cut.count;
    tile.k = group == GroupTile::kNoGroup ? 0 : p.k;
  }
  tile.rows = static_cast<int>(min(p.m - row, rows));
  tile.cols = static_cast<int>(min(p.n - col, cols));
  tile.has_group = group != GroupTile::kNoGroup;
  tile.a = group * p.a.batch_stride[0] + row * p.a.row_stride + k * p.a.col_stride;
  tile.b = group * p.b.batch_stride[0] + col * p.b.col_stride + k * p.b.row_stride;
  // The batch stride of a C that has tiles without a group is 0.
  tile.c = group * p.c.batch_stride[0] + row * p.c.row_stride + col * p.c.col_stride;
  tile.bias = group * p.epilogue.bias_batch_stride + col * p.epilogue.bias_stride;
  return tile;
}

// The number of tiles if all groups together have as many as they can have.
template <class Tile>
int64_t most_grouped_tiles(const Problem& p, const GroupTiles& tiles) {
  switch (p.groups.side) {
    case GroupedSide::kM: return tiles.most * ceil_div(p.n, Tile::kN);
    case GroupedSide::kN: return tiles.most * ceil_div(p.m, Tile::kM);
    default: return count_tiles(p, Tile::kM, Tile::kN);
  }
}

// Calls launch(tiles) with the list of a kernel's tiles, which the GPU then has made, or without
// one for a few groups. Returns false if there is no memory for the list.
template <class Tile, class Launch>
bool with_group_tiles(const Problem& p, const Context& context, const Launch& launch) {
  // Groups along K need no tiles along it, but where each begins.
  const int along = p.groups.side == GroupedSide::kM   ? Tile::kM
                    : p.groups.side == GroupedSide::kN ? Tile::kN
                                                       : 1 << 30;
  const auto take = [&](Workspace& workspace) { return GroupTiles::take(p, along, workspace); };
  Workspace workspace;
  GroupTiles tiles = take(workspace);
  if (p.batch.count > kMostUnlisted) {
    void* memory = context.allocate(workspace.bytes());
    if (memory == nullptr) return false;
    workspace = Workspace(memory);
    tiles = take(workspace);
    launch_group_tiles(p, along, 1, tiles, context);
  }
  launch(tiles);
  return true;
}

// Returns whether the shorter side of an average group's C is at most `length`.
inline bool has_small_groups(const Problem& p, int64_t length) {
  const int64_t groups = std::max<int64_t>(p.batch.count, 1);
  const int64_t m = p.groups.side == GroupedSide::kM ? p.m / groups : p.m;
  const int64_t n = p.groups.side == GroupedSide::kN ? p.n / groups : p.n;
  return std::min(m, n) <= length;
}

}  // namespace tiled::cuda
