#pragma once
// Products of halves by wgmma from tiles that the copy engine brings: what 13_mma_bulk and
// 14_tf32_bulk have in common. How a sum ends is the rung's own.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/split_k.cuh"
#include "kernels/mma/tile.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::mma_tma {

namespace wgmma = ptx::wgmma;

// Warps of which a thread asks for copies: one alone takes as long for a step as small tiles are
// multiplied, two as long as the smallest.
template <class Tile>
inline constexpr int kProducers = Tile::kN < 64 ? 4 : 2;

// An End says what becomes of a tile's sums:
//   End::kHeld                 sums that a thread's registers can hold, those of chunks before, too
//   End::kSpare                more of them that it has of Smem between tiles
//   End::Work                  more than Work, for the kernel
//   End::Smem                  a block's, in shared memory
//   End(work, smem)            of a thread that multiplies
//   place(p, matrix, index)    of a matrix in its tensor map
//   begin_tile(tile)           before its sums; of which tile, is told by a TileCoord
//   end_chunk(tile, k, sums)   of one, which began at k
//   end_tile(tile, sums)       stores them
//   spare()                    the first four of kSpare, each 32 fours after the one before, where
//                              the warp's sums leave when a tile ends
//   finish()                   before the block ends

template <class Tile, class End>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kABytes];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kBCols * Tile::kK * 2];
  typename End::Smem end;
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// Copies steps of K of an operand's part of a tile, kRows of A's rows or B's columns, of which
// `left` are in the matrix. Where kShare is 2 both blocks need it, and each asks for half, for
// both. What is not in the matrix is not asked for, as far as boxes go: the engine takes some 15
// clocks for each line that it fills with zeros. What then lies there is never stored, or, of the
// last steps of K, never multiplied. Across K, boxes are of kBox rows, and the last of kNarrow, if
// of any.
template <int kRows, bool kAcross, int kShare, int kNarrow = 0>
struct Part {
  static constexpr int kBox = 64;
  const Maps& maps;
  int first, left;
  TmaCoords matrix;
  int share;  // which half is asked for

  // That come of so many steps, whoever asks.
  __device__ int bytes(int steps) const {
    if (!kAcross) return min(left, kRows) * 128;
    int rows = 0;
    UNROLL
    for (int i = 0; i < kRows; i += kBox) {
      if (in_tile<kRows, kNarrow>(i, first) < left) rows += i < kRows - kNarrow ? kBox : kNarrow;
    }
    return rows * 2 * steps;
  }
  // From k on; at_end: the last of K.
  __device__ void copy(uint8_t* to, int k, bool at_end, uint64_t* full) const {
    if constexpr (kAcross) {
      const CUtensorMap& whole = at_end ? maps.whole_at_end : maps.whole;
      const CUtensorMap& narrow = at_end ? maps.last_at_end : maps.last;
      UNROLL
      for (int i = 0; i < kRows; i += kBox) {
        const int row = in_tile<kRows, kNarrow>(i, first);
        if (i / kBox % kShare == share && row < left) {
          box(to + i * 128, i < kRows - kNarrow ? whole : narrow, first + row, k, full);
        }
      }
    } else {
      constexpr int kOwn = kRows / kShare;
      const int own = share * kOwn;
      if (own >= left) return;
      box(to + own * 128, left - own >= kOwn ? maps.whole : maps.last, k, first + own, full);
    }
  }

 private:
  __device__ void box(uint8_t* to, const CUtensorMap& map, int near, int far,
                      uint64_t* full) const {
    const int at[] = {near, far, matrix.at[0], matrix.at[1], matrix.at[2]};
    if constexpr (kShare == 2) {
      ptx::tma_load_multicast(0b11, to, &map, at, full);
    } else {
      ptx::tma_load(to, &map, at, full);
    }
  }
};

// Whether the last steps of K differ: along K what is beyond the end are zeros.
template <class Tile>
inline constexpr bool kHasEnd = Tile::kAMnMajor || Tile::kBMnMajor;

