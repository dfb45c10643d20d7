#pragma once
// Adds sums of chunks that a rung on CUDA cores left in memory where K was cut.

#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/simt/store.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {

// The sums of a tile, as the threads that multiply hold them.
template <class Tile>
using Sums = Quad[Tile::kQuads][Tile::kMultipliers];

struct Ranges {
  Problem p;
  bool by_fours;  // stores_fours()
  int64_t tiles;
  const void* sums;  // Sums[chunk][tile]
};

// Adds in order and stores. kLanes threads read the sums of a quad, kAddEach at a time each, and
// the first one adds.
inline constexpr int kAddThreads = 256, kAddEach = 8;

template <class Tile, int kLanes>
__global__ void __launch_bounds__(kAddThreads)
    simt_split_k_reduce_kernel(const __grid_constant__ Ranges ranges) {
  constexpr int kQuads = kAddThreads / kLanes, kAtOnce = kLanes * kAddEach;
  constexpr int kInTile = Tile::kQuads * Tile::kMultipliers;
  static_assert(kInTile % kQuads == 0);
  const Problem& p = ranges.p;
  const int own = threadIdx.x % kQuads, lane = threadIdx.x / kQuads;
  const int64_t index = int64_t{blockIdx.x} * kQuads + own;
  const auto in_tile = static_cast<int>(index % kInTile);
  const TileIndex tile = tile_index<Tile>(p, index / kInTile);
  const Place<Tile> at(in_tile % Tile::kMultipliers, in_tile / Tile::kMultipliers);
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  const Bias bias(p, tile.col + at.col);
  const auto chunks = static_cast<int>(ceil_div(p.k, kChunk));
  const int64_t between = ranges.tiles * kInTile;
  const Quad* sums = static_cast<const Quad*>(ranges.sums) + index;
  ptx::pdl_wait();
  Quad total = Quad::empty();
  NO_UNROLL
  for (int first = 0; first < chunks; first += kAtOnce) {
    Quad mine[kAddEach];
    UNROLL
    for (int i = 0; i < kAddEach; ++i) {
      const int chunk = first + i * kLanes + lane;
      if (chunk < chunks) mine[i].swapped = __ldcg(&sums[chunk * between].swapped);
    }
    if constexpr (kLanes == 1) {
      UNROLL
      for (int i = 0; i < kAddEach; ++i) {
        if (first + i < chunks) total.add(mine[i]);
      }
    } else {
      __shared__ Quad smem[kAtOnce][kQuads];
      UNROLL
      for (int i = 0; i < kAddEach; ++i) {
        const int chunk = i * kLanes + lane;
        if (first + chunk < chunks) smem[chunk][own] = mine[i];
      }
      __syncthreads();
      if (lane == 0) {
        const int count = min(kAtOnce, chunks - first);
        for (int i = 0; i < count; ++i) total.add(smem[i][own]);
      }
      __syncthreads();
    }
  }
  if (lane != 0) return;
  store_quad(p, ranges.by_fours, c_offset, tile.row + at.row, tile.col + at.col, total, bias);
}

template <class Tile, int kLanes>
void run_add(const Ranges& ranges, const Context& context) {
  constexpr int kInTile = Tile::kQuads * Tile::kMultipliers;
  const auto blocks = static_cast<unsigned>(ranges.tiles * kInTile * kLanes / kAddThreads);
  const auto kernel = simt_split_k_reduce_kernel<Tile, kLanes>;
  launch_pdl(kernel, blocks, kAddThreads, 0, context, ranges);
}

// One thread a quad waits for many chunks too often, where there are few threads, too.
template <class Tile>
void add_ranges(const Ranges& ranges, const Context& context) {
  constexpr int kInTile = Tile::kQuads * Tile::kMultipliers;
  const bool few = ranges.tiles * kInTile < int64_t{4} * kAddThreads * context.sms;
  if (few && ranges.p.k > 2 * kAddEach * kChunk) return run_add<Tile, 16>(ranges, context);
  run_add<Tile, 1>(ranges, context);
}

}  // namespace tiled::cuda
