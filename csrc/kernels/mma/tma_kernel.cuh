#pragma once
// The kernel of mma_tma, which tf32_tma shares and mma_unaligned consumes by: persistent and
// warp-specialized, TMA and wgmma. tma_sm90.cu draws its barriers.
//
// An Epilogue turns accumulators into C:
//
//   Epilogue::Params            the kernel's parameters, derived from MainloopParams
//   Epilogue::Smem              a block's shared memory
//   Epilogue::kAccRegisters     registers of a thread for accumulators and the running total
//   Epilogue::kReducedCols      columns of a tile that a block of the split-K reduction has
//   Epilogue::kSharedTotal      elements of a thread's running total that Smem has room for
//   Epilogue(params, smem)      is constructed by every consumer thread
//   batch_coords(p, matrix, i)  static: the coordinates of matrix i of the batch in its tensor map
//   begin_tile(tile)            is called before the tile is multiplied
//   end_chunk(tile, k, acc)     may change the accumulators of the chunk that begins at k
//   end_tile(tile, acc)         stores the tile
//   shared_total()              the first float4 of kSharedTotal; each next one is 32 float4 later
//   finish()                    is called before the block exits

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/plan.h"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::mma_tma {

// --- Tiles ---------------------------------------------------------------------------------------

// A block's tile of C, (kM, kN), loaded kK of K at a time. A consumer warpgroup multiplies kRows
// rows: 64, or fewer, which leaves a part of each wgmma unused.
template <class T_, int kM_, int kN_, int kCluster_, int kStages_, bool kAMnMajor_, bool kBMnMajor_,
          int kRows_ = 64>
struct TileOf {
  using T = T_;  // Half or BFloat16
  static constexpr int kM = kM_, kN = kN_, kRows = kRows_;
  static constexpr int kK = 64;  // of a stage: 128 bytes, which is what the swizzle covers
  static constexpr int kStages = kStages_;
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr int kCluster = kCluster_;  // blocks
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = kM / kRows;  // warpgroups
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kThreads = kWarpgroup + kConsumerThreads;
  static constexpr int kElements = kN / 2;       // of C, a consumer thread
  static constexpr int kBoxBytes = 64 * kK * 2;  // of 64 rows or columns in a stage
  static constexpr int kABytes = kM * kK * 2;
  // Ping-pong: the second warpgroup multiplies the last steps of a chunk after the first has issued
  // all of its own, and keeps the tensor cores busy while the first runs its epilogue. The second
  // then holds all stages but one, in which the first goes on to the next tile.
  static constexpr int kSoloSteps = kConsumers == 2 ? kStages - 1 : 0;
  // If B is MN-major: columns of the narrower box, if any, and columns that are loaded.
  static constexpr int kNarrowBox = kBMnMajor ? mma_narrow_box(kN) : 0;
  static constexpr int kBCols = kBMnMajor ? (kN - kNarrowBox + 63) / 64 * 64 + kNarrowBox : kN;
  // The tile that the split-K reduction is instantiated for: one for all layouts with accumulators
  // in the same order.
  using ReduceTile = TileOf<T, kM, kN, kCluster, kStages, false, (kNarrowBox > 0)>;

  static_assert(kM % kRows == 0 && kN % 16 == 0 && mma_order::kChunk % kK == 0);
  static_assert(kCluster <= 2, "each block loads half of B for both");
  static_assert(kNarrowBox == 0 || (kNarrowBox == 32 && (kN == 96 || kN == 32)),
                "column_in_tile()");
};

// The tile of that index in the cost model's table.
template <class T, int kIndex, int kStages, bool kAMnMajor, bool kBMnMajor>
using Tile = TileOf<T, h200::kMmaTmaTiles[kIndex].m, h200::kMmaTmaTiles[kIndex].n,
                    h200::kMmaTmaTiles[kIndex].cluster, kStages, kAMnMajor, kBMnMajor>;

// The column in the tile of accumulators `i` to i + 31 of a row of kN, for a tile with the first
// column `first`. Boxes begin at multiples of their own width, so that none begins in the middle
// of a cache line: a tile of 96 columns that begins at an odd multiple of 32 has its narrow box
// first. The accumulators of the narrow box are the last in either case.
template <int kN, int kNarrowBox>
__device__ int column_in_tile(int i, int64_t first) {
  if (kNarrowBox == 0 || kNarrowBox == kN || first % 64 == 0) return i;
  return i < 64 ? i + 32 : i - 64;
}