// No block of a cluster may end before the other's last arrivals at its barriers are there: waits
// for those of every kProducers'th stage from `first` on.
template <int kProducers, class Tile, class End>
__device__ void wait_for_last(Smem<Tile, End>& smem, ptx::PipelineState ring, int first) {
  if constexpr (Tile::kCluster > 1) {
    for (int i = 0; i < Tile::kStages; ++i, ring.advance()) {
      if (ring.stage % kProducers == first)
        ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity);
    }
  }
}

// A thread of each producing warp; stages are shared out among them.
template <class Tile, class End>
__device__ void produce(const typename End::Work& work, Smem<Tile, End>& smem, int warp) {
  const Problem& p = work.p;
  ptx::PipelineState ring{.stages = Tile::kStages, .parity = 1};
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t begin = blockIdx.x / kCluster;
  for (int64_t index = begin; index < work.tiles * work.ranges; index += gridDim.x / kCluster) {
    const Unit unit = locate_unit<Tile>(work, index);
    const TileCoord& tile = unit.tile;
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
    };
    const Part<Tile::kM, Tile::kAMnMajor, 1> a{work.a, tile.row, left(p.m, tile.row),
                                               End::place(p, p.a, tile.batch), 0};
    const Part<Tile::kN, Tile::kBMnMajor, Tile::kCluster, Tile::kNarrow> b{
        work.b, tile.col, left(p.n, tile.col), End::place(p, p.b, tile.batch), rank<Tile>()};
    const int bytes = a.bytes(Tile::kK) + b.bytes(Tile::kK);
    if (index == begin) ptx::pdl_wait();
    for (int64_t k = unit.begin; k < unit.end; k += Tile::kK, ring.advance()) {
      if (ring.stage % kProducers<Tile> != warp) continue;
      uint64_t* full = &smem.full[ring.stage];
      ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity);
      const bool at_end = kHasEnd<Tile> && p.k - k <= Tile::kK;
      const int steps = at_end ? steps_of(p.k - k) : Tile::kK;
      ptx::arrive_expect_tx(full, at_end ? a.bytes(steps) + b.bytes(steps) : bytes);
      a.copy(smem.a[ring.stage], static_cast<int>(k), at_end, full);
      b.copy(smem.b[ring.stage], static_cast<int>(k), at_end, full);
    }
  }
  wait_for_last<kProducers<Tile>, Tile>(smem, ring, warp);
}

// The barrier at which the second warpgroup waits for its turn; End has one for each warpgroup.
template <class Tile>
inline constexpr int kTurn = 1 + Tile::kConsumers;

// Tells producers, those of each block that copies there, that the warp has read a stage.
template <class Tile, class End>
__device__ void release(Smem<Tile, End>& smem, int stage, int lane) {
  if constexpr (Tile::kCluster == 1) {  // ranks are others', where a block shares nothing with them
    if (lane == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  } else {
    if (lane < Tile::kCluster) ptx::mbarrier_arrive_cluster(&smem.empty[stage], lane);
  }
}

// Begins the products of a stage, by a warpgroup: what it has of the tile's rows, all columns; of
// the first `steps` of K, if it is the last.
template <bool kLast, class Tile, class End>
__device__ void multiply_stage(const Smem<Tile, End>& smem, int stage, int steps, int warpgroup,
                               float (&sums)[Tile::kElements]) {
  constexpr int kA16 = Tile::kAMnMajor ? 128 : 2;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2, kWide = (Tile::kN - Tile::kNarrow) / 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t a =
      wgmma::swizzled_descriptor<Tile::kBlock>(smem.a[stage] + warpgroup * Tile::kBlock);
  const uint64_t b = wgmma::swizzled_descriptor<Tile::kBlock>(smem.b[stage]);
  const uint64_t b_narrow = wgmma::swizzled_descriptor<Tile::kNarrow * 128, 32>(
      smem.b[stage] + (Tile::kN - Tile::kNarrow) * 128);
  wgmma::fence_operand(sums);
  wgmma::fence();
  UNROLL
  for (int i = 0; i < Tile::kK / mma_order::kDepth; ++i) {
    if (kLast && i * mma_order::kDepth >= steps) break;
    if (kLast && i > 0) {  // ptxas would begin groups by itself after a branch
      wgmma::commit_group();
      wgmma::fence();
    }
    if constexpr (kWide > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[kWide]>(sums), a + i * kA16, b + i * kB16, true);
    }
    if constexpr (Tile::kNarrow > 0) {
      wgmma::mma<kBFloat16, Tile::kAMnMajor, Tile::kBMnMajor>(
          reinterpret_cast<float(&)[Tile::kNarrow / 2]>(sums[kWide]), a + i * kA16,
          b_narrow + i * Tile::kNarrow * 2, true);
    }
  }
  wgmma::commit_group();
}

