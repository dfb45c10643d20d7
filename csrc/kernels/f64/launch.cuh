#pragma once
// f64_mma: the launch of a tile.

#include <algorithm>
#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/f64/instance.h"
#include "kernels/f64/mainloop.cuh"
#include "kernels/f64/split_k_reduce.cuh"

namespace tiled::cuda::f64_mma {

// Without memory for the partial sums, or with too many tiles to count, K is not split. A complex B
// lies as in_place_b() describes it.
template <class Tile>
void run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  constexpr int64_t kBytes = sizeof(double);
  const int64_t chunks = ceil_div(p.k, kChunk), tiles = count_tiles(p, Tile::kM, Tile::kN);
  constexpr int64_t kMostTiles = int64_t{1} << 31;
  Params params{
      .p = p,
      .scheduler = TileScheduler::of<Tile>(p),
      .a_in_pairs = is_vector_aligned(p.batch, p.a, p.a.row_stride, p.a.col_stride, 2, kBytes),
      .b_in_pairs = !Tile::kComplex &&
                    is_vector_aligned(p.batch, p.b, p.b.col_stride, p.b.row_stride, 2, kBytes),
      .c_in_pairs = is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride, 2, kBytes),
      .k_splits = static_cast<int>(plan.k_splits),
      .tiles = FastDivmod::of(static_cast<uint32_t>(std::min(tiles, kMostTiles))),
      .work_tiles = tiles * plan.k_splits,
      .partial_sums = nullptr,
      .signs_of_b = signs_of_b,
  };
  if (plan.k_splits > 1) {
    if (tiles <= kMostTiles) {
      params.partial_sums =
          static_cast<double*>(context.allocate(chunks * p.batch.count * p.m * p.n * kBytes));
    }
    if (params.partial_sums == nullptr) {
      Plan not_split = plan;
      not_split.k_splits = 1;
      return run<Tile>(p, not_split, signs_of_b, context);
    }
  }
  static_assert(sizeof(Smem<Tile>) <= kMaxSharedMemory);
  const auto kernel = f64_mma_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  const int64_t blocks = std::min(params.work_tiles, int64_t{Tile::kBlocks} * context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem<Tile>), context,
             params);
  if (plan.k_splits > 1) launch_split_k_reduce(p, params.partial_sums, context);
}

// Launches the plan's tile, one of the kCount tiles from kFirst on.
template <int kFirst, int kCount, bool kComplex>
void run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  with_tile<kCount>(std::max(plan.tile, kFirst) - kFirst, [&]<int kIndex>() {
    using ThisTile = Tile<kFirst + kIndex, kComplex>;
    static_assert(kFirst < kLargeTiles || sizeof(Smem<ThisTile>) <= 99 << 10,
                  "a block of compute capability 8.6 or 8.9 has at most 99 KiB of shared memory");
    run<ThisTile>(p, plan, signs_of_b, context);
    return true;
  });
}

}  // namespace tiled::cuda::f64_mma
