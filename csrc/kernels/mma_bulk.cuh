#pragma once
// Products of halves by wgmma from tiles that the copy engine brings: what 13_mma_bulk and
// 14_tf32_bulk have in common. How a sum ends is the rung's own.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "chained.h"
#include "device/cluster.cuh"
#include "device/copy_async.cuh"
#include "device/pipeline.cuh"
#include "device/registers.cuh"
#include "device/wgmma.cuh"
#include "element.h"
#include "kernels/map_place.cuh"
#include "kernels/tensor_map.h"
#include "kernels/tile_band.cuh"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda::mma_bulk {

namespace wgmma = device::wgmma;

// Warps of which a thread asks for copies: one alone takes as long for a step as small tiles are
// multiplied.
constexpr int kProducers = 2;

// kAAcross: neighbours lie along A's rows, across K, or else along K; kBAcross likewise B's
// columns.
template <class T_, int kIndex, int kStages_, bool kAAcross_, bool kBAcross_>
struct Tile {
  using T = T_;
  static constexpr int kM = kMmaBulkTiles[kIndex].m, kN = kMmaBulkTiles[kIndex].n;
  static constexpr int kK = 64;  // of a stage: a line of 128 bytes
  static constexpr int kStages = kStages_;
  static constexpr bool kAAcross = kAAcross_, kBAcross = kBAcross_;
  static constexpr int kCluster = kMmaBulkTiles[kIndex].cluster;  // blocks
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = kM / 64;                    // warpgroups, each 64 rows
  static constexpr int kMultipliers = kConsumers * kWarpgroup;  // threads
  static constexpr int kThreads = kWarpgroup + kMultipliers;
  static constexpr int kElements = kN / 2;    // of C a thread
  static constexpr int kBlock = 64 * kK * 2;  // bytes of 64 rows in a stage
  // The last steps of a chunk, which the second warpgroup multiplies when the first has asked for
  // all of its own: alone it is as fast as both, and the first ends its sums meanwhile. Of the
  // stages that it has not released another is left, so that the first goes on.
  static constexpr int kAlone = kConsumers == 2 ? kStages - 1 : 0;
  // Columns of B of a narrower box, and how many are brought.
  static constexpr int kNarrow = kBAcross ? mma_narrow_box(kN) : 0;
  static constexpr int kBCols = kBAcross ? (kN - kNarrow + 63) / 64 * 64 + kNarrow : kN;
  // What the kernel that adds sums of chunks has to know, which is one for all layouts that have
  // their sums in the same order.
  using Added = Tile<T, kIndex, kStages, false, (kNarrow > 0)>;

  static_assert(kM % 64 == 0 && kN % 32 == 0 && chained::kChunk % kK == 0);
  static_assert(kCluster <= 2, "each block copies half of B for both");
  static_assert(kNarrow == 0 || (kN == 96 && kNarrow == 32), "in_tile()");
};

// Boxes begin at multiples of their own width, so that no line of L2 is asked for twice: of a tile
// of 96 columns that begins in the middle of 64, the narrow one is the first. Its sums are the last
// all the same. Tells of 32 sums of a row, from sum `i` on, where in the tile they lie that begins
// at column `first`.
template <int kNarrow>
__device__ int in_tile(int i, int64_t first) {
  if (kNarrow == 0 || first % 64 == 0) return i;
  return i < 64 ? i + 32 : i - 64;
}

// The tiles of a cluster, one above the other, which share B. Bands are eight clusters of tiles of
// 128 rows, or four of 64, of which more run at a time.
template <class Tile>
struct ClusterTile {
  static constexpr int kM = Tile::kCluster * Tile::kM, kN = Tile::kN;
  static constexpr int kBand = Tile::kM / 16;
};

// The block in its cluster, and the tile that it has of its cluster's.
template <class Tile>
__device__ int rank() {
  return static_cast<int>(blockIdx.x % Tile::kCluster);
}

template <class Tile>
__device__ Position locate_own(const Bands& bands, int64_t index) {
  Position at = locate<ClusterTile<Tile>>(bands, index);
  at.row += rank<Tile>() * Tile::kM;
  return at;
}

