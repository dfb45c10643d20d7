// mma_tma of a grouped product: 16-bit floats, groups along M or N, operands that TMA can load.
//
// Idea:  The kernel of mma_tma (mma/tma_kernel.cuh, with its barriers in mma/tma_sm90.cu) takes its
//        work tiles from the list of the groups' tiles. Producers load whole boxes also if a group
//        ends within one: the box goes on into the next group's rows, and what they make of C is
//        not stored. Rows of a warp that are all the group's are stored as mma_tma stores them,
//        others by predicate.
// Limit: that of mma_tma; tiles that are not full, one for each group; and the list, which a kernel
//        makes before.
// Next:  mma_tma_k_sm90.cu: groups along K, of which a box may have nothing that follows.

#include <algorithm>
#include <cstdint>

#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/grouped/mma_tma.cuh"
#include "kernels/mma/instance.h"
#include "kernels/mma/tma_launch.cuh"
#include "ptx/ld_global.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {

namespace mma_tma {

// --- Work tiles ----------------------------------------------------------------------------------

struct GroupedMnParams : GroupedParams {
  // Tiles across the list's: along N if groups are along M. kRasterRows tiles of the list, with all
  // tiles across, are a band.
  FastDivmod by_across, by_band;
};

// Both threads that produce and threads that consume wait for the list.
template <class Tile>
__device__ int64_t count_work_tiles(const GroupedMnParams& params) {
  ptx::pdl_wait();
  return int64_t{params.list.first_tile[params.p.batch.count + 1]} * params.by_across.by;
}

// The place of a tile: in the list, and across it.
struct PlaceInList {
  uint32_t listed, across;
};

// Rasterization for L2, as by TileScheduler: tiles are numbered in bands, and within a band down
// its columns.
template <class Tile>
__device__ PlaceInList place_in_list(const GroupedMnParams& params, int64_t index) {
  constexpr int kBand = ClusterTile<Tile>::kRasterRows;
  const auto band = static_cast<uint32_t>(params.by_band.divide(index));
  const auto in_band = static_cast<uint32_t>(index - int64_t{band} * params.by_band.by);
  const uint32_t left = params.list.first_tile[params.p.batch.count + 1] - band * kBand;
  const uint32_t across = left >= kBand ? in_band / kBand : in_band / left;
  return {band * kBand + in_band - across * min(left, uint32_t{kBand}), across};
}

// Also asks for the list's part on the block's next tile, so that nothing waits for it.
template <class Tile>
__device__ GroupedWorkTile locate_work_tile(const GroupedMnParams& params, int64_t index) {
  const Problem& p = params.p;
  const auto [listed, across] = place_in_list<Tile>(params, index);
  const GroupTile cut = params.list.tiles[listed];
  const int64_t next = index + gridDim.x / Tile::kCluster;
  if (next < count_work_tiles<Tile>(params)) {
    ptx::prefetch_l1(&params.list.tiles[place_in_list<Tile>(params, next).listed]);
  }
  const bool cuts_m = p.groups.side == GroupedSide::kM, has_group = cut.group >= 0;
  const int above = rank<Tile>() * Tile::kM;  // rows of the cluster's tile
  const int row =
      above + (cuts_m ? cut.first : static_cast<int>(across) * Tile::kCluster * Tile::kM);
  const int col = cuts_m ? static_cast<int>(across) * Tile::kN : cut.first;
  const int count = max(cut.count - (cuts_m ? above : 0), 0);
  // K-major boxes have all rows of a tile, and MN-major ones 64.
  const auto loaded = [&](bool mn_major, int all) { return mn_major || count == 0 ? count : all; };
  return {{{max(cut.group, 0), row, col},
           cuts_m ? row + count : static_cast<int>(p.m),
           cuts_m ? static_cast<int>(p.n) : col + count,
           has_group},
          index,
          0,
          has_group ? p.k : 0,
          cuts_m ? loaded(Tile::kAMnMajor, Tile::kM) : left_in_matrix(p.m, row),
          cuts_m ? left_in_matrix(p.n, col) : loaded(Tile::kBMnMajor, Tile::kN)};
}

// --- The launch ----------------------------------------------------------------------------------

template <class Tile>
bool launch_grouped_tile(const Problem& p, const Context& context) {
  using Epilogue = GroupedEpilogue<Tile, GroupedMnParams>;
  constexpr int kRows = Tile::kCluster * Tile::kM;
  const bool cuts_m = p.groups.side == GroupedSide::kM;
  const int along = cuts_m ? kRows : Tile::kN;
  const int64_t across = cuts_m ? ceil_div(p.n, Tile::kN) : ceil_div(p.m, kRows);
  // Running totals of a block's tile, if there are several chunks.
  constexpr int64_t kTotals = kTotalInWorkspace<Tile, Epilogue> / 4 * Tile::kConsumerThreads;
  const int64_t totals = p.k > mma_order::kChunk ? kTotals * context.sms : 0;

  GroupedMnParams params{{epilogue_params<Tile>(p, context.sms), {}}, {}, {}};
  if (!cuts_m) params.vectorized_x8 = params.vectorized_x4 = params.by_tma = false;
  const auto take_buffers = [&](Workspace& workspace) {
    params.list = GroupTiles::take(p, along, workspace);
    params.workspace = workspace.take<float4>(totals).data();
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  take_buffers(workspace);
  params.by_across = FastDivmod::of(static_cast<uint32_t>(across));
  params.by_band = FastDivmod::of(static_cast<uint32_t>(across * ClusterTile<Tile>::kRasterRows));
  const int tail_depth = stage_depth((p.k - 1) % Tile::kK + 1);
  params.a = tensor_maps<Tile>({p.batch, p.a}, p.m, p.k, Tile::kM, Tile::kAMnMajor, 0, tail_depth);
  params.b = b_tensor_maps<Tile>({p.batch, transposed(p.b)}, p, tail_depth);
  launch_group_tiles(p, along, 1, params.list, context);

  constexpr size_t kSmem = sizeof(Smem<Tile, Epilogue>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = mma_tma_kernel<Tile, Epilogue>;
  allow_shared_memory(kernel, kSmem);
  const int64_t clusters =
      std::min<int64_t>(params.list.most * across, context.sms / Tile::kCluster);
  launch_clusters_pdl(kernel, Tile::kCluster, static_cast<unsigned>(clusters * Tile::kCluster),
                      Tile::kThreads, kSmem, context, params);
  return true;
}

}  // namespace mma_tma

bool grouped_mma_tma_accepts(const Problem& p) {
  const bool loads = p.k > 0 && p.batch.count > 0 && fits_tma_coords(p) &&
                     is_tma_aligned(p.batch, p.a, size_of(p.dtype)) &&
                     is_tma_aligned(p.batch, p.b, size_of(p.dtype));
  // A box begins at 16 aligned bytes, and a group anywhere: it is not cut along contiguous
  // elements.
  const bool a_mn_major = is_mn_major(p.a), b_mn_major = is_mn_major(transposed(p.b));
  switch (p.groups.side) {
    case GroupedSide::kM: return loads && !a_mn_major;
    case GroupedSide::kN: return loads && !b_mn_major;
    default: return loads && a_mn_major && b_mn_major;
  }
}

bool launch_grouped_mma_tma(const Problem& p, const Context& context) {
  if (p.m == 0 || p.n == 0) return true;
  if (p.groups.side == GroupedSide::kK) return launch_grouped_mma_tma_k(p, context);
  constexpr int kTiles[] = {mma_tma_tile(128, 256, 2), mma_tma_tile(128, 128, 1),
                            mma_tma_tile(64, 128, 1)};
  const auto cycles = [&](int tile) {
    return mma_tma::grouped_cycles(p, h200::kMmaTmaTiles[tile], context.sms);
  };
  const int best = std::ranges::min(kTiles, {}, cycles);
  bool launched = false;
  with_mma_kind(p, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    const auto try_tile = [&]<int kIndex>() {
      if constexpr (!(kAMnMajor && kBMnMajor)) {
        using Tile =
            mma_tma::Tile<T, kIndex, h200::kMmaTmaTiles[kIndex].stages, kAMnMajor, kBMnMajor>;
        if (best == kIndex) launched = mma_tma::launch_grouped_tile<Tile>(p, context);
      }
    };
    try_tile.template operator()<kTiles[0]>();
    try_tile.template operator()<kTiles[1]>();
    try_tile.template operator()<kTiles[2]>();
  });
  return launched;
}

}  // namespace tiled::cuda
