// Sums and means of rows.
//
// Idea:  A warp sums a row of up to one chunk, and a block a longer one. A warp loads all of a
//        chunk before it adds.
// Limit: memory, if there are rows enough for all SMs: a row is one block's.

#include <cstdint>

#include "kernels/rows/chunk.cuh"
#include "kernels/rows/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

// Returns the sum of a chunk in every lane.
template <typename T>
__device__ accumulator_t<T> sum_of(const Row<T>& row, int64_t chunk) {
  using A = accumulator_t<T>;
  Chunk<A> x;
  row.load(chunk, A{0}, x);
  A parts[kVector] = {};
  for_elements<A>(x, row.count(chunk), [&](A element, int, int i) { parts[i] += element; });
  return sum_parts(parts);
}

template <typename T>
__device__ void store_sum(const RowsProblem& p, int64_t row, accumulator_t<T> sum) {
  using A = accumulator_t<T>;
  const A result = p.op == RowsOp::kMean ? sum / static_cast<A>(p.columns) : sum;
  static_cast<T*>(p.out)[row] = narrow<T>(result);
}

template <typename T>
__global__ void __launch_bounds__(kRowsOfBlock* kWarp)
    sum_rows_warp_kernel(const RowsProblem p, bool is_vectorized, int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = (first_block + blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const auto sum = sum_of(row_of<T>(p.x, row, p.columns, is_vectorized), 0);
  if (threadIdx.x % kWarp == 0) store_sum<T>(p, row, sum);
}

template <typename T, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_rows_block_kernel(const RowsProblem p, bool is_vectorized, int64_t first_block) {
  using Sum = RowSum<accumulator_t<T>, kWarps>;
  __shared__ typename Sum::Smem smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = first_block + blockIdx.x;
  const Row<T> from = row_of<T>(p.x, row, p.columns, is_vectorized);
  const auto sum = Sum(smem)(p.columns, [&](int64_t chunk) { return sum_of(from, chunk); });
  if (threadIdx.x == 0) store_sum<T>(p, row, sum);
}

template <typename T>
void launch(const RowsProblem& p, const Context& context) {
  const auto launch = [&](auto* kernel, int warps) {
    launch_blocks(kernel, warps, p, is_vectorized<T>(p.x, p.columns), context);
  };
  constexpr int kLong = kWarpsOfLongRow<T>;
  if (p.columns <= order::kChunk) {
    launch(sum_rows_warp_kernel<T>, kRowsOfBlock);
  } else if (p.columns <= kWarps * order::kChunk) {
    launch(sum_rows_block_kernel<T, kWarps>, kWarps);
  } else {
    launch(sum_rows_block_kernel<T, kLong>, kLong);
  }
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_sum_rows(const RowsProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