// The K of a stage that is loaded and multiplied if `left` of K are left: whole wgmmas. Beyond the
// end of K, TMA fills boxes with zeros.
__host__ __device__ constexpr int stage_depth(int64_t left) {
  return left >= 64 ? 64 : static_cast<int>(ceil_div(left, mma_order::kDepth) * mma_order::kDepth);
}

// --- Parameters and work tiles -------------------------------------------------------------------

// The maps of an operand; "rows" are A's rows or B's columns. TMA takes longer to fill a row that
// is outside the matrix with zeros than to load one, so there are maps for boxes that end with it.
//
// K-major: `box` has the rows of a tile, `edge_box` the rows that the last tile has of the matrix.
// MN-major: `box` has 64 rows, `edge_box` the rows of the narrow box. Both read on into the memory
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
  FastDivmod by_tiles{};    // divides by `tiles`, if k_splits > 1
  Problem p;
  TensorMaps a, b;
  // Float4s of each block's consumer threads: running totals that found no place elsewhere, or with
  // K splits the partial sums of each chunk of each tile.
  float4* workspace = nullptr;
};

// Blocks of a cluster compute tiles one above the other, and share B. The scheduler rasterizes
// eight rows of clusters together if tiles have 128 rows, and four if they have 64, since more of
// these run at a time.
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
  static constexpr bool kHasK = true;  // at least one stage
  TileCoord tile;
  int64_t index;  // of the cluster's tile
  int64_t k_begin, k_end;
  int rows, cols;  // of A and of B that are loaded, as OperandTile::left counts them
};

// Returns how many of `all` rows or columns are left from `first` on, at most more than any tile
// has.
__device__ inline int left_in_matrix(int64_t all, int first) {
  return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
}

// This and locate_work_tile() say which work tiles there are. Grouped products have their own.
template <class Tile>
__device__ int64_t count_work_tiles(const MainloopParams& params) {
  return params.tiles * params.k_splits;
}

template <class Tile>
__device__ WorkTile locate_work_tile(const MainloopParams& params, int64_t index) {
  const uint32_t split =
      params.k_splits > 1 ? params.by_tiles.divide(static_cast<uint32_t>(index)) : 0;
  index -= split * params.tiles;
  const int64_t k_begin = split * params.k_per_split;
  const int64_t k_end = min(k_begin + params.k_per_split, params.p.k);
  const TileCoord tile = locate_in_cluster<Tile>(params.scheduler, index);
  const int rows = left_in_matrix(params.p.m, tile.row),
            cols = left_in_matrix(params.p.n, tile.col);
  return {tile, index, k_begin, k_end, rows, cols};
}

// --- The stages in shared memory -----------------------------------------------------------------

template <class Tile, class Epilogue>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kABytes];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kBCols * Tile::kK * 2];
  typename Epilogue::Smem epilogue;
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// The last stage of K is multiplied apart, unless both operands are K-major: beyond the end of K
// those are zero.
template <class Tile>
inline constexpr bool kHasKTail = Tile::kAMnMajor || Tile::kBMnMajor;

