// The gradients of softmax and of its logarithm.
//
// Idea:  As in softmax.cu, rows of both operands stay in registers.
// Limit: memory. Rows of more than 64 chunks are read twice.

#include <cstdint>

#include "kernels/rows/launch.h"
#include "kernels/rows/row.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

template <typename T, class Scope>
__global__ void __launch_bounds__(Scope::kThreads)
    softmax_backward_kernel(const SoftmaxBackward p, const Division division) {
  using A = accumulator_t<T>;
  constexpr int kRows = Scope::kRows, kSteps = Scope::kSteps;
  __shared__ typename Scope::template Smem<A> smem;
  Scope scope(division, smem);
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  if (!scope.warp_has_rows(division)) return;
  const auto row = [&](const Rows& x, int r) { return scope.template row<T>(division, x, r); };

  // Past the row's end the gradient is -0, which changes no sum: neither by itself nor times 0.
  A grad[kRows][kSteps][kVector], y[kRows][kSteps][kVector], sums[kRows][1];
  const auto load = [&](int64_t chunk) {
    load_rows([&](int r) { return row(p.grad, r); }, scope.element(chunk), A(-0.0), grad);
    load_rows([&](int r) { return row(p.y, r); }, scope.element(chunk), A(0), y);
  };
  scope.template sum<0>(
      smem,
      [&](int64_t chunk, auto& parts) {
        load(chunk);
        for_elements<kRows, kSteps>(scope.count(chunk), [&](int r, int step, int i) {
          const A g = grad[r][step][i], sum = parts[r][0][i];
          parts[r][0][i] = p.is_log ? sum + g : fma(g, y[r][step][i], sum);
        });
      },
      sums);

  UNROLL
  for (int r = 0; r < kRows; ++r) {
    const A sum = sums[r][0];
    const Row<T> out = row({p.out, p.columns}, r);
    scope.for_chunks([&](int64_t chunk) {
      if (!Scope::kIsHeld) load(chunk);
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (step * order::kParts >= scope.count(chunk)) break;
        A dx[kVector];
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          const A g = grad[r][step][i], of_y = y[r][step][i];
          dx[i] = p.is_log ? fma(-order::exp_of(of_y), sum, g) : of_y * (g - sum);
        }
        out.store(scope.element(chunk, step), dx);
      }
    });
  }
}

template <typename T>
void launch(const SoftmaxBackward& p, const Context& context) {
  const bool is_vectorized = rows::is_vectorized<T>(p.grad, p.columns) &&
                             rows::is_vectorized<T>(p.y, p.columns) &&
                             rows::is_vectorized<T>({p.out, 0}, p.columns);
  for_rows(p.rows, p.columns, is_vectorized, false, context,
           [&]<class Scope>(unsigned blocks, unsigned cluster, int threads, const Division& d) {
             launch_clusters_pdl(softmax_backward_kernel<T, Scope>, cluster, blocks, threads, 0,
                                 context, p, d);
           });
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_softmax_backward(const SoftmaxBackward& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