// Sums of a chunk, `length` of K. The products of the last step are left unfinished, and its stage,
// which is told, unreleased.
template <class Tile, class End>
__device__ int multiply_chunk(Smem<Tile, End>& smem, ptx::PipelineState& ring, int length,
                              int warpgroup, int lane, float (&sums)[Tile::kElements]) {
  constexpr int kNone = -1;
  UNROLL
  for (float& each : sums) each = 0;
  // Where chunks have a ring's steps, no warpgroup is a chunk ahead, and a turn is one chunk's.
  const bool by_turns = Tile::kAlone > 0 && length >= Tile::kStages * Tile::kK;
  const int turn =
      by_turns && warpgroup == 1 ? (ceil_div(length, Tile::kK) - Tile::kAlone) * Tile::kK : kNone;
  int to_release = kNone;
  const auto multiply = [&]<bool kLast>(int steps) {
    ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
    multiply_stage<kLast, Tile>(smem, ring.stage, steps, warpgroup, sums);
    wgmma::wait_group<1>();
    if (to_release != kNone) release(smem, to_release, lane);
    to_release = ring.stage;
    ring.advance();
  };
  const int whole = kHasEnd<Tile> ? length / Tile::kK * Tile::kK : length;
  NO_UNROLL
  for (int k = 0; k < whole; k += Tile::kK) {
    if (k == turn) ptx::named_barrier_sync(kTurn<Tile>, Tile::kMultipliers);
    multiply.template operator()<false>(Tile::kK);
  }
  if (kHasEnd<Tile> && whole < length) multiply.template operator()<true>(length - whole);
  if (by_turns && warpgroup == 0) ptx::named_barrier_arrive(kTurn<Tile>, Tile::kMultipliers);
  return to_release;
}

