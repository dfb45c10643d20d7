#pragma once
// f64_mma: the launch of a tile.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/f64/instance.h"
#include "kernels/f64/mainloop.cuh"
#include "kernels/f64/split_k_reduce.cuh"

namespace tiled::cuda::f64_mma {

// With the totals of several chunks.
template <class Tile>
inline constexpr size_t kSharedMemory = sizeof(Smem<Tile>) + sizeof(TileSums<Tile>);

// Without memory for the partial sums, K is not split. A complex B lies as in_place_b() describes
// it.
template <class Tile>
void run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  constexpr int64_t kBytes = sizeof(double);
  const int64_t chunks = ceil_div(p.k, kChunk);
  Params params{
      .p = p,
      .scheduler = TileScheduler::of<Tile>(p),
      .a_in_pairs = is_vector_aligned(p.batch, p.a, p.a.row_stride, p.a.col_stride, 2, kBytes),
      .b_in_pairs = !Tile::kComplex &&
                    is_vector_aligned(p.batch, p.b, p.b.col_stride, p.b.row_stride, 2, kBytes),
      .c_in_pairs = is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride, 2, kBytes),
      .k_splits = static_cast<int>(plan.k_splits),
      .totals_offset = offsetof(Smem<Tile>, stage),
      .partial_sums = nullptr,
      .signs_of_b = signs_of_b,
  };
  if (plan.k_splits > 1) {
    params.partial_sums =
        static_cast<double*>(context.allocate(chunks * p.batch.count * p.m * p.n * kBytes));
    if (params.partial_sums == nullptr) {
      Plan not_split = plan;
      not_split.k_splits = 1;
      return run<Tile>(p, not_split, signs_of_b, context);
    }
  }
  static_assert(kSharedMemory<Tile> <= kMaxSharedMemory);
  const bool one_chunk = ceil_div(chunks, plan.k_splits) == 1;
  if (!one_chunk) params.totals_offset = sizeof(Smem<Tile>);
  const size_t smem_bytes =
      std::max(sizeof(Smem<Tile>), params.totals_offset + sizeof(TileSums<Tile>));
  const auto kernel = f64_mma_kernel<Tile>;
  allow_shared_memory(kernel, kSharedMemory<Tile>);
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    const dim3 grid(blocks, static_cast<unsigned>(plan.k_splits));
    launch_pdl(kernel, grid, Tile::kThreads, smem_bytes, context, params, first);
  });
  if (plan.k_splits > 1) launch_split_k_reduce(p, params.partial_sums, context);
}

// Launches the plan's tile, one of the kCount tiles from kFirst on.
template <int kFirst, int kCount, bool kComplex>
void run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  with_tile<kCount>(std::max(plan.tile, kFirst) - kFirst, [&]<int kIndex>() {
    using ThisTile = Tile<kFirst + kIndex, kComplex>;
    static_assert(kFirst < kLargeTiles || kSharedMemory<ThisTile> <= 99 << 10,
                  "a block of compute capability 8.6 or 8.9 has at most 99 KiB of shared memory");
    run<ThisTile>(p, plan, signs_of_b, context);
    return true;
  });
}

}  // namespace tiled::cuda::f64_mma
