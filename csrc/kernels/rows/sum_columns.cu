// Sums and means of strided rows, whose neighbours are adjacent: sums of columns.
//
// Idea:  A block sums some columns of a chunk of 1024 rows (column_chunk.cuh). The sums of chunks
// are
//        columns that are summed likewise, until one is left.
// Limit: memory; latency, if there are few columns and chunks.

#include <cstdint>
#include <type_traits>

#include "kernels/common/workspace.h"
#include "kernels/rows/column_chunk.cuh"
#include "kernels/rows/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

// From has the elements of this level, and T those of the result. The sums are the next level's
// operand, (batch, chunks, columns), or p.out if that is null. A mean is of `mean_of` elements.
template <typename From, int kColumns, typename T>
__global__ void __launch_bounds__(kColumnThreads, sizeof(T) == 8 ? 1 : 2)
    sum_columns_kernel(const ColumnsProblem p, accumulator_t<T>* next, int64_t mean_of,
                       int64_t first_block) {
  using A = accumulator_t<T>;
  __shared__ ColumnSmem<A, 1, kColumns> smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t block = first_block + blockIdx.x;
  const int64_t blocks_of_chunk = ceil_div(p.columns, kColumnLanes * kColumns);
  const int64_t all_chunk = block / blocks_of_chunk, chunks = ceil_div(p.rows, order::kChunk);
  const int64_t column =
      ((block - all_chunk * blocks_of_chunk) * kColumnLanes + column_lane()) * kColumns;
  const int64_t batch = all_chunk / chunks;
  const int64_t first_row = (all_chunk - batch * chunks) * order::kChunk;
  const int count = static_cast<int>(min(p.rows - first_row, int64_t{order::kChunk}));
  const ColumnsOfLane<From, kColumns> x(static_cast<const From*>(p.x) + batch * p.batch_pitch,
                                        p.row_pitch, first_row, count, column, p.columns);
  const auto add = [](const Columns<From, kColumns>& row, int i, auto& parts) {
    UNROLL
    for (int v = 0; v < kColumns; ++v) parts[0][v][i] += widen(row.elements[v]);
  };
  const auto store = [&](int, int v, A sum) {
    if (column + v >= p.columns) return;
    const int64_t at = all_chunk * p.columns + column + v;
    if (next != nullptr) {
      next[at] = sum;
    } else {
      static_cast<T*>(p.out)[at] = narrow<T>(p.is_mean ? sum / static_cast<A>(mean_of) : sum);
    }
  };
  sum_columns<1, kColumns>(count, x, add, store, smem);
}

template <typename T, typename A = accumulator_t<T>>
bool launch(const ColumnsProblem& given, const Context& context) {
  constexpr int kMostLevels = 8;
  int64_t counts[kMostLevels];  // chunks of a level
  int levels = 0;
  for (int64_t rows = given.rows; rows > 1 || levels == 0; ++levels) {
    rows = counts[levels] = ceil_div(rows, order::kChunk);
  }
  A* buffers[kMostLevels] = {};
  const auto take_buffers = [&](Workspace& workspace) {
    for (int level = 0; level + 1 < levels; ++level) {
      buffers[level] = workspace.take<A>(given.batch * counts[level] * given.columns).data();
    }
    return 0;
  };
  if (levels > 1) {
    void* memory = context.allocate(workspace_bytes(take_buffers));
    if (memory == nullptr) return false;
    Workspace workspace(memory);
    take_buffers(workspace);
  }
  ColumnsProblem p = given;
  for (int level = 0; level < levels; ++level) {
    const auto launch_level = [&]<typename From>(std::type_identity<From>) {
      const bool are_pairs =
          has_pairs(p.x, p.columns, p.row_pitch) && has_pairs(p.x, p.columns, p.batch_pitch);
      with_columns<From>(are_pairs, [&]<int kColumns>() {
        for_grids(p.batch * counts[level] * ceil_div(p.columns, kColumnLanes * kColumns),
                  [&](int64_t first, unsigned blocks) {
                    launch_pdl(sum_columns_kernel<From, kColumns, T>, blocks, kColumnThreads, 0,
                               context, p, buffers[level], given.rows, first);
                  });
      });
    };
    level == 0 ? launch_level(std::type_identity<T>()) : launch_level(std::type_identity<A>());
    p.x = buffers[level], p.rows = counts[level];
    p.row_pitch = p.columns, p.batch_pitch = p.rows * p.columns;
  }
  return true;
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

bool launch_sum_columns(const ColumnsProblem& p, const Context& context) {
  bool launched = false;
  with_element_type(p.dtype, [&]<typename T>() { launched = rows::launch<T>(p, context); });
  return launched;
}

}  // namespace tiled::cuda