// Tells the producers of every block that loads into a stage that this consumer warp has read it.
template <class Tile, class Epilogue>
__device__ void release(Smem<Tile, Epilogue>& smem, int stage, int lane) {
  if constexpr (Tile::kCluster == 1) {  // a block may be in a cluster with which it shares nothing
    if (lane == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  } else {
    if (lane < Tile::kCluster) ptx::mbarrier_arrive_cluster(&smem.empty[stage], lane);
  }
}

// Waits until every kProducers'th stage from `first` on is empty. No block of a cluster may exit
// before the other's last arrivals at its barriers.
template <int kProducers, class Tile, class Epilogue>
__device__ void drain(Smem<Tile, Epilogue>& smem, ptx::PipelineState pipe, int first) {
  if constexpr (Tile::kCluster > 1) {
    for (int i = 0; i < Tile::kStages; ++i, pipe.advance()) {
      if (pipe.stage % kProducers == first)
        ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
    }
  }
}

// --- Producers: threads that issue TMA loads of A and B ------------------------------------------

// Warps with a thread that issues loads; they alternate by stages. One thread takes about as long
// to issue a stage's loads as consumers take to multiply a stage of a small tile, and two threads
// as long as the smallest tiles take.
template <class Tile>
inline constexpr int kProducers = Tile::kN < 64 ? 4 : 2;

// An operand's part of a tile: kRows rows of A or columns of B, `left` of them in the matrix.
// If kCluster is 2, both blocks need it, and each loads half of it into both. Boxes that are
// outside the matrix are not loaded. The stage then holds what was there before, which is
// multiplied into rows or columns of C that are never stored. MN-major boxes have kBox rows, and
// the last one kNarrowBox, if that is not 0.
template <int kRows, bool kMnMajor, int kCluster, int kNarrowBox = 0>
struct OperandTile {
  static constexpr int kBox = 64;
  const TensorMaps& maps;
  int first, left;
  TmaCoords matrix;
  int rank;

  // Bytes that arrive in a block's stage with `depth` of K, whichever block issues the loads.
  __device__ int bytes(int depth) const {
    if (!kMnMajor) return min(left, kRows) * 128;
    int rows = 0;
    UNROLL
    for (int i = 0; i < kRows; i += kBox) {
      if (column_in_tile<kRows, kNarrowBox>(i, first) < left) {
        rows += i < kRows - kNarrowBox ? kBox : kNarrowBox;
      }
    }
    return rows * 2 * depth;
  }
  // Loads a stage from `k` on; is_k_tail: the last one of K.
  __device__ void load(uint8_t* to, int k, bool is_k_tail, uint64_t* full) const {
    if constexpr (kMnMajor) {
      const CUtensorMap& box = is_k_tail ? maps.box_k_tail : maps.box;
      const CUtensorMap& narrow = is_k_tail ? maps.edge_box_k_tail : maps.edge_box;
      UNROLL
      for (int i = 0; i < kRows; i += kBox) {
        const int row = column_in_tile<kRows, kNarrowBox>(i, first);
        if (i / kBox % kCluster == rank && row < left) {
          load_box(to + i * 128, i < kRows - kNarrowBox ? box : narrow, first + row, k, full);
        }
      }
    } else {
      constexpr int kOwn = kRows / kCluster;
      const int own = rank * kOwn;
      if (own >= left) return;
      load_box(to + own * 128, left - own >= kOwn ? maps.box : maps.edge_box, k, first + own, full);
    }
  }

 private:
  // inner: the coordinate along the contiguous side.
  __device__ void load_box(uint8_t* to, const CUtensorMap& map, int inner, int outer,
                           uint64_t* full) const {
    const int coords[] = {inner, outer, matrix.at[0], matrix.at[1], matrix.at[2]};
    if constexpr (kCluster == 2) {
      ptx::tma_load_multicast(0b11, to, &map, coords, full);
    } else {
      ptx::tma_load(to, &map, coords, full);
    }
  }
};

// The loop of producer `warp`, by its elected thread.
template <class Tile, class Epilogue>
__device__ void produce(const typename Epilogue::Params& params, Smem<Tile, Epilogue>& smem,
                        int warp) {
  const Problem& p = params.p;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t begin = blockIdx.x / kCluster;
  const int64_t work_tiles = count_work_tiles<Tile>(params);
  for (int64_t index = begin; index < work_tiles; index += gridDim.x / kCluster) {
    const auto work_tile = locate_work_tile<Tile>(params, index);
    const TileCoord& tile = work_tile.tile;
    const OperandTile<Tile::kM, Tile::kAMnMajor, 1> a{
        params.a, tile.row, work_tile.rows, Epilogue::batch_coords(p, p.a, tile.batch), 0};
    const OperandTile<Tile::kN, Tile::kBMnMajor, Tile::kCluster, Tile::kNarrowBox> b{
        params.b, tile.col, work_tile.cols, Epilogue::batch_coords(p, p.b, tile.batch),
        rank<Tile>()};
    const int bytes = a.bytes(Tile::kK) + b.bytes(Tile::kK);
    if (index == begin) ptx::pdl_wait();
    for (int64_t k = work_tile.k_begin; k < work_tile.k_end; k += Tile::kK, pipe.advance()) {
      if (pipe.stage % kProducers<Tile> != warp) continue;
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      const bool is_k_tail = kHasKTail<Tile> && p.k - k <= Tile::kK;
      const int depth = is_k_tail ? stage_depth(p.k - k) : Tile::kK;
      ptx::arrive_expect_tx(full, is_k_tail ? a.bytes(depth) + b.bytes(depth) : bytes);
      a.load(smem.a[pipe.stage], static_cast<int>(k), is_k_tail, full);
      b.load(smem.b[pipe.stage], static_cast<int>(k), is_k_tail, full);
    }
  }
  drain<kProducers<Tile>, Tile>(smem, pipe, warp);
}

// --- The running total of a tile's chunks --------------------------------------------------------

// A consumer thread keeps it while it multiplies the next chunk: as much of it as fits in
// registers, then in the epilogue's shared memory, then in the workspace, which L2 holds.

// Elements of a thread's total in each.
template <class Tile, class Epilogue>
inline constexpr int kTotalInRegisters =
    std::min(Tile::kElements, Epilogue::kAccRegisters - Tile::kElements);
template <class Tile, class Epilogue>
inline constexpr int kTotalInShared =
    std::min<int>(Tile::kElements - kTotalInRegisters<Tile, Epilogue>, Epilogue::kSharedTotal);
template <class Tile, class Epilogue>
inline constexpr int kTotalInWorkspace =
    Tile::kElements - kTotalInRegisters<Tile, Epilogue> - kTotalInShared<Tile, Epilogue>;

// Elements that are prefetched from the workspace; more would spill.
constexpr int kPrefetched = 16;

// Elements of its total that a thread can keep in its warp's part of shared memory.
template <class WarpSmem>
inline constexpr int kSharedTotalIn = sizeof(WarpSmem) / (32 * sizeof(float4)) * 4;

inline __device__ void add_x4(float* acc, const float4& x4) {
  acc[0] += x4.x, acc[1] += x4.y, acc[2] += x4.z, acc[3] += x4.w;
}

// Loads the first kPrefetched of the `left` elements from `from` on.
template <class Tile>
__device__ void prefetch_total(const float4* from, int left,
                               float4 (&prefetched)[kPrefetched / 4]) {
  UNROLL
  for (int i = 0; i < kPrefetched / 4; ++i) {
    if (i * 4 < left) prefetched[i] = __ldcg(from + i * Tile::kConsumerThreads);
  }
}

// Adds the total of the chunks before, if any, to the accumulators of a chunk, and keeps the new
// total if it is not the last one. The first elements in the workspace have
// been prefetched; the next ones are prefetched before the current ones are stored.
template <class Tile, class Epilogue>
__device__ void add_earlier_chunks(const Epilogue& epilogue, bool is_first, bool is_last,
                                   float (&total)[kTotalInRegisters<Tile, Epilogue> + 1],
                                   float4 (&prefetched)[kPrefetched / 4], float4* workspace,
                                   float (&acc)[Tile::kElements]) {
  constexpr int kInRegisters = kTotalInRegisters<Tile, Epilogue>;
  constexpr int kInShared = kTotalInShared<Tile, Epilogue>;
  UNROLL
  for (int i = 0; i < kInRegisters; ++i) {
    if (!is_first) acc[i] += total[i];
    total[i] = acc[i];
  }
  const auto x4_of = [&](int first) {
    return make_float4(acc[first], acc[first + 1], acc[first + 2], acc[first + 3]);
  };
  if constexpr (kInShared > 0) {
    float4* shared = epilogue.shared_total();
    UNROLL
    for (int i = 0; i < kInShared; i += 4, shared += 32) {
      if (!is_first) add_x4(&acc[kInRegisters + i], *shared);
      if (!is_last) *shared = x4_of(kInRegisters + i);
    }
    __syncwarp();  // other lanes write there next, in end_tile()
  }
  UNROLL
  for (int first = kInRegisters + kInShared; first < Tile::kElements; first += kPrefetched) {
    const int count = min(kPrefetched, Tile::kElements - first);
    if (!is_first) {
      UNROLL
      for (int i = 0; i < count; i += 4) add_x4(&acc[first + i], prefetched[i / 4]);
      if (first + kPrefetched < Tile::kElements) {
        prefetch_total<Tile>(workspace + kPrefetched / 4 * Tile::kConsumerThreads,
                             Tile::kElements - first - kPrefetched, prefetched);
      }
    }
    UNROLL
    for (int i = 0; i < count; i += 4, workspace += Tile::kConsumerThreads) {
      if (!is_last) __stcg(workspace, x4_of(first + i));
    }
  }
}

// --- Split-K: the partial sums of chunks ---------------------------------------------------------

// Registers of a consumer and a producer thread, in blocks of three warpgroups that start with 168.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;

// The first of a consumer thread's partial sums of a chunk of a tile.
template <class Tile>
__device__ float4* partial_sums(const MainloopParams& params, int64_t chunk, int64_t tile) {
  constexpr int kBlock = Tile::kElements / 4 * Tile::kConsumerThreads;
  const int64_t block = (chunk * params.tiles + tile) * Tile::kCluster + rank<Tile>();
  return params.workspace + block * kBlock + (threadIdx.x - Tile::kWarpgroup);
}

template <class Tile>
__device__ void store_partial_sums(const MainloopParams& params, int64_t chunk, int64_t tile,
                                   const float (&acc)[Tile::kElements]) {
  float4* to = partial_sums<Tile>(params, chunk, tile);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, to += Tile::kConsumerThreads) {
    __stcg(to, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
  }
}

// --- Consumers: warpgroups that multiply stages by wgmma -----------------------------------------

namespace wgmma = ptx::wgmma;

// The named barrier of the ping-pong. The epilogue has one for each warpgroup, from 1 on.
template <class Tile>
inline constexpr int kPingPongBarrier = 1 + Tile::kConsumers;
constexpr int kNoStage = -1;

// Issues the wgmmas of a stage: a warpgroup's rows of the tile by all columns. kIsKTail: the stage
// has `depth` of K only.
template <bool kIsKTail, class Tile, class Epilogue>
__device__ void multiply_stage(const Smem<Tile, Epilogue>& smem, int stage, int depth,
                               int warpgroup, float (&acc)[Tile::kElements]) {
  // The distance of 16 of K in a descriptor, in units of 16 bytes.
  constexpr int kA16 = Tile::kAMnMajor ? 128 : 2;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2, kWide = (Tile::kN - Tile::kNarrowBox) / 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t a =
      wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.a[stage] + warpgroup * Tile::kBoxBytes);
  const uint64_t b = wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.b[stage]);
  const uint64_t b_narrow = wgmma::swizzled_descriptor<Tile::kNarrowBox * 128, 32>(
      smem.b[stage] + (Tile::kN - Tile::kNarrowBox) * 128);
  wgmma::fence_operand(acc);
  wgmma::fence();
  UNROLL
  for (int i = 0; i < Tile::kK / mma_order::kDepth; ++i) {
    if (kIsKTail && i * mma_order::kDepth >= depth) break;
    if (kIsKTail && i > 0) {  // after a branch, ptxas would begin a new group by itself
      wgmma::commit_group();
      wgmma::fence();
    }
    if constexpr (kWide > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[kWide]>(acc), a + i * kA16, b + i * kB16, true);
    }
    if constexpr (Tile::kNarrowBox > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[Tile::kNarrowBox / 2]>(acc[kWide]), a + i * kA16,
          b_narrow + i * Tile::kNarrowBox * 2, true);
    }
  }
  wgmma::commit_group();
}

