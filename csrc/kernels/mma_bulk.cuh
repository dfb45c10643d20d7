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
  static constexpr int kConsumers = kM / 64;  // warpgroups, each 64 rows
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kElements = kN / 2;    // of C a thread
  static constexpr int kBlock = 64 * kK * 2;  // bytes of 64 rows in a stage
  // Columns of B that are brought: across K they come in blocks.
  static constexpr int kBCols = kBAcross ? (kN + 63) / 64 * 64 : kN;

  static_assert(kM % 64 == 0 && kN % 32 == 0 && chained::kChunk % kK == 0);
  static_assert(kCluster <= 2, "each block copies half of B for both");
};

// The tiles of a cluster, one above the other, which share B. Bands are eight tiles of 128 rows, or
// four of 64, of which more run at a time.
template <class Tile>
struct ClusterTile {
  static constexpr int kM = Tile::kCluster * Tile::kM, kN = Tile::kN;
  static constexpr int kBand = Tile::kM / 16 / Tile::kCluster;
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
// neighbours lie across K, of 64 of them.
struct Maps {
  CUtensorMap whole, last;
};

struct Work {
  Bands bands;
  int64_t tiles = 0;  // of clusters
  Problem p;
  Maps a, b;
  float4* totals = nullptr;  // of each block's threads, kInMemory, where there are several chunks
};

// An End says what becomes of a tile's sums:
//   End::kHeld                 sums that a thread's registers can hold, those of chunks before, too
//   End::Work                  more than Work, for the kernel
//   End::Smem                  a block's, in shared memory
//   End(work, smem)            of a thread that multiplies
//   place(p, matrix, index)    of a matrix in its tensor map
//   begin_tile(tile)           before its sums; of which tile, is told by a Position
//   end_chunk(tile, k, sums)   of one, which began at k
//   end_tile(tile, sums)       stores them

// Of the sums of chunks before, where there are several: in registers, and in memory.
template <class Tile, class End>
inline constexpr int kKept = std::min(Tile::kElements, End::kHeld - Tile::kElements);
template <class Tile, class End>
inline constexpr int kInMemory = Tile::kElements - kKept<Tile, End>;

template <class Tile, class End>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kM * Tile::kK * 2];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kBCols * Tile::kK * 2];
  alignas(16) typename End::Smem end;
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// Copies steps of K of an operand's part of a tile, kRows of A's rows or B's columns, of which
// `left` are in the matrix. Where kShare is 2 both blocks need it, and each asks for half, for
// both. What is not in the matrix is not asked for, as far as boxes go: the engine takes some 15
// clocks for each line that it fills with zeros. What then lies there is never stored.
template <int kRows, bool kAcross, int kShare>
struct Part {
  static constexpr int kBlock = 64 * 128;  // bytes of a box across K
  const Maps& maps;
  int first, left;
  MapPlace matrix;
  int share;  // which half is asked for

