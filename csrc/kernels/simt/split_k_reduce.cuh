#pragma once
// Split-K of simt_cp_async and simt_tma: blocks share K's chunks and write each chunk's sums to a
// workspace; this kernel adds them in order and applies the epilogue.

#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/simt/register_tile.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {

// The chunks of one K split: [begin, end), and the part of K that they cover.
struct ChunkRange {
  unsigned begin, end;
  int64_t k, length;
  __device__ ChunkRange(int64_t all_k, unsigned split, unsigned k_splits) {
    const auto chunks = static_cast<unsigned>(ceil_div(all_k, kChunk));
    begin = split * chunks / k_splits, end = (split + 1) * chunks / k_splits;
    k = int64_t{begin} * kChunk;
    length = min(all_k, int64_t{end} * kChunk) - k;
  }
};

struct SplitKReduceParams {
  Problem p;
  bool c_vectorized;
  int64_t tiles;
  const void* partial_sums;  // TileSums[chunk][tile]
};

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceAhead = 8;  // sums of chunks that a thread loads before it adds them

// A thread has a quad; or kLanes threads do, which load the sums of chunks in turn, and the first
// of them adds all.
template <class Tile, int kLanes>
__global__ void __launch_bounds__(kReduceThreads)
    simt_split_k_reduce_kernel(const __grid_constant__ SplitKReduceParams params) {
  constexpr int kBlockQuads = kReduceThreads / kLanes, kChunksAtOnce = kLanes * kReduceAhead;
  constexpr int kTileQuads = Tile::kQuads * Tile::kConsumers;
  static_assert(kTileQuads % kBlockQuads == 0);
  const Problem& p = params.p;
  const int quad = threadIdx.x % kBlockQuads, lane = threadIdx.x / kBlockQuads;
  const int64_t index = int64_t{blockIdx.x} * kBlockQuads + quad;
  const auto in_tile = static_cast<int>(index % kTileQuads);
  const TileIndex tile = tile_index<Tile>(p, index / kTileQuads);
  const QuadCoord<Tile> at(in_tile % Tile::kConsumers, in_tile / Tile::kConsumers);
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  const BiasX4 bias(p, tile.col + at.col);
  const auto chunks = static_cast<int>(ceil_div(p.k, kChunk));
  const int64_t chunk_stride = params.tiles * kTileQuads;
  const Quad* partial_sums = static_cast<const Quad*>(params.partial_sums) + index;
  ptx::pdl_wait();
  Quad total = Quad::identity();
  NO_UNROLL
  for (int first = 0; first < chunks; first += kChunksAtOnce) {
    Quad loaded[kReduceAhead];
    UNROLL
    for (int i = 0; i < kReduceAhead; ++i) {
      const int chunk = first + i * kLanes + lane;
      if (chunk < chunks) loaded[i].swapped = __ldcg(&partial_sums[chunk * chunk_stride].swapped);
    }
    if constexpr (kLanes == 1) {
      UNROLL
      for (int i = 0; i < kReduceAhead; ++i) {
        if (first + i < chunks) total.add(loaded[i]);
      }
    } else {
      __shared__ Quad smem[kChunksAtOnce][kBlockQuads];
      UNROLL
      for (int i = 0; i < kReduceAhead; ++i) {
        const int chunk = i * kLanes + lane;
        if (first + chunk < chunks) smem[chunk][quad] = loaded[i];
      }
      __syncthreads();
      if (lane == 0) {
        const int count = min(kChunksAtOnce, chunks - first);
        for (int i = 0; i < count; ++i) total.add(smem[i][quad]);
      }
      __syncthreads();
    }
  }
  if (lane != 0) return;
  store_quad(p, params.c_vectorized, c_offset, tile.row + at.row, tile.col + at.col, total, bias);
}

template <class Tile, int kLanes>
void launch_split_k_reduce_by(const SplitKReduceParams& params, const Context& context) {
  constexpr int kTileQuads = Tile::kQuads * Tile::kConsumers;
  const auto blocks = static_cast<unsigned>(params.tiles * kTileQuads * kLanes / kReduceThreads);
  const auto kernel = simt_split_k_reduce_kernel<Tile, kLanes>;
  launch_pdl(kernel, blocks, kReduceThreads, 0, context, params);
}

// With few quads and many chunks, one thread a quad would leave SMs idle and wait for one load
// after another; 16 threads a quad have more loads in flight.
template <class Tile>
void launch_split_k_reduce(const SplitKReduceParams& params, const Context& context) {
  constexpr int kTileQuads = Tile::kQuads * Tile::kConsumers;
  const bool few_quads = params.tiles * kTileQuads < int64_t{4} * kReduceThreads * context.sms;
  const bool many_chunks = params.p.k > 2 * kReduceAhead * kChunk;
  if (few_quads && many_chunks) return launch_split_k_reduce_by<Tile, 16>(params, context);
  launch_split_k_reduce_by<Tile, 1>(params, context);
}

}  // namespace tiled::cuda
