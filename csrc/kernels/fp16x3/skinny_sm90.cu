// fp16x3_skinny: the long operand is split on the fly, in the registers that feed mma.sync.
//
// Idea: where one side of C is short, the other side's operand is nearly all that there is to read,
// and splitting it beforehand would triple the memory traffic. Here it is read once. A warpgroup
// loads a work tile's columns to shared memory as they are, stage by stage; each of its warps takes
// eight columns, splits them in registers by a running scale (running_scale.cuh), and multiplies
// them by mma.sync. Each block splits the short operand for itself in shared memory, a panel of up
// to 32 rows by a chunk of K.
//
// A complex B is read as it lies: its numbers are the elements of a stage, and a lane takes from
// each the two that its column of B' has (core/complex.h).
//
// Limit: memory bandwidth, up to 16 rows. With 32 rows shared memory has room for three stages
// only, and each warp reads the whole panel for eight columns.
//
// Next: wgmma, which reads the panel once for all columns (fused_sm90.cu).
//
//   all warps     panel: cp.async -> __syncthreads -> split in place -> __syncthreads
//   a warpgroup   wait for its cp.async of stage s
//                 named barrier: stage s has come, and all warps have read stage s - 1
//                 cp.async to stage s - 1;  split and multiply stage s
//   end of tile   named barrier: all warps agree whether a scale failed;  store the sums

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/fp16x3/complex_b.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/recomputed_counter.h"
#include "kernels/fp16x3/skinny_load.cuh"
#include "kernels/fp16x3/skinny_multiply.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace fp16x3_skinny {

template <int kRowTiles, bool kKMajor, bool kLongIsA, bool kComplex>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ OnTheFlyParams params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kRowTiles>*>(smem_bytes);
  using Stage = LongStage<kKMajor, kComplex>;
  constexpr int kStages = sizeof(smem.long_operand[0]) / Stage::kBytes;
  ptx::pdl_launch_dependents();
  const auto [first, end] = BlockTiles(params);
  const int warpgroup = threadIdx.x / Tile::kWarpgroup, barrier = warpgroup + 1;
  ptx::pdl_wait();
  const uint8_t* stages = smem.long_operand[warpgroup];
  LongLoader<kKMajor, kComplex> loader(params, stages);
  const ComplexColumn complex(params.signs_of_b, threadIdx.x / 4);
  RunningScale<4> column;
  int stage = 0;
  bool starts = true;  // the pipeline is empty
  unsigned next_panel_chunk = first / params.col_tiles;
  NO_UNROLL
  for (unsigned tile = first + warpgroup;;) {
    const unsigned panel_chunk = min(tile, end - 1) / params.col_tiles;
    auto begin_panel_chunk = [&] {
      __syncthreads();  // nobody reads the one before
      load_short(params, smem, PanelChunk(params, next_panel_chunk));
      __pipeline_commit();
    };
    // The panel's copies are committed before those of the long operand, so that waiting for the
    // panel does not wait for the long operand.
    if (next_panel_chunk <= panel_chunk) begin_panel_chunk();
    if (starts) {
      loader.begin(params, tile, end);
      stage = 0;
      NO_UNROLL
      for (int i = 0; i < kStages - 1; ++i) {
        loader.load(params, end, i);
        __pipeline_commit();
      }
    }
    // All warpgroups of the block take part in every panel chunk, also in those in which they have
    // no tile.
    for (int newer = starts ? kStages - 1 : 0; next_panel_chunk <= panel_chunk; newer = 0) {
      __pipeline_wait_prior(newer);
      __syncthreads();
      split_short(smem);
      __syncthreads();
      if (++next_panel_chunk <= panel_chunk) begin_panel_chunk();
    }
    if (tile >= end) break;
    Accumulators<kRowTiles> acc;
    acc.clear();
    const ShortFragment* short_operand = smem.short_operand[0];
    NO_UNROLL
    for (int left = PanelChunk(params, panel_chunk).length; left > 0; left -= kStageK) {
      __pipeline_wait_prior(kStages - 2);
      // This stage has come, and all warps have read the last one, which is filled next.
      ptx::named_barrier_sync(barrier, Tile::kWarpgroup);
      loader.load(params, end, (stage == 0 ? kStages : stage) - 1);
      __pipeline_commit();
      multiply<kRowTiles, kKMajor, kLongIsA, kComplex>(stages + stage * Stage::kBytes,
                                                       short_operand, complex, column, acc);
      stage = stage == kStages - 1 ? 0 : stage + 1;
      short_operand += kK16s * kRowTiles;
    }
    starts = ptx::named_barrier_sync_or(barrier, Tile::kWarpgroup, column.failed());
    if (starts) {  // the tile is multiplied a second time, from its first stage
      column.restart();
      __pipeline_wait_prior(0);
      ptx::named_barrier_sync(barrier, Tile::kWarpgroup);
      continue;
    }
    store_sums(params, smem, tile, column, acc);
    column = {};
    tile += Tile::kWarpgroups;
  }
}

