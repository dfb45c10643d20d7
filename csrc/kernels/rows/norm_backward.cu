// The gradient of a norm's rows.
//
// Idea:  As in norm.cu, a row stays in registers: g, the gradient times the weight, and h, the
//        normalized elements. Both sums take one exchange.
// Limit: memory. Rows of more than 64 chunks are read three times, mostly from L2.

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
    norm_backward_kernel(const __grid_constant__ NormBackward p, const Division division) {
  using A = accumulator_t<T>;
  constexpr int kRows = Scope::kRows, kSteps = Scope::kSteps;
  constexpr int kParamSteps = kSteps < 2 ? kSteps : 2;  // loaded at once
  __shared__ typename Scope::template Smem<A> smem;
  Scope scope(division, smem);
  ptx::pdl_launch_dependents();
  // The kernels of the columns began after what came before them, and compute nothing for this one.
  // It runs beside them, and ends after them, for the sake of what follows.
  const bool follows_columns = p.needs_columns();
  if (!follows_columns) ptx::pdl_wait();
  if (!scope.warp_has_rows(division)) return;
  const bool is_centered = p.mean != nullptr;
  A mean[kRows], inverse[kRows];
  UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = min(scope.first_row + r, division.rows - 1);
    mean[r] = is_centered ? static_cast<const A*>(p.mean)[row] : A(0);
    inverse[r] = static_cast<const A*>(p.inverse)[row];
  }

  // Past the row's end g and h are 0.
  A g[kRows][kSteps][kVector], h[kRows][kSteps][kVector], sums[kRows][2];
  const auto load = [&](int64_t chunk) {
    load_rows([&](int r) { return scope.template row<T>(division, p.dy, r); }, scope.element(chunk),
              A(0), g);
    load_rows([&](int r) { return scope.template row<T>(division, p.x, r); }, scope.element(chunk),
              A(0), h);
    UNROLL
    for (int first = 0; first < kSteps; first += kParamSteps) {
      if (first * order::kParts >= scope.count(chunk)) break;
      A weight[1][kParamSteps][kVector];
      load_params<T>(p.weight, p.columns, scope.element(chunk, first), p.wide_params,
                     division.is_vectorized, order::kNoWeight<A>, weight);
      UNROLL
      for (int j = 0; j < kRows * kParamSteps; ++j) {
        const int r = j / kParamSteps, at = j % kParamSteps, step = first + at;
        const auto left = p.columns - scope.element(chunk, step);
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          g[r][step][i] *= weight[0][at][i];
          const A normalized = (h[r][step][i] - mean[r]) * inverse[r];
          h[r][step][i] = i < left ? normalized : A(0);
        }
      }
    }
  };
  scope.template sum<0>(
      smem,
      [&](int64_t chunk, auto& parts) {
        load(chunk);
        for_elements<kRows, kSteps>(scope.count(chunk), [&](int r, int step, int i) {
          const A of_g = g[r][step][i];
          parts[r][0][i] += of_g;
          parts[r][1][i] = fused_multiply_add(of_g, h[r][step][i], parts[r][1][i]);
        });
      },
      sums);

  UNROLL
  for (int r = 0; r < kRows; ++r) {
    const A mean_g = is_centered ? order::mean_of(sums[r][0], p.columns) : A(0);
    const A mean_gh = order::mean_of(sums[r][1], p.columns);
    const Row<T> dx = scope.template row<T>(division, {p.dx, p.columns}, r);
    scope.for_chunks([&](int64_t chunk) {
      if (!Scope::kIsHeld) load(chunk);
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (step * order::kParts >= scope.count(chunk)) break;
        A of_x[kVector];
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          of_x[i] = order::norm_gradient(g[r][step][i], h[r][step][i], mean_g, mean_gh, inverse[r]);
        }
        dx.store(scope.element(chunk, step), of_x);
      }
    });
  }
  if (follows_columns) ptx::pdl_wait();
}

template <typename T>
void launch(const NormBackward& p, const Context& context) {
  const bool is_vectorized = rows::is_vectorized<T>(p.dy, p.columns) &&
                             rows::is_vectorized<T>(p.x, p.columns) &&
                             rows::is_vectorized<T>({p.dx, 0}, p.columns) &&
                             are_params_vectorized<T>(p.weight, p.columns, p.wide_params);
  for_rows(p.rows, p.columns, is_vectorized, false, context,
           [&]<class Scope>(unsigned blocks, unsigned cluster, int threads, const Division& d) {
             launch_clusters_pdl(norm_backward_kernel<T, Scope>, cluster, blocks, threads, 0,
                                 context, p, d);
           });
}

}  // namespace
}  // namespace rows

bool launch_norm_backward(const NormBackward& p, const Context& context) {
  if (p.needs_columns() && !rows::launch_column_sums(p, context)) return false;
  if (p.dx == nullptr) return true;
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
  return true;
}

}  // namespace tiled::cuda
