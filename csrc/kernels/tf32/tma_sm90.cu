// tf32_tma: float32 products with 11-bit significands, as one fp16 product.
//
// Idea:  TF32 and fp16 numbers both have significands of 11 bits. Tensor cores multiply fp16 at
//        twice the rate, but it has less range. So a first kernel scales rows of A and columns of B
//        by powers of two and rounds them to fp16, K-major (scale_sm90.cu). The main loop of
//        mma_tma multiplies those, and the epilogue descales each chunk. Elements for which
//        rounding may have lost too much become NaN; they are flagged, and fp16x3's kernel
//        recomputes them.
//
// Limit: that of mma_tma, after the scale kernel, which reads and rewrites both operands.
//
// Next:  a kernel for few rows that scales operands while it multiplies them.
//
//   scale kernel:      A, B  -> fp16 rows, inverse scales
//   mma_tma_kernel:    fp16 rows -> TMA -> wgmma -> acc (barriers: mma/tma_sm90.cu)
//                      a chunk ends:  acc * inverse scales, NaN where in doubt
//                      a tile ends:   NaNs -> recompute list; all else -> C
//   recompute kernel:  recompute list -> C

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "core/order_mma.h"
#include "core/order_tf32.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/mma/host_launch.h"
#include "kernels/mma/plan.h"
#include "kernels/tf32/epilogue.cuh"
#include "kernels/tf32/scale.h"

namespace tiled::cuda {
namespace {

// The buffers that the launches need besides the operands and C.
struct Buffers {
  ScaledOperand a, b;
  RecomputeList recompute;
  float4* totals;  // of finished chunks, where registers and shared memory do not suffice

  Buffers(const Problem& p, int tile_cols, const Context& context, Workspace& workspace)
      : a(scaled_operand(p.batch, p.a, p.m, p.k)),
        b(scaled_operand(p.batch, transposed(p.b), p.n, p.k)) {
    recompute = RecomputeList::take(workspace, p, tile_cols);
    for (ScaledOperand* x : {&a, &b}) {
      x->fp16 = workspace.take<uint16_t>(x->matrix_elements() * x->batch.count).data();
      x->inverse_scales = workspace.take<float>(x->matrix_groups() * x->batch.count).data();
    }
    constexpr int64_t kTotals = 128 * 256 / 4;  // float4s of the largest tile
    totals = workspace.take<float4>(p.k > mma_order::kChunk ? context.sms * kTotals : 0).data();
  }
};

template <int kIndex, int kStages>
void run_tile(const Problem& p, const Buffers& buffers, int64_t k_splits, const Context& context) {
  const auto& [a, b, recompute, totals] = buffers;
  using Tile = mma_tma::Tile<Half, kIndex, kStages, false, false>;
  const auto tma_operand = [](const ScaledOperand& x) {
    mma_tma::TmaOperand operand;
    operand.batch = {.rank = 1, .count = x.batch.count, .size = {x.batch.count}};
    operand.matrix = {.data = x.fp16,
                      .row_stride = x.pitch(),
                      .col_stride = 1,
                      .batch_stride = {x.matrix_elements()}};
    return operand;
  };
  tf32_tma::EpilogueParams params{};
  params.p = p;
  params.p.a = a.index, params.p.b = b.index;
  params.inverse_a = tf32_tma::InverseScales(a), params.inverse_b = tf32_tma::InverseScales(b);
  params.recompute = recompute;
  params.workspace = totals;
  params.steps = EpilogueSteps::of(p.epilogue);
  params.stores_from_registers = p.c.col_stride == 1 && !params.steps.more;
  params.vectorized_x2 = is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  params.vectorized_x4 =
      p.n % 4 == 0 && is_vector_aligned<float4>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  mma_tma::launch<Tile, tf32_tma::Epilogue>(params, k_splits, tma_operand(a), tma_operand(b),
                                            context);
}

// The two parts of a problem with more rows or columns than TMA's coordinates reach, or nullopt.
std::optional<std::pair<Problem, Problem>> split_for_tma(const Problem& p) {
  return std::max(p.m, p.n) > tf32::kMaxK ? split_in_two(p) : std::nullopt;
}

int64_t buffer_bytes(const Problem& p, int tile_cols, const Context& context) {
  if (const auto parts = split_for_tma(p)) {
    return std::max(buffer_bytes(parts->first, tile_cols, context),
                    buffer_bytes(parts->second, tile_cols, context));
  }
  return workspace_bytes([&](Workspace& workspace) { Buffers(p, tile_cols, context, workspace); });
}

void run(const Problem& p, const Plan& plan, uint8_t* workspace, const Context& context) {
  if (const auto parts = split_for_tma(p)) {  // they share the workspace, one after another
    run(parts->first, plan, workspace, context);
    return run(parts->second, plan, workspace, context);
  }
  Workspace memory(workspace);
  const Buffers buffers(p, h200::kMmaTmaTiles[plan.tile].n, context, memory);
  launch_scale(buffers.a, buffers.b, buffers.recompute.zeroed(p), context);
  with_tile<std::size(h200::kMmaTmaTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr int kStages = h200::kMmaTmaTiles[kIndex].tf32_stages;
    if constexpr (kStages == 0) {
      fail_no_tile("tf32_tma", kIndex);
    } else {
      run_tile<kIndex, kStages>(p, buffers, plan.k_splits, context);
    }
    return true;
  });
  launch_recompute(p, buffers.recompute, context);
}

}  // namespace

// Where memory is short, sub-problems share a smaller workspace. All of it is allocated before
// anything is launched.
bool launch_tf32_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Problem unprepared = p;
  unprepared.b_presplit = {};  // this kernel does not read it; without it n may be split, too
  const auto bytes = [&](const Problem& part) {
    return buffer_bytes(part, h200::kMmaTmaTiles[plan.tile].n, context);
  };
  return run_sub_problems(
      unprepared, context, 0, bytes,
      [&](const Problem& part, uint8_t* workspace) { run(part, plan, workspace, context); });
}

}  // namespace tiled::cuda
