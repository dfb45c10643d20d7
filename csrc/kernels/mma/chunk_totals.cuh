#pragma once
// The running total of a tile's chunks, which a consumer thread keeps while it multiplies the next
// chunk: as much of it as fits in registers, then in the epilogue's shared memory, then in the
// workspace, which L2 holds.

#include <algorithm>
#include <cstdint>

#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/mma/tile.cuh"

namespace tiled::cuda::mma_tma {

// Elements of a thread's total in each. Epilogue is described in mainloop.cuh.
template <class Tile, class Epilogue>
inline constexpr int kTotalInRegisters =
    std::min(Tile::kElements, Epilogue::kAccRegisters - Tile::kElements);
template <class Tile, class Epilogue>
inline constexpr int kTotalInShared =
    std::min<int>(Tile::kElements - kTotalInRegisters<Tile, Epilogue>, Epilogue::kSharedTotal);
template <class Tile, class Epilogue>
inline constexpr int kTotalInWorkspace =
    Tile::kElements - kTotalInRegisters<Tile, Epilogue> - kTotalInShared<Tile, Epilogue>;

// Elements that are loaded from the workspace ahead of their use; more would spill.
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

// Adds the total of the chunks before, if any, to the accumulators of the chunk that begins at
// `chunk`, and keeps the new total if more chunks follow. The first elements in the workspace have
// been prefetched; the next ones are prefetched before the current ones are stored.
template <class Tile, class Epilogue>
__device__ void add_earlier_chunks(const Epilogue& epilogue, const Problem& p, int64_t chunk,
                                   float (&total)[kTotalInRegisters<Tile, Epilogue> + 1],
                                   float4 (&prefetched)[kPrefetched / 4], float4* workspace,
                                   float (&acc)[Tile::kElements]) {
  constexpr int kInRegisters = kTotalInRegisters<Tile, Epilogue>;
  constexpr int kInShared = kTotalInShared<Tile, Epilogue>;
  const bool more = chunk + mma_order::kChunk < p.k;
  UNROLL
  for (int i = 0; i < kInRegisters; ++i) {
    if (chunk > 0) acc[i] += total[i];
    total[i] = acc[i];
  }
  const auto x4_of = [&](int first) {
    return make_float4(acc[first], acc[first + 1], acc[first + 2], acc[first + 3]);
  };
  if constexpr (kInShared > 0) {
    float4* shared = epilogue.shared_total();
    UNROLL
    for (int i = 0; i < kInShared; i += 4, shared += 32) {
      if (chunk > 0) add_x4(&acc[kInRegisters + i], *shared);
      if (more) *shared = x4_of(kInRegisters + i);
    }
    __syncwarp();  // other lanes write there next, in end_tile()
  }
  UNROLL
  for (int first = kInRegisters + kInShared; first < Tile::kElements; first += kPrefetched) {
    const int count = min(kPrefetched, Tile::kElements - first);
    if (chunk > 0) {
      UNROLL
      for (int i = 0; i < count; i += 4) add_x4(&acc[first + i], prefetched[i / 4]);
      if (first + kPrefetched < Tile::kElements) {
        prefetch_total<Tile>(workspace + kPrefetched / 4 * Tile::kConsumerThreads,
                             Tile::kElements - first - kPrefetched, prefetched);
      }
    }
    UNROLL
    for (int i = 0; i < count; i += 4, workspace += Tile::kConsumerThreads) {
      if (more) __stcg(workspace, x4_of(first + i));
    }
  }
}

}  // namespace tiled::cuda::mma_tma