  // That come, whoever asks.
  __device__ int bytes() const {
    if (kAcross) {
      return static_cast<int>(min(ceil_div(left, 64), ceil_div(kRows, 64))) * kBlock;
    }
    return min(left, kRows) * 128;
  }
  __device__ void copy(uint8_t* to, int k, uint64_t* full) const {
    if constexpr (kAcross) {
      UNROLL
      for (int i = 0; i < kRows; i += 64) {
        if (i / 64 % kShare == share && i < left) {
          box(to + i / 64 * kBlock, maps.whole, first + i, k, full);
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
  for (int64_t index = begin; index < work.tiles; index += gridDim.x / kCluster) {
    const Position tile = locate_own<Tile>(work.bands, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
    };
    const Part<Tile::kM, Tile::kAAcross, 1> a{work.a, tile.row, left(p.m, tile.row),
                                              End::place(p, p.a, tile.batch), 0};
    const Part<Tile::kN, Tile::kBAcross, Tile::kCluster> b{
        work.b, tile.col, left(p.n, tile.col), End::place(p, p.b, tile.batch), rank<Tile>()};
    const int bytes = a.bytes() + b.bytes();
    if (index == begin) device::wait_for_previous_kernel();
    for (int64_t k = 0; k < p.k; k += Tile::kK, ring.next()) {
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
  const int warpgroup = device::uniform(threadIdx.x / Tile::kWarpgroup) - 1;
  const int lane = threadIdx.x % 32;
  constexpr int kA16 = Tile::kAAcross ? 128 : 2, kB16 = Tile::kBAcross ? 128 : 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const Problem& p = work.p;
  constexpr unsigned kCluster = Tile::kCluster;
  const auto release = [&](int stage) {
    if (lane < Tile::kCluster) device::arrive_at(&smem.empty[stage], lane);
  };
  End end(work, smem.end);
  device::Ring ring{.stages = Tile::kStages};
  device::wait_for_previous_kernel();
  for (int64_t index = blockIdx.x / kCluster; index < work.tiles; index += gridDim.x / kCluster) {
    const Position tile = locate_own<Tile>(work.bands, index);
    end.begin_tile(tile);
    float sums[Tile::kElements], kept[kKept + 1];
    for (int64_t chunk = 0; chunk < p.k; chunk += chained::kChunk) {
      UNROLL
      for (float& each : sums) each = 0;
      const auto length = static_cast<int>(min(p.k - chunk, int64_t{chained::kChunk}));
      int to_release = kNone;
      NO_UNROLL
      for (int k = 0; k < length; k += Tile::kK, ring.next()) {
        device::wait(&smem.full[ring.stage], ring.parity);
        const uint64_t a =
            wgmma::describe_lines<Tile::kBlock>(smem.a[ring.stage] + warpgroup * Tile::kBlock);
        const uint64_t b = wgmma::describe_lines<Tile::kBlock>(smem.b[ring.stage]);
        wgmma::keep(sums);
        wgmma::fence();
        UNROLL
        for (int i = 0; i < Tile::kK / chained::kDepth; ++i) {
          wgmma::multiply_add<kBFloat16, Tile::kAAcross, Tile::kBAcross>(sums, a + i * kA16,
                                                                         b + i * kB16, true);
        }
        wgmma::commit();
        wgmma::wait<1>();
        if (to_release != kNone) release(to_release);
        to_release = ring.stage;
      }
      wgmma::wait<0>();
      wgmma::keep(sums);
      release(to_release);
      end.end_chunk(tile, chunk, sums);
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
      constexpr int kMultipliers = Tile::kConsumers * Tile::kWarpgroup, kAtOnce = 16;
      float4* total = work.totals +
                      int64_t{blockIdx.x} * (kInMemory<Tile, End> / 4 * kMultipliers) +
                      (threadIdx.x - Tile::kWarpgroup);
      UNROLL
      for (int first = kKept; first < Tile::kElements; first += kAtOnce) {
        float4 before[kAtOnce / 4];  // all asked for before any is waited for
        UNROLL
        for (int i = 0; i < kAtOnce / 4 && chunk > 0; ++i) {
          before[i] = __ldcg(total + i * kMultipliers);
        }
        UNROLL
        for (int i = 0; i < kAtOnce / 4; ++i, total += kMultipliers) {
          float* four = &sums[first + i * 4];
          if (chunk > 0) {
            four[0] += before[i].x, four[1] += before[i].y;
            four[2] += before[i].z, four[3] += before[i].w;
          }
          if (chunk + chained::kChunk < p.k) {
            __stcg(total, make_float4(four[0], four[1], four[2], four[3]));
          }
        }
      }
    }
    end.end_tile(tile, sums);
  }
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

// An operand that maps read: its row_stride is between A's rows or B's columns.
struct Lines {
  Batch batch;
  Matrix matrix;
};

// Launches the kernel for work.p and what the rung has set of work; false where the rung has not
// brought memory for totals, and there is none.
template <class Tile, class End>
bool launch(typename End::Work work, const Lines& a, const Lines& b, const Context& context) {
  static_assert(sizeof(Smem<Tile, End>) <= kMaxSharedMemory);
  const Problem& p = work.p;
  const auto map = [&](const Lines& lines, int64_t outer, int rows) {
    return tensor_map(lines.batch, lines.matrix, outer, p.k, rows, Tile::kK,
                      CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat16);
  };
  const auto maps = [&](const Lines& lines, int64_t outer, int rows, bool across) {
    if (across) return Maps{map(lines, outer, 64), {}};
    const auto last = static_cast<int>(outer % rows);
    return Maps{map(lines, outer, rows), map(lines, outer, last == 0 ? rows : last)};
  };
  work.a = maps(a, p.m, Tile::kM, Tile::kAAcross);
  work.b = maps(b, p.n, Tile::kN / Tile::kCluster, Tile::kBAcross);
  work.bands = Bands::of<ClusterTile<Tile>>(p);
  work.tiles = count_tiles(p, Tile::kCluster * Tile::kM, Tile::kN);
  const auto blocks = static_cast<unsigned>(
      Tile::kCluster * std::min<int64_t>(work.tiles, context.processors / Tile::kCluster));
  if (p.k > chained::kChunk && kInMemory<Tile, End> > 0 && work.totals == nullptr) {
    const int64_t bytes = int64_t{blocks} * Tile::kConsumers * Tile::kWarpgroup *
                          kInMemory<Tile, End> * int64_t{sizeof(float)};
    work.totals = static_cast<float4*>(context.allocate_if_there_is(bytes));
    if (work.totals == nullptr) return false;
  }
  const auto kernel = mma_bulk_kernel<Tile, End>;
  allow_shared_memory(kernel, sizeof(Smem<Tile, End>));
  launch_clusters_after(kernel, Tile::kCluster, blocks, Tile::kThreads, sizeof(Smem<Tile, End>),
                        context, work);
  return true;
}

}  // namespace tiled::cuda::mma_bulk