// Multiplies a chunk of `length` of K. The wgmmas of its last stage are left unfinished; that stage
// is returned, to be released.
template <class Tile, class Epilogue>
__device__ int multiply_chunk(Smem<Tile, Epilogue>& smem, ptx::PipelineState& pipe, int length,
                              int warpgroup, int lane, float (&acc)[Tile::kElements]) {
  UNROLL
  for (float& each : acc) each = 0;
  // If a chunk has as many steps as the pipeline has stages, no warpgroup is in the next chunk
  // before the other one, so each phase of the ping-pong barrier belongs to one chunk.
  const bool ping_pong = Tile::kSoloSteps > 0 && length >= Tile::kStages * Tile::kK;
  const int solo_k = ping_pong && warpgroup == 1
                         ? (ceil_div(length, Tile::kK) - Tile::kSoloSteps) * Tile::kK
                         : kNoStage;
  int to_release = kNoStage;
  const auto multiply = [&]<bool kIsKTail>(int depth) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    multiply_stage<kIsKTail, Tile>(smem, pipe.stage, depth, warpgroup, acc);
    wgmma::wait_group<1>();
    if (to_release != kNoStage) release(smem, to_release, lane);
    to_release = pipe.stage;
    pipe.advance();
  };
  const int whole = kHasKTail<Tile> ? length / Tile::kK * Tile::kK : length;
  NO_UNROLL
  for (int k = 0; k < whole; k += Tile::kK) {
    if (k == solo_k) ptx::named_barrier_sync(kPingPongBarrier<Tile>, Tile::kConsumerThreads);
    multiply.template operator()<false>(Tile::kK);
  }
  if (kHasKTail<Tile> && whole < length) multiply.template operator()<true>(length - whole);
  if (ping_pong && warpgroup == 0) {
    ptx::named_barrier_arrive(kPingPongBarrier<Tile>, Tile::kConsumerThreads);
  }
  return to_release;
}