// Of an operand: boxes of a tile's part, and of what the last tile has of it; or, where its
// neighbours lie across K, of 64 of them, and narrow ones.
struct Maps {
  CUtensorMap whole, last;
};

// What a kernel reads first comes first, since each line of its parameters is waited for.
struct Work {
  Bands bands;
  uint32_t ranges = 1;  // that K is cut in
  int64_t length = 0;   // of each, but for the last
  int64_t tiles = 0;    // of clusters
  Divisor by_tiles{};   // where K is cut
  Problem p;
  Maps a, b;
  // Where there are several chunks: of each block's threads, kInMemory; or, where K is cut, of each
  // chunk of each tile, all.
  float4* totals = nullptr;
};

// What a block works off at once: a tile's sums over a range of K.
struct Unit {
  Position tile;
  int64_t index;  // of the cluster's tile
  int64_t begin, end;
};

template <class Tile>
__device__ Unit locate_unit(const Work& work, int64_t index) {
  uint32_t range = 0;
  if (work.ranges > 1) {
    range = work.by_tiles.divide(static_cast<uint32_t>(index));
    index -= range * work.tiles;
  }
  const int64_t begin = range * work.length;
  return {locate_own<Tile>(work.bands, index), index, begin, min(begin + work.length, work.p.k)};
}

// An End says what becomes of a tile's sums:
//   End::kHeld                 sums that a thread's registers can hold, those of chunks before, too
//   End::Work                  more than Work, for the kernel
//   End::Smem                  a block's, in shared memory
//   End(work, smem)            of a thread that multiplies
//   place(p, matrix, index)    of a matrix in its tensor map
//   begin_tile(tile)           before its sums; of which tile, is told by a Position
//   end_chunk(tile, k, sums)   of one, which began at k
//   end_tile(tile, sums)       stores them
//   finish()                   before the block ends

// Of the sums of chunks before, where there are several: in registers, and in memory.
template <class Tile, class End>
inline constexpr int kKept = std::min(Tile::kElements, End::kHeld - Tile::kElements);
template <class Tile, class End>
inline constexpr int kInMemory = Tile::kElements - kKept<Tile, End>;

// What a thread that multiplies has of a chunk of a tile, where K is cut.
template <class Tile>
__device__ float4* sums_of_chunk(const Work& work, int64_t chunk, int64_t tile) {
  constexpr int kEach = Tile::kElements / 4 * Tile::kMultipliers;
  const int64_t block = (chunk * work.tiles + tile) * Tile::kCluster + rank<Tile>();
  return work.totals + block * kEach + (threadIdx.x - Tile::kWarpgroup);
}

template <class Tile, class End>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kM * Tile::kK * 2];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kBCols * Tile::kK * 2];
  typename End::Smem end;
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// Copies steps of K of an operand's part of a tile, kRows of A's rows or B's columns, of which
// `left` are in the matrix. Where kShare is 2 both blocks need it, and each asks for half, for
// both. What is not in the matrix is not asked for, as far as boxes go: the engine takes some 15
// clocks for each line that it fills with zeros. What then lies there is never stored. Across K,
// boxes are of kBox rows, and the last of kNarrow, if of any.
template <int kRows, bool kAcross, int kShare, int kNarrow = 0>
struct Part {
  static constexpr int kBox = 64;
  const Maps& maps;
  int first, left;
  MapPlace matrix;
  int share;  // which half is asked for

