#include "kernels/grouped/launch.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "core/order_fp16x3.h"
#include "kernels/common/group_tiles.h"
#include "kernels/fp16x3/grouped.h"
#include "kernels/fp16x3/plan.h"

namespace tiled::cuda {
namespace {

// The batched product that the groups would be if all had as many rows.
Problem equal_groups(const Problem& p) {
  Problem equal = p;
  equal.groups = {};
  equal.m = ceil_div(p.m, p.batch.count);
  equal.a.batch_stride[0] = equal.m * p.a.row_stride;
  equal.c.batch_stride[0] = equal.m * p.c.row_stride;
  return equal;
}

// The kernel with the fewest cycles for equal groups.
bool launch_fp16x3(const Problem& p, const Context& context) {
  if (p.groups.side != GroupedSide::kM) return launch_grouped_fp16x3(p, context);
  const Problem equal = equal_groups(p);
  const double cycles = fp16x3_wgmma_plan(equal, context.sms).cycles;
  const auto never = std::numeric_limits<double>::infinity();
  Plan direct{.cycles = never}, rows{.cycles = never};
  if (p.k <= h200::kFp16x3DirectMostK) direct = fp16x3_direct_plan(equal, context.sms);
  if (p.k <= h200::kFp16x3RowsMostK && equal.m > p.n && fp16x3_rows_accepts(equal)) {
    rows = fp16x3_rows_plan(equal, context.sms);
  }
  if (direct.cycles < std::min(rows.cycles, cycles)) {
    return launch_grouped_fp16x3_direct(p, direct, context);
  }
  if (rows.cycles < cycles) return launch_grouped_fp16x3_rows(p, rows, context);
  return launch_grouped_fp16x3(p, context);
}

// Returns whether mma_sync computes the groups in one short wave, without a list: mma_tma would
// take no less time, and a second launch.
bool suits_mma_sync(const Problem& p, const Context& context) {
  constexpr int64_t kTile = 64, kMostK = 256;
  return p.batch.count <= kMostUnlisted && p.k <= kMostK &&
         count_tiles(p, kTile, kTile) <= context.sms;
}

}  // namespace

bool launch_grouped(const Problem& p, const Context& context) {
  constexpr int64_t kAnyK = std::numeric_limits<int64_t>::max();
  if (is_16bit(p.dtype)) {
    const bool by_tma =
        context.on_hopper() && grouped_mma_tma_accepts(p) && !suits_mma_sync(p, context);
    return by_tma ? launch_grouped_mma_tma(p, context) : launch_grouped_mma_sync(p, context);
  }
  if (p.dtype == DType::kFloat64 || p.precision == Precision::kIeee || !context.on_hopper()) {
    return launch_grouped_chunked(p, context, kAnyK);
  }
  if (p.precision == Precision::kTf32) {
    fail(p.op, "precision \"tf32\" has no kernel for groups; choose \"fp32\", which loses nothing");
  }
  if (p.groups.side == GroupedSide::kK) {
    return launch_grouped_fp16x3(p, context) &&
           launch_grouped_chunked(p, context, fp16x3::kMinK - 1);
  }
  return p.k < fp16x3::kMinK ? launch_grouped_chunked(p, context, kAnyK)
                             : launch_fp16x3(p, context);
}

}  // namespace tiled::cuda
