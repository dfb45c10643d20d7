#pragma once
// Sums of several chunks, for mma_tma.cuh: added in order by who multiplies, or, where K is cut,
// by another kernel. An End is described there.

#include <algorithm>
#include <cstdint>

#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/mma/tile.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"

namespace tiled::cuda::mma_tma {

// Of the sums of chunks before, where there are several: in registers, in what a thread has of
// End's shared memory, and in memory.
template <class Tile, class End>
inline constexpr int kKept = std::min(Tile::kElements, End::kHeld - Tile::kElements);
template <class Tile, class End>
inline constexpr int kShared = std::min<int>(Tile::kElements - kKept<Tile, End>, End::kSpare);
template <class Tile, class End>
inline constexpr int kInMemory = Tile::kElements - kKept<Tile, End> - kShared<Tile, End>;
// Of those in memory a thread asks for so many at once; more would spill.
constexpr int kAsked = 16;

// Registers of a thread that multiplies, or adds, and of one that does not: what 168 for each are.
constexpr int kMultiplying = 232, kCopying = 40;

// Sums that a thread can keep in what its warp has of shared memory.
template <class Memory>
inline constexpr int kSpareIn = sizeof(Memory) / (32 * sizeof(float4)) * 4;

inline __device__ void add_four(float* sums, const float4& four) {
  sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
}

// Of the last `left` of them, which begin there.
template <class Tile>
__device__ void ask(const float4* from, int left, float4 (&asked)[kAsked / 4]) {
  UNROLL
  for (int i = 0; i < kAsked / 4; ++i) {
    if (i * 4 < left) asked[i] = __ldcg(from + i * Tile::kMultipliers);
  }
}

// Adds the totals of the chunks before, if there are any, to a chunk's sums, and keeps them if
// there are more to come: in memory those of which the first part has been asked for, and each
// further one is before the one at hand leaves.
template <class Tile, class End>
__device__ void add_before(const End& end, const Problem& p, int64_t chunk,
                           float (&kept)[kKept<Tile, End> + 1], float4 (&asked)[kAsked / 4],
                           float4* total, float (&sums)[Tile::kElements]) {
  constexpr int kKept = mma_tma::kKept<Tile, End>, kShared = mma_tma::kShared<Tile, End>;
  const bool more = chunk + mma_order::kChunk < p.k;
  UNROLL
  for (int i = 0; i < kKept; ++i) {
    if (chunk > 0) sums[i] += kept[i];
    kept[i] = sums[i];
  }
  const auto four_of = [&](int first) {
    return make_float4(sums[first], sums[first + 1], sums[first + 2], sums[first + 3]);
  };
  if constexpr (kShared > 0) {
    float4* spare = end.spare();
    UNROLL
    for (int i = 0; i < kShared; i += 4, spare += 32) {
      if (chunk > 0) add_four(&sums[kKept + i], *spare);
      if (more) *spare = four_of(kKept + i);
    }
    __syncwarp();  // before others of the warp write there
  }
  UNROLL
  for (int first = kKept + kShared; first < Tile::kElements; first += kAsked) {
    const int count = min(kAsked, Tile::kElements - first);
    if (chunk > 0) {
      UNROLL
      for (int i = 0; i < count; i += 4) add_four(&sums[first + i], asked[i / 4]);
      if (first + kAsked < Tile::kElements) {
        ask<Tile>(total + kAsked / 4 * Tile::kMultipliers, Tile::kElements - first - kAsked, asked);
      }
    }
    UNROLL
    for (int i = 0; i < count; i += 4, total += Tile::kMultipliers) {
      if (more) __stcg(total, four_of(first + i));
    }
  }
}

// What a thread that multiplies has of a chunk of a tile, where K is cut.
template <class Tile>
__device__ float4* sums_of_chunk(const Work& work, int64_t chunk, int64_t tile) {
  constexpr int kEach = Tile::kElements / 4 * Tile::kMultipliers;
  const int64_t block = (chunk * work.tiles + tile) * Tile::kCluster + rank<Tile>();
  return work.totals + block * kEach + (threadIdx.x - Tile::kWarpgroup);
}

// Where K is cut: stores a chunk's sums.
template <class Tile>
__device__ void store_chunk(const Work& work, int64_t chunk, int64_t tile,
                            const float (&sums)[Tile::kElements]) {
  float4* to = sums_of_chunk<Tile>(work, chunk, tile);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, to += Tile::kMultipliers) {
    __stcg(to, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
  }
}

// Likewise: adds the chunks of a tile in order, from +0, and ends them. Its threads have the same
// elements as those that multiplied.
template <class Tile, class End>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_split_k_reduce_kernel(const __grid_constant__ typename End::Work work) {
  // Sums, of so many chunks, that are asked for before any is added.
  constexpr int kAtOnce = Tile::kElements < 16 ? Tile::kElements : 16, kChunks = 4;
  __shared__ typename End::Smem smem;
  if (threadIdx.x < Tile::kWarpgroup) return ptx::setmaxnreg_dec<kCopying>();
  ptx::setmaxnreg_inc<kMultiplying>();
  const int64_t index = blockIdx.x / Tile::kCluster;
  const TileCoord tile = locate_own<Tile>(work.scheduler, index);
  const auto chunks = static_cast<int>(ceil_div(work.p.k, mma_order::kChunk));
  const int64_t between = sums_of_chunk<Tile>(work, 1, 0) - sums_of_chunk<Tile>(work, 0, 0);
  const float4* from = sums_of_chunk<Tile>(work, 0, index);
  End end(work, smem);
  ptx::pdl_wait();
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
          add_four(&totals[first + j * 4], fours[i][j]);
        }
      }
    }
  }
  end.end_tile(tile, totals);
  end.finish();
}

}  // namespace tiled::cuda::mma_tma
