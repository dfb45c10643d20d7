// The gradients of a norm's weight and bias: sums of columns.
//
// Idea:  A block sums 32 columns of a chunk of 1024 rows (column_chunk.cuh). A second kernel adds
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

template <typename T>
__global__ void __launch_bounds__(kColumnThreads, sizeof(T) == 8 ? 1 : 2)
    column_sums_kernel(const __grid_constant__ NormBackward p,
                       const ChunkSums<accumulator_t<T>> sums, int64_t first_block) {
  using A = accumulator_t<T>;
  struct Loaded {
    T dy, x;
  };
  __shared__ ColumnSmem<A, 2> smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t block = first_block + blockIdx.x, blocks_of_chunk = ceil_div(p.columns, kWarp);
  const int64_t chunk = block / blocks_of_chunk;
  const int64_t column = (block - chunk * blocks_of_chunk) * kWarp + lane_index();
  const int64_t first_row = chunk * order::kChunk;
  const bool has_column = column < p.columns, needs_weight = p.dweight != nullptr;
  const T* x = static_cast<const T*>(p.x.data) + first_row * p.x.pitch + column;
  const T* dy = static_cast<const T*>(p.dy.data) + first_row * p.dy.pitch + column;
  const int count = static_cast<int>(min(p.rows - first_row, int64_t{order::kChunk}));
  A lane_mean = 0, lane_inverse = 0;  // those of the lane's row, of the rows that are added next
  const auto prepare = [&](int first) {
    const int row = first + lane_index() * kColumnWarps;
    if (!needs_weight || lane_index() >= kRowsAtOnce || row >= count) return;
    if (p.mean != nullptr) lane_mean = static_cast<const A*>(p.mean)[first_row + row];
    lane_inverse = static_cast<const A*>(p.inverse)[first_row + row];
  };
  const auto load = [&](int row) {
    Loaded loaded = {};
    if (!has_column) return loaded;
    loaded.dy = dy[row * p.dy.pitch];
    if (needs_weight) loaded.x = x[row * p.x.pitch];
    return loaded;
  };
  const auto add = [&](const Loaded& loaded, int i, A(&parts)[2][kRowsAtOnce]) {
    const A mean = __shfl_sync(~0u, lane_mean, i), inverse = __shfl_sync(~0u, lane_inverse, i);
    const A gradient = widen(loaded.dy), h = (widen(loaded.x) - mean) * inverse;
    parts[0][i] = fused_multiply_add(gradient, h, parts[0][i]);
    parts[1][i] += gradient;
  };
  A of_chunk[2];
  sum_columns(count, prepare, load, add, smem, of_chunk);
  if (warp_index() != 0 || !has_column) return;
  const auto store = [&](A* sums_of_chunks, void* gradient, A sum) {
    if (sums_of_chunks != nullptr) {
      sums_of_chunks[chunk * p.columns + column] = sum;
    } else if (gradient != nullptr) {
      store_param<T>(gradient, column, A(0) + sum, p.wide_params);
    }
  };
  store(sums.of_weight, p.dweight, of_chunk[0]);
  store(sums.of_bias, p.dbias, of_chunk[1]);
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
    launch_pdl(column_sums_kernel<T>, blocks, kColumnThreads, 0, context, p, sums, first);
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
