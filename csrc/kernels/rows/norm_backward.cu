// The gradient of a norm's rows.
//
// Idea:  As in norm.cu, a row is a warp's or a block's. In its registers a warp has a chunk of g,
//        the gradient times the weight, and of h, the normalized elements.
// Limit: memory's bandwidth. A row of more than 8192 elements is read three times, mostly from
//        caches.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/rows/norm_chunk.cuh"
#include "kernels/rows/norms_launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace rows {
namespace {

template <typename T, bool kIsShort>
__global__ void __launch_bounds__(RowWarps<accumulator_t<T>, kIsShort>::kThreads)
    norm_backward_kernel(const __grid_constant__ NormBackward p, int64_t first_block,
                         bool is_aligned) {
  using A = accumulator_t<T>;
  using Warps = RowWarps<A, kIsShort>;
  __shared__ typename Warps::Smem smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const Warps warps(smem);
  const int64_t row = (first_block + blockIdx.x) * Warps::kRows + warps.row;
  if (row >= p.rows) return;  // a whole warp, and a whole block if its warps share a row
  const bool is_centered = p.mean != nullptr;
  const A mean = is_centered ? static_cast<const A*>(p.mean)[row] : A(0);
  const A inverse = static_cast<const A*>(p.inverse)[row];
  const T* dy_row = static_cast<const T*>(p.dy.data) + row * p.dy.pitch;
  const T* x_row = static_cast<const T*>(p.x.data) + row * p.x.pitch;
  T* dx_row = static_cast<T*>(p.dx) + row * p.columns;

  A g[kSteps][kVector], h[kSteps][kVector];
  int64_t chunk_in_registers = -1;
  const auto load = [&](int64_t chunk, const LaneOfChunk& lane) {
    if (chunk == chunk_in_registers) return;
    chunk_in_registers = chunk;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      load_vector(dy_row + lane.at(step), lane.left_at(step), is_aligned, g[step]);
      load_vector(x_row + lane.at(step), lane.left_at(step), is_aligned, h[step]);
    }
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      A weight[kVector];
      load_params<T>(p.weight, lane.at(step), lane.left_at(step), p.wide_params, is_aligned,
                     order::kNoWeight<A>, weight);
      UNROLL
      for (int i = 0; i < kVector; ++i) {
        g[step][i] *= weight[i];
        h[step][i] = (h[step][i] - mean) * inverse;
      }
    }
  };

  A mean_g = 0;
  if (is_centered) {
    const A sum = warps.sum(p.columns, [&](int64_t chunk) {
      const LaneOfChunk lane(chunk, p.columns);
      load(chunk, lane);
      return sum_lanes<A>(lane, [&](A& part, int step, int i) { part += g[step][i]; });
    });
    mean_g = order::mean_of(sum, p.columns);
  }
  const A products = warps.sum(p.columns, [&](int64_t chunk) {
    const LaneOfChunk lane(chunk, p.columns);
    load(chunk, lane);
    return sum_lanes<A>(lane, [&](A& part, int step, int i) {
      part = fused_multiply_add(g[step][i], h[step][i], part);
    });
  });
  const A mean_gh = order::mean_of(products, p.columns);

  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  for (int64_t chunk = warps.first_chunk; chunk < chunks; chunk += warps.count) {
    const LaneOfChunk lane(chunk, p.columns);
    load(chunk, lane);
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      A dx[kVector];
      UNROLL
      for (int i = 0; i < kVector; ++i) {
        dx[i] = order::norm_gradient(g[step][i], h[step][i], mean_g, mean_gh, inverse);
      }
      store_vector(dx_row + lane.at(step), lane.left_at(step), is_aligned, dx);
    }
  }
}

template <typename T, bool kIsShort>
void launch(const NormBackward& p, const Context& context) {
  using Warps = RowWarps<accumulator_t<T>, kIsShort>;
  const bool is_aligned = is_vectorized<T>(p.dy, p.columns) && is_vectorized<T>(p.x, p.columns) &&
                          is_vectorized<T>({p.dx, 0}, p.columns) &&
                          are_params_aligned<T>(p.weight, p.columns, p.wide_params);
  for_grids(ceil_div(p.rows, Warps::kRows), [&](int64_t first, unsigned blocks) {
    launch_pdl(norm_backward_kernel<T, kIsShort>, blocks, Warps::threads(p.columns), 0, context, p,
               first, is_aligned);
  });
}

}  // namespace
}  // namespace rows

bool launch_norm_backward(const NormBackward& p, const Context& context) {
  if (p.needs_columns() && !rows::launch_column_sums(p, context)) return false;
  if (p.dx == nullptr) return true;
  with_element_type(p.dtype, [&]<typename T>() {
    const bool is_short = p.columns <= rows::order::kChunk;
    is_short ? rows::launch<T, true>(p, context) : rows::launch<T, false>(p, context);
  });
  return true;
}

}  // namespace tiled::cuda
