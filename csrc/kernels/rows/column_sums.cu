// The gradients of a norm's weight and bias: sums of columns.
//
// Idea:  A warp has 32 columns of a chunk of 1024 rows, a lane each. The sum of a column is one
//        chain, so a lane loads its elements of 32 rows (16 of float64) before it adds them. A
//        second kernel adds the sums of chunks, if there are several.
// Limit: latency, unless there are many columns or chunks; then memory's bandwidth.

#include <cstdint>
#include <span>

#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/rows/norms_launch.h"
#include "kernels/rows/sum.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

// Sums of chunks, (chunks, columns) each; null if there is one chunk, or no need of them.
template <typename A>
struct ChunkSums {
  A* of_weight = nullptr;
  A* of_bias = nullptr;
};

// Stores the gradient of a weight or of a bias, which has T, or float32 if is_wide.
template <typename T, typename A = accumulator_t<T>>
__device__ void store_param(void* to, int64_t column, A value, bool is_wide) {
  if constexpr (sizeof(T) == 2) {
    if (is_wide) {
      static_cast<float*>(to)[column] = value;
      return;
    }
  }
  static_cast<T*>(to)[column] = narrow<T>(value);
}

template <typename T>
__global__ void __launch_bounds__(kWarp)
    column_sums_kernel(const __grid_constant__ NormBackward p,
                       const ChunkSums<accumulator_t<T>> sums, int64_t first_block) {
  using A = accumulator_t<T>;
  // Rows that are loaded at once; lane i loads the mean and the inverse deviation of row i.
  constexpr int kRows = sizeof(T) == 8 ? kWarp / 2 : kWarp;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t block = first_block + blockIdx.x, blocks_of_chunk = ceil_div(p.columns, kWarp);
  const int64_t chunk = block / blocks_of_chunk;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t column = (block - chunk * blocks_of_chunk) * kWarp + lane;
  const bool has_column = column < p.columns, needs_weight = p.dweight != nullptr;
  const T* x = static_cast<const T*>(p.x.data) + column;
  const T* dy = static_cast<const T*>(p.dy.data) + column;
  const int64_t end = min((chunk + 1) * order::kChunk, p.rows);
  A of_weight = 0, of_bias = 0;
  for (int64_t first = chunk * order::kChunk; first < end; first += kRows) {
    const int rows = static_cast<int>(min(end - first, int64_t{kRows}));
    T x_of_row[kRows] = {}, dy_of_row[kRows] = {};
    A lane_mean = 0, lane_inverse = 0;
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (!has_column || i >= rows) continue;
      dy_of_row[i] = dy[(first + i) * p.dy.pitch];
      if (needs_weight) x_of_row[i] = x[(first + i) * p.x.pitch];
    }
    if (needs_weight && lane < rows) {
      if (p.mean != nullptr) lane_mean = static_cast<const A*>(p.mean)[first + lane];
      lane_inverse = static_cast<const A*>(p.inverse)[first + lane];
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      const A mean = __shfl_sync(~0u, lane_mean, i), inverse = __shfl_sync(~0u, lane_inverse, i);
      if (i >= rows) continue;
      const A gradient = widen(dy_of_row[i]);
      of_weight = fused_multiply_add(gradient, (widen(x_of_row[i]) - mean) * inverse, of_weight);
      of_bias += gradient;
    }
  }
  if (!has_column) return;
  if (sums.of_weight != nullptr) {
    sums.of_weight[chunk * p.columns + column] = of_weight;
  } else if (needs_weight) {
    store_param<T>(p.dweight, column, of_weight, p.wide_params);
  }
  if (sums.of_bias != nullptr) {
    sums.of_bias[chunk * p.columns + column] = of_bias;
  } else if (p.dbias != nullptr) {
    store_param<T>(p.dbias, column, of_bias, p.wide_params);
  }
}

// --- Adding the sums of chunks, each thread those of a column ------------------------------------

constexpr int kAddThreads = 64;

template <typename A>
__device__ A add_chunks(const A* sums, int64_t chunks, int64_t columns) {
  constexpr int kAtOnce = 16;
  A total = 0;
  for (int64_t first = 0; first < chunks; first += kAtOnce) {
    A loaded[kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      loaded[i] = first + i < chunks ? sums[(first + i) * columns] : A(0);
    }
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < chunks) total += loaded[i];
    }
  }
  return total;
}

template <typename T>
__global__ void __launch_bounds__(kAddThreads)
    add_chunks_kernel(const __grid_constant__ NormBackward p,
                      const ChunkSums<accumulator_t<T>> sums, int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t column = (first_block + blockIdx.x) * kAddThreads + threadIdx.x;
  if (column >= p.columns) return;
  const int64_t chunks = ceil_div(p.rows, order::kChunk);
  if (sums.of_weight != nullptr) {
    const auto total = add_chunks(sums.of_weight + column, chunks, p.columns);
    store_param<T>(p.dweight, column, total, p.wide_params);
  }
  if (sums.of_bias != nullptr) {
    const auto total = add_chunks(sums.of_bias + column, chunks, p.columns);
    store_param<T>(p.dbias, column, total, p.wide_params);
  }
}

// --- Launches ------------------------------------------------------------------------------------

template <typename T, typename A = accumulator_t<T>>
bool launch(const NormBackward& p, const Context& context) {
  const int64_t chunks = ceil_div(p.rows, order::kChunk);
  ChunkSums<A> sums;
  if (chunks > 1) {
    const auto take_buffers = [&](Workspace& workspace) {
      ChunkSums<A> taken;
      if (p.dweight != nullptr) taken.of_weight = workspace.take<A>(chunks * p.columns).data();
      if (p.dbias != nullptr) taken.of_bias = workspace.take<A>(chunks * p.columns).data();
      return taken;
    };
    void* memory = context.allocate(workspace_bytes(take_buffers));
    if (memory == nullptr) return false;
    Workspace workspace(memory);
    sums = take_buffers(workspace);
  }
  for_grids(chunks * ceil_div(p.columns, kWarp), [&](int64_t first, unsigned blocks) {
    launch_pdl(column_sums_kernel<T>, blocks, kWarp, 0, context, p, sums, first);
  });
  if (chunks == 1) return true;
  for_grids(ceil_div(p.columns, kAddThreads), [&](int64_t first, unsigned blocks) {
    launch_pdl(add_chunks_kernel<T>, blocks, kAddThreads, 0, context, p, sums, first);
  });
  return true;
}

}  // namespace

bool launch_column_sums(const NormBackward& p, const Context& context) {
  bool launched = false;
  with_element_type(p.dtype, [&]<typename T>() { launched = launch<T>(p, context); });
  return launched;
}

}  // namespace tiled::cuda::rows
