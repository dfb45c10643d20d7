// Softmax, its logarithm, and logsumexp of rows.
//
// Idea:  A row stays in the registers of the warps that share it (row.cuh), and is read from memory
//        once. Exponentials replace its elements, unless the logarithm is wanted.
// Limit: memory; and of few rows the latency of two exchanges. Rows of more than 64 chunks do not
//        fit in the registers of a cluster, and are read three times, mostly from L2.

#include <cstdint>

#include "kernels/rows/launch.h"
#include "kernels/rows/row.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

template <typename T, class Scope>
__global__ void __launch_bounds__(Scope::kThreads)
    softmax_kernel(const RowsProblem p, const Division division) {
  using A = accumulator_t<T>;
  constexpr int kRows = Scope::kRows, kSteps = Scope::kSteps;
  __shared__ typename Scope::template Smem<A> smem;
  Scope scope(division, smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  if (!scope.warp_has_rows(division)) return;
  const bool is_log = p.op == RowsOp::kLogSoftmax;
  const auto row = [&](const Rows& x, int r) { return scope.template row<T>(division, x, r); };

  A x[kRows][kSteps][kVector], m[kRows], sums[kRows][1];
  const auto load = [&](int64_t chunk) {
    load_rows([&](int r) { return row(p.x, r); }, scope.element(chunk), A(-INFINITY), x);
  };
  UNROLL
  for (A& each : m) each = -INFINITY;
  scope.for_chunks([&](int64_t chunk) {
    load(chunk);
    for_elements<kRows, kSteps>(
        scope.count(chunk), [&](int r, int step, int i) { m[r] = max_of(m[r], x[r][step][i]); });
  });
  scope.max_of_rows(smem, m);
  // Past the row's end x is -Inf, which adds 0; or NaN if m is Inf, but then an element adds NaN,
  // too.
  scope.template sum<1>(
      smem,
      [&](int64_t chunk, auto& parts) {
        if (!Scope::kIsHeld) load(chunk);
        for_elements<kRows, kSteps>(scope.count(chunk), [&](int r, int step, int i) {
          const A e = order::exp_of(x[r][step][i] - m[r]);
          if (!is_log) x[r][step][i] = e;
          parts[r][0][i] += e;
        });
      },
      sums);

  // A lane computes what belongs to one of the rows.
  A sum_of_lane = sums[0][0];
  UNROLL
  for (int r = 1; r < kRows; ++r) {
    if (lane_index() % kRows == r) sum_of_lane = sums[r][0];
  }
  const A by_of_lane = p.op == RowsOp::kSoftmax ? A(1) / sum_of_lane : order::log_of(sum_of_lane);

  UNROLL
  for (int r = 0; r < kRows; ++r) {
    const A by = __shfl_sync(~0u, by_of_lane, r, Scope::kLanes);
    if (p.op == RowsOp::kLogSumExp) {
      const A result = order::logsumexp(m[r], by);
      if (scope.is_first_lane() && scope.first_row + r < division.rows) {
        static_cast<T*>(p.out)[scope.first_row + r] = narrow<T>(result);
      }
      continue;
    }
    const Row<T> out = row({p.out, p.columns}, r);
    scope.for_chunks([&](int64_t chunk) {
      if (!Scope::kIsHeld) load(chunk);
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (step * order::kParts >= scope.count(chunk)) break;
        A y[kVector];
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          const A element = x[r][step][i];
          y[i] = is_log           ? (element - m[r]) - by
                 : Scope::kIsHeld ? element * by
                                  : order::exp_of(element - m[r]) * by;
        }
        out.store(scope.element(chunk, step), y);
      }
    });
  }
}

template <typename T>
void launch(const RowsProblem& p, const Context& context) {
  const bool is_vectorized =
      rows::is_vectorized<T>(p.x, p.columns) && rows::is_vectorized<T>({p.out, 0}, p.columns);
  for_rows(p.rows, p.columns, is_vectorized, false, context,
           [&]<class Scope>(unsigned blocks, unsigned cluster, int threads, const Division& d) {
             launch_clusters_pdl(softmax_kernel<T, Scope>, cluster, blocks, threads, 0, context, p,
                                 d);
           });
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_softmax(const RowsProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
