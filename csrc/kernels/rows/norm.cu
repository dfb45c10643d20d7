// Layer norm and RMS norm over the last dimension.
//
// Idea:  A row of up to 1024 elements is a warp's, which keeps it in registers. A longer one is a
//        block's: each warp has some of its chunks, and keeps one in registers, which is all if the
//        row has no more chunks than warps.
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
__global__ void __launch_bounds__(RowWarps<accumulator_t<T>, kIsShort>::kThreads, 2)
    norm_kernel(const __grid_constant__ NormProblem p, int64_t first_block, bool is_aligned) {
  using A = accumulator_t<T>;
  using Warps = RowWarps<A, kIsShort>;
  __shared__ typename Warps::Smem smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const Warps warps(smem);
  const int64_t row = (first_block + blockIdx.x) * Warps::kRows + warps.row;
  if (row >= p.rows) return;  // a whole warp, and a whole block if its warps share a row
  const T* x_row = static_cast<const T*>(p.x.data) + row * p.x.pitch;
  T* y_row = static_cast<T*>(p.y) + row * p.columns;

  A x[kSteps][kVector];
  int64_t chunk_in_x = -1;
  const auto load = [&](int64_t chunk, const LaneOfChunk& lane) {
    if (chunk == chunk_in_x) return;
    chunk_in_x = chunk;
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      load_vector(x_row + lane.at(step), lane.left_at(step), is_aligned, x[step]);
    }
  };

  A mean = 0;
  if (p.centered) {
    const A sum = warps.sum(p.columns, [&](int64_t chunk) {
      const LaneOfChunk lane(chunk, p.columns);
      load(chunk, lane);
      return sum_lanes<A>(lane, [&](A& part, int step, int i) { part += x[step][i]; });
    });
    mean = order::mean_of(sum, p.columns);
  }
  const A squares = warps.sum(p.columns, [&](int64_t chunk) {
    const LaneOfChunk lane(chunk, p.columns);
    load(chunk, lane);
    return sum_lanes<A>(lane, [&](A& part, int step, int i) {
      const A deviation = x[step][i] - mean;
      part = fused_multiply_add(deviation, deviation, part);
    });
  });
  const A inverse = order::inverse_of(squares, p.columns, p.eps);
  if (warps.first_chunk == 0 && threadIdx.x % kWarp == 0) {
    if (p.centered) static_cast<A*>(p.mean)[row] = mean;
    static_cast<A*>(p.inverse)[row] = inverse;
  }

  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  for (int64_t chunk = warps.first_chunk; chunk < chunks; chunk += warps.count) {
    const LaneOfChunk lane(chunk, p.columns);
    load(chunk, lane);
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = lane.at(step);
      const int left = lane.left_at(step);
      A weight[kVector], bias[kVector], y[kVector];
      load_params<T>(p.weight, at, left, p.wide_params, is_aligned, order::kNoWeight<A>, weight);
      load_params<T>(p.bias, at, left, p.wide_params, is_aligned, order::kNoBias<A>, bias);
      UNROLL
      for (int i = 0; i < kVector; ++i) {
        y[i] = order::normalized(x[step][i] - mean, inverse, weight[i], bias[i]);
      }
      store_vector(y_row + at, left, is_aligned, y);
    }
  }
}

template <typename T, bool kIsShort>
void launch(const NormProblem& p, const Context& context) {
  using Warps = RowWarps<accumulator_t<T>, kIsShort>;
  const bool is_aligned = is_vectorized<T>(p.x, p.columns) &&
                          is_vectorized<T>({p.y, 0}, p.columns) &&
                          are_params_aligned<T>(p.weight, p.columns, p.wide_params) &&
                          are_params_aligned<T>(p.bias, p.columns, p.wide_params);
  for_grids(ceil_div(p.rows, Warps::kRows), [&](int64_t first, unsigned blocks) {
    launch_pdl(norm_kernel<T, kIsShort>, blocks, Warps::threads(p.columns), 0, context, p, first,
               is_aligned);
  });
}

}  // namespace
}  // namespace rows

void launch_norm(const NormProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    const bool is_short = p.columns <= rows::order::kChunk;
    is_short ? rows::launch<T, true>(p, context) : rows::launch<T, false>(p, context);
  });
}

}  // namespace tiled::cuda
