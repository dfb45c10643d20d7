#pragma once
// The tiles of a grouped product along the side that is cut into groups. Only the GPU knows where
// groups end, so a kernel makes a list of tiles, and persistent kernels take their tiles from it:
// no tile has rows of two groups.

#include <cstdint>

#include "core/context.h"
#include "core/problem.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda {

// A tile: `count` rows (or columns, or k) of a group, from `first` on. The tiles behind the last
// group cover what no group has, and have group kNoGroup. All tiles after those have count 0.
struct alignas(16) GroupTile {
  static constexpr int kNoGroup = -1;
  int group, first, count;
  int padded;  // its first row in units of `pad`, if each group before it has whole units
};

// Where a group, or the rest behind the last group, begins and ends.
struct GroupRange {
  int begin, end;
};

struct GroupTiles {
  GroupTile* tiles = nullptr;    // `most`, in order of groups
  GroupRange* ranges = nullptr;  // of each group, then of the rest
  int* first_tile = nullptr;     // of each group, of the rest, and behind the rest
  int64_t most = 0;

  // The buffers of p's tiles of `tile` rows. Every group but full tiles may have one that is not
  // full, and so has the rest.
  static GroupTiles take(const Problem& p, int tile, Workspace& workspace);
};

// The most groups that a block goes through by itself, faster than a kernel makes a list for it:
// their ends are one cache line.
inline constexpr int64_t kMostUnlisted = kCacheLineBytes / int64_t{sizeof(int32_t)};

// The length of all groups and the rest, and the most that it is if each of them has whole units of
// `pad`.
HOST_DEVICE inline int64_t grouped_length(const Problem& p) {
  return p.groups.side == GroupedSide::kM ? p.m : p.groups.side == GroupedSide::kN ? p.n : p.k;
}
inline int64_t padded_length(const Problem& p, int pad) {
  return ceil_div(grouped_length(p) + (p.batch.count + 1) * (pad - 1), pad) * pad;
}

// Writes the tiles of `tile` rows, a multiple of `pad`. Ends that descend make empty groups, and
// ends outside are cut to the length.
void launch_group_tiles(const Problem& p, int tile, int pad, const GroupTiles& tiles,
                        const Context& context);

}  // namespace tiled::cuda
