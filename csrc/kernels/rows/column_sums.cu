// The gradients of a norm's weight and bias: sums of columns.
//
// Idea:  A block sums some columns of a chunk of 1024 rows (column_chunk.cuh). A second kernel adds
//        the sums of chunks, ascending, if there are several.
// Limit: memory; latency, if there are few columns and chunks.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/rows/column_chunk.cuh"
#include "kernels/rows/norms_launch.h"
#include "kernels/rows/params.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

// Sums of chunks, (chunks, columns) each; null if there is one chunk, or no need of them.
template <typename A>
struct ChunkSums {
  A* of_weight = nullptr;
  A* of_bias = nullptr;
};

template <typename T, int kColumns>
__global__ void __launch_bounds__(kColumnThreads, sizeof(T) == 8 ? 1 : 2)
    column_sums_kernel(const __grid_constant__ NormBackward p,
                       const ChunkSums<accumulator_t<T>> sums, int64_t first_block) {
  using A = accumulator_t<T>;
  struct Loaded {
    Columns<T, kColumns> dy, x;
    A mean, inverse;
  };
  __shared__ ColumnSmem<A, 2, kColumns> smem;
  ptx::pdl_wait();
  // The kernel of dx does not wait for what came before this one, so it starts after that.
  ptx::pdl_launch_dependents();
  const int64_t block = first_block + blockIdx.x;
  const int64_t blocks_of_chunk = ceil_div(p.columns, kColumnLanes * kColumns);
  const int64_t chunk = block / blocks_of_chunk, first_row = chunk * order::kChunk;
  const int64_t column =
      ((block - chunk * blocks_of_chunk) * kColumnLanes + column_lane()) * kColumns;
  const int count = static_cast<int>(min(p.rows - first_row, int64_t{order::kChunk}));
  const ColumnsOfLane<T, kColumns> x(p.x.data, p.x.pitch, first_row, count, column, p.columns);
  const ColumnsOfLane<T, kColumns> dy(p.dy.data, p.dy.pitch, first_row, count, column, p.columns);
  const A* means = static_cast<const A*>(p.mean) + first_row;
  const A* inverses = static_cast<const A*>(p.inverse) + first_row;
  const bool is_centered = p.mean != nullptr;
  const auto load = [&](int row) {
    const int at = min(row, count - 1);
    return Loaded{dy(row), x(row), is_centered ? means[at] : A(0), inverses[at]};
  };
  const auto add = [](const Loaded& row, int i, auto& parts) {
    UNROLL
    for (int v = 0; v < kColumns; ++v) {
      const A gradient = widen(row.dy.elements[v]);
      const A h = (widen(row.x.elements[v]) - row.mean) * row.inverse;
      parts[0][v][i] = fused_multiply_add(gradient, h, parts[0][v][i]);
      parts[1][v][i] += gradient;
    }
  };
  const auto store = [&](int k, int v, A sum) {
    if (column + v >= p.columns) return;
    A* of_chunks = k == 0 ? sums.of_weight : sums.of_bias;
    void* gradient = k == 0 ? p.dweight : p.dbias;
    if (of_chunks != nullptr) {
      of_chunks[chunk * p.columns + column + v] = sum;
    } else if (gradient != nullptr) {
      store_param<T>(gradient, column + v, sum, p.wide_params);
    }
  };
  sum_columns<2, kColumns>(count, load, add, store, smem);
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
  const bool are_pairs =
      has_pairs(p.x.data, p.columns, p.x.pitch) && has_pairs(p.dy.data, p.columns, p.dy.pitch);
  with_columns<T>(are_pairs, [&]<int kColumns>() {
    for_grids(chunks * ceil_div(p.columns, kColumnLanes * kColumns),
              [&](int64_t first, unsigned blocks) {
                launch_pdl(column_sums_kernel<T, kColumns>, blocks, kColumnThreads, 0, context, p,
                           sums, first);
              });
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