// The loop of the consumer warpgroups. multiply(work_tile, is_last, pipe, length, warpgroup, lane,
// acc) does what multiply_chunk() does; is_last: the chunk is the work tile's last.
template <class Tile, class Epilogue, class Multiply>
__device__ void consume(const typename Epilogue::Params& params, Smem<Tile, Epilogue>& smem,
                        const Multiply& multiply) {
  constexpr int kBlock = kTotalInWorkspace<Tile, Epilogue> / 4 * Tile::kConsumerThreads;
  const int warpgroup = ptx::warp_uniform(threadIdx.x / Tile::kWarpgroup) - 1;
  const int lane = threadIdx.x % 32;
  constexpr unsigned kCluster = Tile::kCluster;
  Epilogue epilogue(params, smem.epilogue);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  ptx::pdl_wait();
  const int64_t work_tiles = count_work_tiles<Tile>(params);
  for (int64_t index = blockIdx.x / kCluster; index < work_tiles; index += gridDim.x / kCluster) {
    const auto work_tile = locate_work_tile<Tile>(params, index);
    const auto& tile = work_tile.tile;
    if (params.k_splits == 1) epilogue.begin_tile(tile);
    float acc[Tile::kElements], total[kTotalInRegisters<Tile, Epilogue> + 1];
    bool is_first = true;
    // No K, if the work tile may have none, is one chunk with the sum 0.
    for (int64_t chunk = work_tile.k_begin;
         chunk < work_tile.k_end || (is_first && !work_tile.kHasK);
         chunk += mma_order::kChunk, is_first = false) {
      const auto length =
          static_cast<int>(min(work_tile.k_end - chunk, int64_t{mma_order::kChunk}));
      const bool is_last = chunk + length == work_tile.k_end;
      const int last_stage = multiply(work_tile, is_last, pipe, length, warpgroup, lane, acc);
      // The total in the workspace is prefetched while the last wgmmas finish.
      float4* workspace =
          params.workspace + int64_t{blockIdx.x} * kBlock + (threadIdx.x - Tile::kWarpgroup);
      float4 prefetched[kPrefetched / 4];
      if (kTotalInWorkspace<Tile, Epilogue> > 0 && !is_first && params.k_splits == 1) {
        prefetch_total<Tile>(workspace, kTotalInWorkspace<Tile, Epilogue>, prefetched);
      }
      wgmma::wait_group<0>();
      wgmma::fence_operand(acc);
      if (work_tile.kHasK || last_stage != kNoStage) release(smem, last_stage, lane);
      epilogue.end_chunk(tile, chunk, acc);
      if (params.k_splits > 1) {
        store_partial_sums<Tile>(params, chunk / mma_order::kChunk, work_tile.index, acc);
        continue;
      }
      if (is_first) {
        UNROLL
        for (float& each : acc) each += 0.0f;  // chunks are added from +0: a -0 becomes +0
      }
      if (params.p.k <= mma_order::kChunk) continue;
      add_earlier_chunks<Tile>(epilogue, is_first, is_last, total, prefetched, workspace, acc);
    }
    if (params.k_splits == 1) epilogue.end_tile(tile, acc);
  }
  epilogue.finish();
}

// --- The kernel ----------------------------------------------------------------------------------

// Initializes the barriers of a block, which `full_arrivals` threads of its producers arrive at,
// and makes them visible to the cluster.
template <class Tile, class Epilogue>
__device__ void init_barriers(Smem<Tile, Epilogue>& smem, int full_arrivals) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, full_arrivals, smem.empty,
                              Tile::kConsumers * 4 * Tile::kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  ptx::pdl_launch_dependents();
}

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_tma_kernel(const __grid_constant__ typename Epilogue::Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile, Epilogue>&>(dynamic_smem);
  init_barriers(smem, 1);
  // nvcc places the else branch first, so the first loads do not wait for instruction fetches.
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<Tile, Epilogue>(params, smem, [&](const auto&, bool, auto&... args) {
      return multiply_chunk<Tile, Epilogue>(smem, args...);
    });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp < kProducers<Tile> && ptx::elect_one()) {
      produce<Tile, Epilogue>(params, smem, warp);
    }
  }
}

}  // namespace tiled::cuda::mma_tma