// multiply(unit, ends, ring, length, warpgroup, lane, sums) does what multiply_chunk() says; ends:
// the unit does with this chunk.
template <class Tile, class End, class Multiply>
__device__ void consume(const typename End::Work& work, Smem<Tile, End>& smem,
                        const Multiply& multiply) {
  constexpr int kEach = kInMemory<Tile, End> / 4 * Tile::kMultipliers;  // vectors of a block
  const int warpgroup = ptx::warp_uniform(threadIdx.x / Tile::kWarpgroup) - 1;
  const int lane = threadIdx.x % 32;
  const Problem& p = work.p;
  constexpr unsigned kCluster = Tile::kCluster;
  End end(work, smem.end);
  ptx::PipelineState ring{.stages = Tile::kStages};
  ptx::pdl_wait();
  const int64_t units = work.tiles * work.ranges;
  for (int64_t index = blockIdx.x / kCluster; index < units; index += gridDim.x / kCluster) {
    const Unit unit = locate_unit<Tile>(work, index);
    const TileCoord& tile = unit.tile;
    if (work.ranges == 1) end.begin_tile(tile);
    float sums[Tile::kElements], kept[kKept<Tile, End> + 1];
    for (int64_t chunk = unit.begin; chunk < unit.end; chunk += mma_order::kChunk) {
      const auto length = static_cast<int>(min(unit.end - chunk, int64_t{mma_order::kChunk}));
      const bool ends = chunk + length == unit.end;
      const int last = multiply(unit, ends, ring, length, warpgroup, lane, sums);
      // What is in memory of the totals is asked for while the last products are finished.
      float4* total = work.totals + int64_t{blockIdx.x} * kEach + (threadIdx.x - Tile::kWarpgroup);
      float4 asked[kAsked / 4];
      if (kInMemory<Tile, End> > 0 && chunk > 0 && work.ranges == 1) {
        ask<Tile>(total, kInMemory<Tile, End>, asked);
      }
      wgmma::wait_group<0>();
      wgmma::fence_operand(sums);
      release(smem, last, lane);
      end.end_chunk(tile, chunk, sums);
      if (work.ranges > 1) {
        store_chunk<Tile>(work, chunk / mma_order::kChunk, unit.index, sums);
        continue;
      }
      if (chunk == 0) {
        UNROLL
        for (float& each : sums) each += 0.0f;  // tensor cores may leave -0
      }
      if (p.k <= mma_order::kChunk) continue;
      add_before<Tile>(end, p, chunk, kept, asked, total, sums);
    }
    if (work.ranges == 1) end.end_tile(tile, sums);
  }
  end.finish();
}

template <class Tile, class End>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_tma_kernel(const __grid_constant__ typename End::Work work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile, End>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty,
                              Tile::kConsumers * 4 * Tile::kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  ptx::pdl_launch_dependents();
  // nvcc puts the else first among the instructions: what asks for operands should wait for none.
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<kMultiplying>();
    consume<Tile, End>(work, smem, [&](const Unit&, bool, auto&... args) {
      return multiply_chunk<Tile, End>(smem, args...);
    });
  } else {
    ptx::setmaxnreg_dec<kCopying>();
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp < kProducers<Tile> && ptx::elect_one()) produce<Tile, End>(work, smem, warp);
  }
}

// How many of so many blocks, each a multiprocessor's, start as neighbours in the same part of the
// GPU, where they share what they ask L2 for. Where not all run at once, or they leave half of the
// GPU to others, they are better off anywhere.
template <class Tile, class Kernel>
unsigned neighbours(Kernel kernel, size_t smem_bytes, int64_t blocks, int64_t sms) {
  if (Tile::kCluster > 1) return Tile::kCluster;
  if (blocks > sms || 2 * blocks <= sms) return 1;
  static const int64_t fours = max_active_clusters(kernel, 4, Tile::kThreads, smem_bytes);
  return ceil_div(blocks, 4) <= fours ? 4 : 2;
}

