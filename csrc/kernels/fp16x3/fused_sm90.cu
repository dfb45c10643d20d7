// fp16x3_fused: the split of the long operand is fused into the kernel that multiplies by wgmma.
//
// Idea: a warp of fp16x3_skinny reads the whole panel of the short operand for eight columns, and
// with more rows shared memory cannot deliver that. So the split and the product go to different
// warps. Two splitter warpgroups split the long operand from shared memory to shared memory, and
// two multiplier warpgroups multiply it by a panel of up to 128 rows by wgmma, which reads the
// panel there once for all columns. The short operand is split beforehand (split_sm90.cu). Both
// come by TMA. Where a column's scale falls (running_scale.cuh), the splitters pass on the factor,
// by which the multipliers scale their sums.
//
// Limit: the latency of the splitters' instructions; then the bandwidth of shared memory, which
// wgmma alone uses for a large part of the time.
//
// Next: scales that fall without a second look at the stage; fewer instructions for an element.
//
//   one splitter   wait long_empty[l]   TMA of the long operand          -> long_full[l]
//   another        wait empty[s]        bulk copy of the short operand   -> full[s]
//   splitters      wait long_full[l], empty[s]
//                  split stage l into stage s                            -> full[s], long_empty[l]
//   multipliers    wait full[s]         scale sums, multiply stage s     -> empty[s]
//   end of tile    named barrier 1: all threads agree whether a scale failed

#include <algorithm>
#include <span>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/fused_load.cuh"
#include "kernels/fp16x3/fused_multiply.cuh"
#include "kernels/fp16x3/fused_split.cuh"
#include "kernels/fp16x3/recomputed_counter.h"
#include "kernels/fp16x3/split.h"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"

namespace tiled::cuda {
namespace fp16x3_fused {

template <bool kKMajor, bool kLongIsA, int kPanelRows>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_fused_kernel(const __grid_constant__ OnTheFlyParams params,
                        const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kPanelRows>*>(smem_bytes);
  ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) smem.init(params);
  __syncthreads();
  if (threadIdx.x < Tile::kSplitters) {
    ptx::setmaxnreg_dec<Panel<kPanelRows>::kSplitterRegisters>();
    split_tiles<kKMajor>(params, map, smem);
  } else {
    ptx::setmaxnreg_inc<Panel<kPanelRows>::kMultiplierRegisters>();
    ptx::pdl_wait();
    multiply_tiles<kLongIsA>(params, smem);
  }
}

namespace {

// Returns whether flagged elements are listed for the recompute kernel. Its launch takes about one
// microsecond, where nothing is flagged 2 % of such a product; the reduction would take a
// millisecond for one flagged row.
bool lists_flagged(const Problem& p) {
  constexpr double kMinProducts = 1u << 31;
  const auto rows = static_cast<double>(p.batch.count * p.m);
  return rows * static_cast<double>(p.n) * static_cast<double>(p.k) >= kMinProducts;
}

template <bool kKMajor>
CUtensorMap long_map(const OnTheFlyParams& params) {
  using Box = LongBox<kKMajor>;
  return tensor_map(params.p.batch, params.long_operand, params.long_count, params.p.k, Box::kCols,
                    Box::kK, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int kPanelRows>
void run(OnTheFlyParams& params, const Context& context) {
  const bool long_is_a = params.long_is_a;
  const auto kernel = params.long_k_major
                          ? (long_is_a ? fp16x3_fused_kernel<true, true, kPanelRows>
                                       : fp16x3_fused_kernel<true, false, kPanelRows>)
                          : (long_is_a ? fp16x3_fused_kernel<false, true, kPanelRows>
                                       : fp16x3_fused_kernel<false, false, kPanelRows>);
  constexpr int kSmemBytes = sizeof(Smem<kPanelRows>);
  allow_shared_memory(kernel, kSmemBytes);
  const CUtensorMap map = params.long_k_major ? long_map<true>(params) : long_map<false>(params);
  run_on_the_fly(params, 1, context, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kSmemBytes, context, params, map);
  });
}

}  // namespace
}  // namespace fp16x3_fused

bool launch_fp16x3_fused(const Problem& p, const Plan&, const Context& context) {
  using namespace fp16x3_fused;
  const RecomputedCounter counter(context);
  if (counter.lacks_memory()) return false;
  const bool few_rows = std::min(p.m, p.n) <= 64;
  OnTheFlyParams params = on_the_fly_params(p, Tile::kCols, few_rows ? 64 : 128, kMaxSumsBytes);
  params.recomputed = counter.on_gpu();
  const bool lists = lists_flagged(p);
  OperandToSplit short_operand{params.short_operand, p.batch, params.short_presplit};
  const auto take_buffers = [&](Workspace& workspace) {
    params.partial_sums =
        workspace.take<float>(partial_sums_bytes(params) / int64_t{sizeof(float)}).data();
    short_operand.take_presplit(workspace);
    if (lists) params.recompute = RecomputeList::take(workspace, p, RecomputeList::kCols);
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  take_buffers(workspace);
  params.short_presplit = short_operand.presplit;
  const auto zeroed = lists ? params.recompute.zeroed_with_flags(p) : std::span<int>{};
  launch_split({&short_operand, 1}, zeroed, context);
  few_rows ? run<64>(params, context) : run<128>(params, context);
  if (lists) launch_recompute(p, params.recompute, context);
  counter.read();
  return true;
}

}  // namespace tiled::cuda
