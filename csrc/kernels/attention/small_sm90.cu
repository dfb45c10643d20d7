// Attention in float32 for short sequences, in one launch and without a workspace.
//
// Idea:  A block is one warpgroup with 64 queries of one head. It splits its queries, and each tile
//        of keys and values, from global to shared memory itself, and has no pipeline: while it
//        waits for memory, other blocks of the SM compute.
// Limit: latency, and keys and values are split once for each 64 queries.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::attention {
namespace {

constexpr int kThreads = 128;

template <int kBlocks>
struct Smem {
  alignas(1024) Boxes<kBlocks> q, k, v;
  KeyScales key_scales;
  ValueScales value_scales;
};

struct Params : QueryParams {
  RowReader k, v;
};

// Waits for the rows that the warp has staged.
__device__ void wait_for_rows() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
}

template <int kBlocks, bool kHasMask>
__global__ void __launch_bounds__(kThreads, kBlocks == 1 ? 3 : 2)
    small_attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<kBlocks>&>(dynamic_smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const Work work(params, kRows);
  const int tiles = Work::key_tiles(params.p, work.first + kRows);
  Queries<kBlocks, kHasMask> queries(params, work, work.first);
  const float* k = params.k.matrix(work.kv_matrix);
  const float* v = params.v.matrix(work.kv_matrix);
  stage_rows<kBlocks>(params.q, params.q.matrix(work.matrix), work.first, smem.q);
  stage_rows<kBlocks>(params.k, k, 0, smem.k);
  stage_rows<kBlocks>(params.v, v, 0, smem.v);
  wait_for_rows();
  auto query_scaler = queries.scaler();
  split_staged<kBlocks>(smem.q, query_scaler);
  NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile * kRows, next = first + kRows;
    wait_for_rows();
    KeyScaler key_scaler{smem.key_scales};
    split_staged<kBlocks>(smem.k, key_scaler);
    ValueScaler value_scaler{smem.value_scales, params.v.rows - first};
    split_staged<kBlocks>(smem.v, value_scaler);
    ptx::fence_proxy_async();
    __syncthreads();
    Scores scores;
    Fragments p;
    float of_tile[kBlocks * 32];
    multiply_keys<kBlocks>(smem.q, smem.k, scores);
    finish(scores);
    __syncthreads();  // all warps have multiplied the keys
    if (tile + 1 < tiles) stage_rows<kBlocks>(params.k, k, next, smem.k);
    const TileSums sums = queries.softmax(smem.key_scales, smem.value_scales, first, scores, p);
    multiply_values<kBlocks>(p, smem.v, of_tile);
    finish(of_tile);
    __syncthreads();
    if (tile + 1 < tiles) stage_rows<kBlocks>(params.v, v, next, smem.v);
    queries.join(sums, of_tile);
  }
  queries.store();
}

template <int kBlocks, bool kHasMask>
void launch_kernel(const AttentionProblem& p, const Context& context) {
  const Params params{QueryParams(p, kRows), RowReader(p.k, p.kv_heads, p.keys, p.head_size),
                      RowReader(p.v, p.kv_heads, p.keys, p.value_size)};
  constexpr size_t kSmem = sizeof(Smem<kBlocks>);
  const auto kernel = small_attention_kernel<kBlocks, kHasMask>;
  allow_shared_memory(kernel, kSmem);
  const int64_t blocks = p.batch * p.heads * params.query_tiles;
  launch_pdl(kernel, static_cast<unsigned>(blocks), kThreads, kSmem, context, params);
}

}  // namespace

void launch_small(const AttentionProblem& p, const Context& context) {
  const bool has_mask = p.mask_kind != MaskKind::kNone;
  if (std::max(p.head_size, p.value_size) <= 64) {
    has_mask ? launch_kernel<1, true>(p, context) : launch_kernel<1, false>(p, context);
  } else {
    has_mask ? launch_kernel<2, true>(p, context) : launch_kernel<2, false>(p, context);
  }
}

}  // namespace tiled::cuda::attention