namespace {

template <int kRowTiles>
auto choose_kernel(const OnTheFlyParams& params) {
  if (params.b_is_complex) {
    return params.long_k_major ? fp16x3_skinny_kernel<kRowTiles, true, false, true>
                               : fp16x3_skinny_kernel<kRowTiles, false, false, true>;
  }
  if (params.long_k_major) {
    return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, true, true, false>
                            : fp16x3_skinny_kernel<kRowTiles, true, false, false>;
  }
  return params.long_is_a ? fp16x3_skinny_kernel<kRowTiles, false, true, false>
                          : fp16x3_skinny_kernel<kRowTiles, false, false, false>;
}

void run(OnTheFlyParams& params, const Context& context) {
  const bool one_row_tile = params.short_count <= 16;
  const auto kernel = one_row_tile ? choose_kernel<1>(params) : choose_kernel<2>(params);
  const size_t smem_bytes = one_row_tile ? sizeof(Smem<1>) : sizeof(Smem<2>);
  allow_shared_memory(kernel, smem_bytes);
  run_on_the_fly(params, Tile::kWarpgroups, context, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, params);
  });
}

}  // namespace
}  // namespace fp16x3_skinny

namespace {

// Where memory is short, sub-problems share a smaller workspace for their sums.
template <class ParamsOf>
bool launch_skinny(const Problem& p, const Context& context, const ParamsOf& params_of) {
  const RecomputedCounter counter(context);
  if (counter.lacks_memory()) return false;
  const auto bytes = [&](const Problem& part) { return partial_sums_bytes(params_of(part)); };
  const auto run = [&](const Problem& part, void* workspace) {
    OnTheFlyParams params = params_of(part);
    params.partial_sums = static_cast<float*>(workspace);
    params.recomputed = counter.on_gpu();
    fp16x3_skinny::run(params, context);
  };
  if (!run_sub_problems(p, context, kLeastSumsBytes, bytes, run)) return false;
  counter.read();
  return true;
}

OnTheFlyParams params_of_tiles(const Problem& p) {
  using fp16x3_skinny::Tile;
  return on_the_fly_params(p, Tile::kCols, Tile::kMaxRows, kMaxSumsBytes);
}

}  // namespace

bool launch_fp16x3_skinny(const Problem& p, const Plan&, const Context& context) {
  return launch_skinny(p, context, params_of_tiles);
}

bool launch_fp16x3_skinny_complex(const Problem& p, const Plan&, const ComplexB& b,
                                  const Context& context) {
  return launch_skinny(p, context, [&](const Problem& part) {
    OnTheFlyParams params = params_of_tiles(part);
    params.b_is_complex = true;
    params.signs_of_b = b.signs;
    const auto [inner, outer] = std::minmax(part.b.row_stride, part.b.col_stride);
    params.long_vectorized = is_vector_aligned(part.batch, part.b, inner, 2 * outer, 4);
    return params;
  });
}

}  // namespace tiled::cuda