  // That come, whoever asks.
  __device__ int bytes() const {
    if (!kAcross) return min(left, kRows) * 128;
    int rows = 0;
    UNROLL
    for (int i = 0; i < kRows; i += kBox) {
      if (in_tile<kNarrow>(i, first) < left) rows += i < kRows - kNarrow ? kBox : kNarrow;
    }
    return rows * 128;
  }
  __device__ void copy(uint8_t* to, int k, uint64_t* full) const {
    if constexpr (kAcross) {
      UNROLL
      for (int i = 0; i < kRows; i += kBox) {
        const int row = in_tile<kNarrow>(i, first);
        if (i / kBox % kShare == share && row < left) {
          box(to + i * 128, i < kRows - kNarrow ? maps.whole : maps.last, first + row, k, full);
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
      device::copy_box_to(0b11, to, &map, at, full);
    } else {
      device::copy_box(to, &map, at, full);
    }
  }
};

// A thread of each producing warp; stages are shared out among them.
template <class Tile, class End>
__device__ void produce(const typename End::Work& work, Smem<Tile, End>& smem, int warp) {
  const Problem& p = work.p;
  device::Ring ring{.stages = Tile::kStages, .parity = 1};
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t begin = blockIdx.x / kCluster;
  for (int64_t index = begin; index < work.tiles * work.ranges; index += gridDim.x / kCluster) {
    const Unit unit = locate_unit<Tile>(work, index);
    const Position& tile = unit.tile;
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
    };
    const Part<Tile::kM, Tile::kAAcross, 1> a{work.a, tile.row, left(p.m, tile.row),
                                              End::place(p, p.a, tile.batch), 0};
    const Part<Tile::kN, Tile::kBAcross, Tile::kCluster, Tile::kNarrow> b{
        work.b, tile.col, left(p.n, tile.col), End::place(p, p.b, tile.batch), rank<Tile>()};
    const int bytes = a.bytes() + b.bytes();
    if (index == begin) device::wait_for_previous_kernel();
    for (int64_t k = unit.begin; k < unit.end; k += Tile::kK, ring.next()) {
      if (ring.stage % kProducers != warp) continue;
      uint64_t* full = &smem.full[ring.stage];
      device::wait(&smem.empty[ring.stage], ring.parity);
      device::arrive_expecting(full, bytes);
      a.copy(smem.a[ring.stage], static_cast<int>(k), full);
      b.copy(smem.b[ring.stage], static_cast<int>(k), full);
    }
  }
  if constexpr (kCluster > 1) {
    // No block may end before the other's last arrivals at its barriers are there.
    for (int i = 0; i < Tile::kStages; ++i, ring.next()) {
      if (ring.stage % kProducers == warp) device::wait(&smem.empty[ring.stage], ring.parity);
    }
  }
}

template <class Tile, class End>
__device__ void consume(const typename End::Work& work, Smem<Tile, End>& smem) {
  constexpr int kNone = -1, kKept = mma_bulk::kKept<Tile, End>;
  // Sums in memory: vectors of a block's, and how many are asked for at once; 32 would spill.
  constexpr int kEach = kInMemory<Tile, End> / 4 * Tile::kMultipliers;
  constexpr int kAtOnce = kInMemory<Tile, End> % 24 == 0 ? 24 : 16;
  constexpr int kTurn = 1 + Tile::kConsumers;  // a barrier; End has one for each warpgroup
  const int warpgroup = device::uniform(threadIdx.x / Tile::kWarpgroup) - 1;
  const int lane = threadIdx.x % 32;
  constexpr int kA16 = Tile::kAAcross ? 128 : 2;
  constexpr int kB16 = Tile::kBAcross ? 128 : 2, kWide = (Tile::kN - Tile::kNarrow) / 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const Problem& p = work.p;
  constexpr unsigned kCluster = Tile::kCluster;
  const auto release = [&](int stage) {
    if constexpr (kCluster == 1) {  // ranks are others', where a block shares nothing with them
      if (lane == 0) device::arrive(&smem.empty[stage]);
    } else {
      if (lane < Tile::kCluster) device::arrive_at(&smem.empty[stage], lane);
    }
  };
  End end(work, smem.end);
  device::Ring ring{.stages = Tile::kStages};
  device::wait_for_previous_kernel();
  const int64_t units = work.tiles * work.ranges;
  for (int64_t index = blockIdx.x / kCluster; index < units; index += gridDim.x / kCluster) {
    const Unit unit = locate_unit<Tile>(work, index);
    const Position& tile = unit.tile;
    if (work.ranges == 1) end.begin_tile(tile);
    float sums[Tile::kElements], kept[kKept + 1];
    for (int64_t chunk = unit.begin; chunk < unit.end; chunk += chained::kChunk) {
      UNROLL
      for (float& each : sums) each = 0;
      const auto length = static_cast<int>(min(unit.end - chunk, int64_t{chained::kChunk}));
      // Where chunks have a ring's steps, no warpgroup is a chunk ahead, and a turn is one chunk's.
      const bool by_turns = Tile::kAlone > 0 && length >= Tile::kStages * Tile::kK;
      const int turn = by_turns && warpgroup == 1
                           ? (ceil_div(length, Tile::kK) - Tile::kAlone) * Tile::kK
                           : kNone;
      int to_release = kNone;
      NO_UNROLL
      for (int k = 0; k < length; k += Tile::kK, ring.next()) {
        if (k == turn) device::sync_threads(kTurn, Tile::kMultipliers);
        device::wait(&smem.full[ring.stage], ring.parity);
        const uint64_t a =
            wgmma::describe_lines<Tile::kBlock>(smem.a[ring.stage] + warpgroup * Tile::kBlock);
        const uint64_t b = wgmma::describe_lines<Tile::kBlock>(smem.b[ring.stage]);
        const uint64_t b_narrow = wgmma::describe_lines<Tile::kNarrow * 128, 32>(
            smem.b[ring.stage] + (Tile::kN - Tile::kNarrow) * 128);
        wgmma::keep(sums);
        wgmma::fence();
        UNROLL
        for (int i = 0; i < Tile::kK / chained::kDepth; ++i) {
          wgmma::multiply_add<kBFloat16, Tile::kAAcross, Tile::kBAcross>(
              reinterpret_cast<float(&)[kWide]>(sums), a + i * kA16, b + i * kB16, true);
          if constexpr (Tile::kNarrow > 0) {
            wgmma::multiply_add<kBFloat16, Tile::kAAcross, Tile::kBAcross>(
                reinterpret_cast<float(&)[Tile::kNarrow / 2]>(sums[kWide]), a + i * kA16,
                b_narrow + i * Tile::kNarrow * 2, true);
          }
        }
        wgmma::commit();
        wgmma::wait<1>();
        if (to_release != kNone) release(to_release);
        to_release = ring.stage;
      }
      if (by_turns && warpgroup == 0) device::arrive_threads(kTurn, Tile::kMultipliers);
      // What is in memory of the sums before is asked for while others are added, or multiplied.
      float4* total = work.totals + int64_t{blockIdx.x} * kEach + (threadIdx.x - Tile::kWarpgroup);
      float4 before[kAtOnce / 4];
      const auto ask = [&](const float4* from) {
        UNROLL
        for (int i = 0; i < kAtOnce / 4; ++i) before[i] = __ldcg(from + i * Tile::kMultipliers);
      };
      if (kInMemory<Tile, End> > 0 && chunk > 0 && work.ranges == 1) ask(total);
      wgmma::wait<0>();
      wgmma::keep(sums);
      release(to_release);
      end.end_chunk(tile, chunk, sums);
      if (work.ranges > 1) {
        float4* to = sums_of_chunk<Tile>(work, chunk / chained::kChunk, unit.index);
        UNROLL
        for (int i = 0; i < Tile::kElements; i += 4, to += Tile::kMultipliers) {
          __stcg(to, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
        }
        continue;
      }
      if (chunk == 0) {
        UNROLL
        for (float& each : sums) each += 0.0f;  // tensor cores may leave -0
      }
      if (p.k <= chained::kChunk) continue;
      UNROLL
      for (int i = 0; i < kKept; ++i) {
        if (chunk > 0) sums[i] += kept[i];
        kept[i] = sums[i];
      }
      UNROLL
      for (int first = kKept; first < Tile::kElements; first += kAtOnce) {
        if (chunk > 0) {
          UNROLL
          for (int i = 0; i < kAtOnce; i += 4) {
            float* four = &sums[first + i];
            four[0] += before[i / 4].x, four[1] += before[i / 4].y;
            four[2] += before[i / 4].z, four[3] += before[i / 4].w;
          }
          if (first + kAtOnce < Tile::kElements) ask(total + kAtOnce / 4 * Tile::kMultipliers);
        }
        UNROLL
        for (int i = 0; i < kAtOnce; i += 4, total += Tile::kMultipliers) {
          const float* four = &sums[first + i];
          if (chunk + chained::kChunk < p.k) {
            __stcg(total, make_float4(four[0], four[1], four[2], four[3]));
          }
        }
      }
    }
    if (work.ranges == 1) end.end_tile(tile, sums);
  }
  end.finish();
}

template <class Tile, class End>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_bulk_kernel(const __grid_constant__ typename End::Work work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile, End>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    device::init_stages(Tile::kStages, smem.full, 1, smem.empty,
                        Tile::kConsumers * 4 * Tile::kCluster);
    device::publish_barriers();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    device::say_started();
    device::wait_for_cluster();
  }
  device::let_next_kernel_start();
  // nvcc puts the else first among the instructions: what asks for operands should wait for none.
  if (threadIdx.x >= Tile::kWarpgroup) {
    device::take_registers<224>();
    consume<Tile, End>(work, smem);
  } else {
    device::give_registers<56>();
    const int warp = device::uniform(threadIdx.x / 32);
    if (warp < kProducers && device::elect()) produce<Tile, End>(work, smem, warp);
  }
}

// Where K is cut: adds the chunks of a tile in order, from +0, and ends them. Its threads have the
// same elements as those that multiplied.
template <class Tile, class End>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_add_kernel(const __grid_constant__ typename End::Work work) {
  // Sums, of so many chunks, that are asked for before any is added.
  constexpr int kAtOnce = 16, kChunks = 4;
  __shared__ typename End::Smem smem;
  if (threadIdx.x < Tile::kWarpgroup) return device::give_registers<56>();
  device::take_registers<224>();
  const int64_t index = blockIdx.x / Tile::kCluster;
  const Position tile = locate_own<Tile>(work.bands, index);
  const auto chunks = static_cast<int>(ceil_div(work.p.k, chained::kChunk));
  const int64_t between = sums_of_chunk<Tile>(work, 1, 0) - sums_of_chunk<Tile>(work, 0, 0);
  const float4* from = sums_of_chunk<Tile>(work, 0, index);
  End end(work, smem);
  device::wait_for_previous_kernel();
  end.begin_tile(tile);
  float totals[Tile::kElements];
  UNROLL
  for (int first = 0; first < Tile::kElements; first += kAtOnce) {
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) totals[first + i] = 0;
    const float4* next = from + first / 4 * Tile::kMultipliers;
    NO_UNROLL
    for (int chunk = 0; chunk < chunks; chunk += kChunks) {
      float4 fours[kChunks][kAtOnce / 4];
      UNROLL
      for (int i = 0; i < kChunks; ++i, next += between) {
        UNROLL
        for (int j = 0; j < kAtOnce / 4 && chunk + i < chunks; ++j) {
          fours[i][j] = __ldcg(next + j * Tile::kMultipliers);
        }
      }
      UNROLL
      for (int i = 0; i < kChunks; ++i) {
        UNROLL
        for (int j = 0; j < kAtOnce / 4 && chunk + i < chunks; ++j) {
          float* four = &totals[first + j * 4];
          four[0] += fours[i][j].x, four[1] += fours[i][j].y;
          four[2] += fours[i][j].z, four[3] += fours[i][j].w;
        }
      }
    }
  }
  end.end_tile(tile, totals);
  end.finish();
}

