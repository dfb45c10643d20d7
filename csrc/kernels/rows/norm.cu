// Layer norm and RMS norm over the last dimension.
//
// Idea:  A row stays in the registers of the warps that share it (row.cuh), which sum it, then the
//        squares of its deviations.
// Limit: memory; and of few rows the latency of two exchanges. Rows of more than 64 chunks are read
//        three times, mostly from L2.

#include <cstdint>

#include "kernels/rows/norms_launch.h"
#include "kernels/rows/params.cuh"
#include "kernels/rows/row.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace rows {
namespace {

template <typename T, class Scope>
__global__ void __launch_bounds__(Scope::kThreads)
    norm_kernel(const __grid_constant__ NormProblem p, const Division division) {
  using A = accumulator_t<T>;
  constexpr int kRows = Scope::kRows, kSteps = Scope::kSteps;
  constexpr int kParamSteps = kSteps < 2 ? kSteps : 2;  // loaded at once
  __shared__ typename Scope::template Smem<A> smem;
  Scope scope(division, smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  if (!scope.warp_has_rows(division)) return;

  A x[kRows][kSteps][kVector], sums[kRows][1], mean[kRows] = {}, inverse[kRows];
  const auto load = [&](int64_t chunk) {
    load_rows([&](int r) { return scope.template row<T>(division, p.x, r); }, scope.element(chunk),
              A(0), x);
  };
  const bool is_centered = p.centered;
  if (is_centered) {
    scope.template sum<0>(
        smem,
        [&](int64_t chunk, auto& parts) {
          load(chunk);
          for_elements<kRows, kSteps>(
              scope.count(chunk), [&](int r, int step, int i) { parts[r][0][i] += x[r][step][i]; });
        },
        sums);
    UNROLL
    for (int r = 0; r < kRows; ++r) mean[r] = order::mean_of(sums[r][0], p.columns);
  }
  scope.template sum<1>(
      smem,
      [&](int64_t chunk, auto& parts) {
        if (!Scope::kIsHeld || !is_centered) load(chunk);
        const int first = lane_index() * kVector, count = scope.count(chunk);
        for_elements<kRows, kSteps>(count, [&](int r, int step, int i) {
          A& element = x[r][step][i];
          element -= mean[r];
          const bool exists = first + step * order::kParts + i < count;
          const A deviation = exists ? element : A(0);
          parts[r][0][i] = fused_multiply_add(deviation, deviation, parts[r][0][i]);
        });
      },
      sums);
  UNROLL
  for (int r = 0; r < kRows; ++r) {
    inverse[r] = order::inverse_of(sums[r][0], p.columns, p.eps);
    const int64_t row = scope.first_row + r;
    if (!scope.is_first_lane() || row >= division.rows) continue;
    if (is_centered) static_cast<A*>(p.mean)[row] = mean[r];
    static_cast<A*>(p.inverse)[row] = inverse[r];
  }

  scope.for_chunks([&](int64_t chunk) {
    if (!Scope::kIsHeld) load(chunk);
    UNROLL
    for (int first = 0; first < kSteps; first += kParamSteps) {
      if (first * order::kParts >= scope.count(chunk)) break;
      A weight[1][kParamSteps][kVector], bias[1][kParamSteps][kVector];
      load_params<T>(p.weight, p.columns, scope.element(chunk, first), p.wide_params,
                     division.is_vectorized, order::kNoWeight<A>, weight);
      load_params<T>(p.bias, p.columns, scope.element(chunk, first), p.wide_params,
                     division.is_vectorized, order::kNoBias<A>, bias);
      UNROLL
      for (int j = 0; j < kRows * kParamSteps; ++j) {
        const int r = j / kParamSteps, at = j % kParamSteps;
        A y[kVector];
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          const A element = x[r][first + at][i];
          const A deviation = Scope::kIsHeld ? element : element - mean[r];
          y[i] = order::normalized(deviation, inverse[r], weight[0][at][i], bias[0][at][i]);
        }
        scope.template row<T>(division, {p.y, p.columns}, r)
            .store(scope.element(chunk, first + at), y);
      }
    }
  });
}

template <typename T>
void launch(const NormProblem& p, const Context& context) {
  const bool is_vectorized = rows::is_vectorized<T>(p.x, p.columns) &&
                             rows::is_vectorized<T>({p.y, 0}, p.columns) &&
                             are_params_vectorized<T>(p.weight, p.columns, p.wide_params) &&
                             are_params_vectorized<T>(p.bias, p.columns, p.wide_params);
  for_rows(p.rows, p.columns, is_vectorized, false, context,
           [&]<class Scope>(unsigned blocks, unsigned cluster, int threads, const Division& d) {
             launch_clusters_pdl(norm_kernel<T, Scope>, cluster, blocks, threads, 0, context, p, d);
           });
}

}  // namespace
}  // namespace rows

void launch_norm(const NormProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
