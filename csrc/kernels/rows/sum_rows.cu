// Sums and means of rows.
//
// Idea:  A warp adds a short row, or a chunk of a long one, of which it loads all before it adds
//        (row.cuh).
// Limit: memory; and of few rows, latency.

#include <cstdint>

#include "kernels/rows/launch.h"
#include "kernels/rows/row.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

template <typename T, class Scope>
__global__ void __launch_bounds__(Scope::kThreads)
    sum_rows_kernel(const RowsProblem p, const Division division) {
  using A = accumulator_t<T>;
  constexpr int kRows = Scope::kRows, kSteps = Scope::kSteps;
  __shared__ typename Scope::template Smem<A> smem;
  Scope scope(division, smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  if (!scope.warp_has_rows(division)) return;
  A sums[kRows][1];
  scope.template sum<0>(
      smem,
      [&](int64_t chunk, auto& parts) {
        A x[kRows][kSteps][kVector];
        load_rows([&](int r) { return scope.template row<T>(division, p.x, r); },
                  scope.element(chunk), A(0), x);
        for_elements<kRows, kSteps>(
            scope.count(chunk), [&](int r, int step, int i) { parts[r][0][i] += x[r][step][i]; });
      },
      sums);
  UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (!scope.is_first_lane() || scope.first_row + r >= division.rows) continue;
    const A sum = sums[r][0];
    const A result = p.op == RowsOp::kMean ? sum / static_cast<A>(p.columns) : sum;
    static_cast<T*>(p.out)[scope.first_row + r] = narrow<T>(result);
  }
}

template <typename T>
void launch(const RowsProblem& p, const Context& context) {
  for_rows(p.rows, p.columns, is_vectorized<T>(p.x, p.columns), true, context,
           [&]<class Scope>(unsigned blocks, unsigned cluster, int threads, const Division& d) {
             launch_clusters_pdl(sum_rows_kernel<T, Scope>, cluster, blocks, threads, 0, context, p,
                                 d);
           });
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_sum_rows(const RowsProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
