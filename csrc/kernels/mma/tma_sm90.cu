// mma_tma: products of 16-bit floats by TMA and wgmma, persistent and warp-specialized.
//
// Idea:  TMA loads stages of 64 of K into shared memory, from which wgmma reads both operands,
//        K-major or MN-major. Two elected producer threads issue the loads, four if tiles are
//        narrow, and go on to the next work tile early. Each consumer warpgroup multiplies 64 rows
//        of the tile by all its columns. If there are two, the second multiplies the last steps
//        of a chunk after the first has issued all of its own (ping-pong), so that one multiplies
//        while the other runs its epilogue.
//
//        Pairs of blocks form clusters for the largest tiles, and for smaller ones with rows that
//        are not aligned to cache lines: the blocks share B, and each loads half of it into both.
//        The scheduler's order lets L2 merge the loads of blocks that run together, which it does
//        only for loads without a cache policy.
//
//        Epilogues are applied in registers. Results go through shared memory, so that C is written
//        in whole sectors; the largest tiles are stored by TMA, while the next tile is multiplied.
//
//        A small C has narrow tiles, and K splits at chunks; a second kernel adds the partial sums
//        of chunks in order. Operands with rows that are not 16-byte aligned are copied first. A
//        and B are swapped for few columns of very many rows.
//
// Limit: power, for large products. For few tiles, the latency of a step's four wgmmas: each
//        waits for the one before, however narrow it is; and K splits at chunks only.
//        Nothing is multiplied during the last epilogue of a block, nor during any of a tile with
//        one consumer warpgroup.
//
// Next:  tiles of odd widths; activations that overlap other products.
//
//   producers                        consumers, a warpgroup for 64 rows
//
//   wait empty[s]  <-------------+
//   tma_load A, B into stage s   |
//     (half of B, in a cluster)  |
//     -> full[s], of both blocks-|-> wait full[s]
//   next stage                   |   wgmma x 4 of stage s
//                                |   wait for the wgmmas of stage s - 1
//                                +-- -> empty[s - 1], of both blocks
//                                    next stage; the second of two warpgroups waits before its
//                                    last steps until the first has issued all of its own
//
//   stages of the next tile          a chunk ends: the total of the chunks before it, kept in
//                                    registers, shared memory and L2, is added; or, if K is
//                                    split, the partial sums are stored
//                                    a tile ends: epilogue -> shared memory -> C
//
// tma_kernel.cuh has the kernel, tma_epilogue.cuh its epilogue, tma_launch.cuh its launch.

#include <iterator>
#include <optional>

#include "core/plan.h"
#include "kernels/common/dispatch.h"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/plan.h"
#include "kernels/mma/tma_instance.h"

namespace tiled::cuda {

bool launch_mma_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  const Problem own = mma_tma_swaps_ab(p, context.sms) ? swap_ab(p) : p;
  const std::optional<Problem> aligned = align_operands(own, context);
  if (!aligned) return false;
  bool launched = false;
  with_16bit_type(p.dtype, [&]<class T>() {
    launched = with_tile<std::size(h200::kMmaTmaTiles)>(plan.tile, [&]<int kIndex>() {
      return run_mma_tma_tile<T, kIndex>(*aligned, plan.k_splits, context);
    });
  });
  return launched;
}

}  // namespace tiled::cuda