// Launches a kernel that consumes, for work.p and what the rung has set of work, K in so many
// ranges of chunks if there is memory for their sums; false where the rung has not brought memory
// for totals, and there is none.
template <class Tile, template <class> class TileEnd>
bool launch_units(void (*kernel)(typename TileEnd<Tile>::Work), typename TileEnd<Tile>::Work work,
                  int64_t ranges, const Context& context) {
  using End = TileEnd<Tile>;
  constexpr size_t kSmem = sizeof(Smem<Tile, End>);
  static_assert(kSmem <= kMaxSharedMemory);
  const Problem& p = work.p;
  work.scheduler = TileScheduler::of<ClusterTile<Tile>>(p);
  work.tiles = count_tiles(p, Tile::kCluster * Tile::kM, Tile::kN);
  work.length = p.k;
  const int64_t chunks = ceil_div(p.k, mma_order::kChunk);
  constexpr int64_t kBytes = Tile::kCluster * Tile::kMultipliers * int64_t{sizeof(float)};
  if (ranges > 1) {
    void* sums = context.allocate(chunks * work.tiles * Tile::kElements * kBytes);
    if (sums != nullptr) {
      work.totals = static_cast<float4*>(sums);
      work.ranges = static_cast<uint32_t>(ranges);
      work.length = ceil_div(chunks, ranges) * mma_order::kChunk;
      work.by_tiles = FastDivmod::of(static_cast<uint32_t>(work.tiles));
    }
  }
  const int64_t units = work.tiles * work.ranges;
  const auto clusters = std::min<int64_t>(units, context.sms / Tile::kCluster);
  if (chunks > 1 && kInMemory<Tile, End> > 0 && work.totals == nullptr) {
    void* totals = context.allocate(clusters * kInMemory<Tile, End> * kBytes);
    if (totals == nullptr) return false;
    work.totals = static_cast<float4*>(totals);
  }
  allow_shared_memory(kernel, kSmem);
  const unsigned cluster = neighbours<Tile>(kernel, kSmem, units, context.sms);
  const auto blocks = static_cast<unsigned>(ceil_div(clusters * Tile::kCluster, cluster)) * cluster;
  launch_clusters_pdl(kernel, cluster, blocks, Tile::kThreads, kSmem, context, work);
  if (work.ranges > 1) {
    using Added = typename Tile::Added;
    launch_pdl(mma_split_k_reduce_kernel<Added, TileEnd<Added>>,
               static_cast<unsigned>(work.tiles * Tile::kCluster), Added::kThreads, 0, context,
               work);
  }
  return true;
}

// An operand that maps read: its row_stride is between A's rows or B's columns.
struct Lines {
  Batch batch;
  Matrix matrix;
};

// Of `outer` rows of A or columns of B, `rows` in a box that is not across K; of those that are, so
// many `steps` at the end.
template <class Tile>
Maps maps(const Lines& lines, int64_t outer, int64_t k, int rows, bool across, int narrow,
          int steps) {
  const auto map = [&](int64_t count, int box_rows, int box_k, CUtensorMapSwizzle swizzle) {
    return tensor_map(lines.batch, lines.matrix, count, k, box_rows, box_k, swizzle,
                      DType::kFloat16);
  };
  constexpr auto kWide = CU_TENSOR_MAP_SWIZZLE_128B, kNarrow = CU_TENSOR_MAP_SWIZZLE_64B;
  if (!across) {
    const auto last = static_cast<int>(outer % rows);
    return {map(outer, rows, Tile::kK, kWide),
            map(outer, last == 0 ? rows : last, Tile::kK, kWide),
            {},
            {}};
  }
  const int64_t into =
      mma_reads_past_end(lines.matrix, outer, k) ? ceil_div(outer, 64) * 64 : outer;
  Maps made{};
  made.whole = map(into, 64, Tile::kK, kWide);
  made.whole_at_end = map(outer, 64, steps, kWide);
  if (narrow > 0) {
    made.last = map(into, narrow, Tile::kK, kNarrow);
    made.last_at_end = map(outer, narrow, steps, kNarrow);
  }
  return made;
}
template <class Tile>
Maps maps_of_b(const Lines& b, const Problem& p, int steps) {
  return maps<Tile>(b, p.n, p.k, Tile::kN / Tile::kCluster, Tile::kBMnMajor, Tile::kNarrow, steps);
}

// launch_units() of the kernel whose operands maps read.
template <class Tile, template <class> class TileEnd>
bool launch(typename TileEnd<Tile>::Work work, int64_t ranges, const Lines& a, const Lines& b,
            const Context& context) {
  const int steps = steps_of((work.p.k - 1) % Tile::kK + 1);
  work.a = maps<Tile>(a, work.p.m, work.p.k, Tile::kM, Tile::kAMnMajor, 0, steps);
  work.b = maps_of_b<Tile>(b, work.p, steps);
  return launch_units<Tile, TileEnd>(mma_tma_kernel<Tile, TileEnd<Tile>>, work, ranges, context);
}

}  // namespace tiled::cuda::mma_tma