// An operand that maps read: its row_stride is between A's rows or B's columns.
struct Lines {
  Batch batch;
  Matrix matrix;
};

// How many of so many blocks, each a multiprocessor's, start as neighbours in the same part of the
// GPU, where they share what they ask L2 for. Where not all run at once, or they leave half of the
// GPU to others, they are better off anywhere.
template <class Tile, class End>
unsigned neighbours(int64_t blocks, int64_t processors) {
  if (Tile::kCluster > 1) return Tile::kCluster;
  if (blocks > processors || 2 * blocks <= processors) return 1;
  static const int64_t fours =
      clusters_at_once(mma_bulk_kernel<Tile, End>, 4, Tile::kThreads, sizeof(Smem<Tile, End>));
  return ceil_div(blocks, 4) <= fours ? 4 : 2;
}

// Launches the kernel for work.p and what the rung has set of work, K in so many ranges of chunks
// if there is memory for their sums; false where the rung has not brought memory for totals, and
// there is none.
template <class Tile, template <class> class TileEnd>
bool launch(typename TileEnd<Tile>::Work work, int64_t ranges, const Lines& a, const Lines& b,
            const Context& context) {
  using End = TileEnd<Tile>;
  static_assert(sizeof(Smem<Tile, End>) <= kMaxSharedMemory);
  const Problem& p = work.p;
  const auto map = [&](const Lines& lines, int64_t outer, int rows, int line) {
    return tensor_map(lines.batch, lines.matrix, outer, p.k, rows, Tile::kK,
                      line == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                      DType::kFloat16);
  };
  const auto maps = [&](const Lines& lines, int64_t outer, int rows, bool across, int narrow) {
    if (across) {
      return Maps{map(lines, outer, 64, 64),
                  narrow > 0 ? map(lines, outer, narrow, narrow) : CUtensorMap{}};
    }
    const auto last = static_cast<int>(outer % rows);
    return Maps{map(lines, outer, rows, Tile::kK),
                map(lines, outer, last == 0 ? rows : last, Tile::kK)};
  };
  work.a = maps(a, p.m, Tile::kM, Tile::kAAcross, 0);
  work.b = maps(b, p.n, Tile::kN / Tile::kCluster, Tile::kBAcross, Tile::kNarrow);
  work.bands = Bands::of<ClusterTile<Tile>>(p);
  work.tiles = count_tiles(p, Tile::kCluster * Tile::kM, Tile::kN);
  work.length = p.k;
  const int64_t chunks = ceil_div(p.k, chained::kChunk);
  constexpr int64_t kBytes = Tile::kCluster * Tile::kMultipliers * int64_t{sizeof(float)};
  if (ranges > 1) {
    void* sums = context.allocate_if_there_is(chunks * work.tiles * Tile::kElements * kBytes);
    if (sums != nullptr) {
      work.totals = static_cast<float4*>(sums);
      work.ranges = static_cast<uint32_t>(ranges);
      work.length = ceil_div(chunks, ranges) * chained::kChunk;
      work.by_tiles = Divisor::of(static_cast<uint32_t>(work.tiles));
    }
  }
  const int64_t units = work.tiles * work.ranges;
  const auto clusters = std::min<int64_t>(units, context.processors / Tile::kCluster);
  if (chunks > 1 && kInMemory<Tile, End> > 0 && work.totals == nullptr) {
    void* totals = context.allocate_if_there_is(clusters * kInMemory<Tile, End> * kBytes);
    if (totals == nullptr) return false;
    work.totals = static_cast<float4*>(totals);
  }
  const auto kernel = mma_bulk_kernel<Tile, End>;
  constexpr size_t kSmem = sizeof(Smem<Tile, End>);
  allow_shared_memory(kernel, kSmem);
  const unsigned cluster = neighbours<Tile, End>(units, context.processors);
  const auto blocks = static_cast<unsigned>(ceil_div(clusters * Tile::kCluster, cluster)) * cluster;
  launch_clusters_after(kernel, cluster, blocks, Tile::kThreads, kSmem, context, work);
  if (work.ranges > 1) {
    using Added = typename Tile::Added;
    launch_after(mma_add_kernel<Added, TileEnd<Added>>,
                 static_cast<unsigned>(work.tiles * Tile::kCluster), Tile::kThreads, 0, context,
                 work);
  }
  return true;
}

}  // namespace tiled::cuda::mma_bulk
