// Softmax, its logarithm, and logsumexp of rows.
//
// Idea:  A warp has a row of up to one chunk, and a block a longer one, of which each warp has a
//        chunk in registers: a row is read from memory once. Its exponentials are computed twice,
//        for the sum and for the result, so that registers have the row alone.
// Limit: memory. Rows too long for a block's registers are read three times, from L2 if they fit,
//        and few such rows do not fill the GPU.

#include <cstdint>

#include "kernels/rows/chunk.cuh"
#include "kernels/rows/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

template <typename A>
__device__ A largest_of(Chunk<A>& x, int count) {
  A largest = -INFINITY;
  for_elements<A>(x, count,
                  [&](A element, int, int) { largest = order::max_or_nan(element, largest); });
  return largest;
}

// Returns the sum of a chunk's exponentials in every lane. Beyond the row's end x is -Inf, which
// adds 0; or NaN if m is Inf, and then an element adds NaN, too.
template <typename A>
__device__ A sum_exponentials(Chunk<A>& x, int count, A m) {
  A parts[kVector] = {};
  for_elements<A>(x, count, [&](A element, int, int i) { parts[i] += order::exp_of(element - m); });
  return sum_parts(parts);
}

// Stores a chunk of the result.
template <typename T, typename A>
__device__ void store_softmax(const Row<T>& out, int64_t chunk, bool is_log, const Chunk<A>& x, A m,
                              A sum) {
  if (is_log) {
    const A log_sum = order::log_of(sum);
    out.store(chunk, [&](int step, int i) { return (x[step][i] - m) - log_sum; });
  } else {
    out.store(chunk, [&](int step, int i) { return order::exp_of(x[step][i] - m) / sum; });
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowsOfBlock* kWarp)
    softmax_warp_kernel(const RowsProblem p, bool is_vectorized, int64_t first_block) {
  using A = accumulator_t<T>;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = (first_block + blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const int count = static_cast<int>(p.columns);
  Chunk<A> x;
  row_of<T>(p.x, row, p.columns, is_vectorized).load(0, -INFINITY, x);
  const A m = warp_max(largest_of<A>(x, count));
  const A sum = sum_exponentials<A>(x, count, m);
  if (p.op == RowsOp::kLogSumExp) {
    const A result = order::logsumexp(m, sum);
    if (threadIdx.x % kWarp == 0) static_cast<T*>(p.out)[row] = narrow<T>(result);
  } else {
    const Row<T> out = row_of<T>({p.out, p.columns}, row, p.columns, is_vectorized);
    store_softmax<T, A>(out, 0, p.op == RowsOp::kLogSoftmax, x, m, sum);
  }
}

// Blocks of kWarps warps that fit on an SM. Without the number ptxas would spill floats.
template <typename T>
inline constexpr int kBlocksOfSm = sizeof(accumulator_t<T>) == 8 ? 2 : 3;

// kIsHeld: the row has at most one chunk for each warp.
template <typename T, int kWarps, bool kIsHeld>
__global__ void __launch_bounds__(kWarps* kWarp, kWarps > 8 ? 1 : kBlocksOfSm<T>)
    softmax_block_kernel(const RowsProblem p, bool is_vectorized, int64_t first_block) {
  using A = accumulator_t<T>;
  using Sum = RowSum<A, kWarps>;
  __shared__ typename Sum::Smem smem;
  __shared__ A maxima[kWarps];
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = first_block + blockIdx.x;
  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Row<T> from = row_of<T>(p.x, row, p.columns, is_vectorized);
  Chunk<A> x;
  A m = -INFINITY;
  for (int64_t chunk = warp; chunk < chunks; chunk += kWarps) {
    from.load(chunk, -INFINITY, x);
    m = order::max_or_nan(largest_of<A>(x, from.count(chunk)), m);
    if (kIsHeld) break;
  }
  m = block_max(m, maxima);
  const A sum = Sum(smem)(p.columns, [&](int64_t chunk) {
    if (!kIsHeld) from.load(chunk, -INFINITY, x);
    return sum_exponentials<A>(x, from.count(chunk), m);
  });
  if (p.op == RowsOp::kLogSumExp) {
    const A result = order::logsumexp(m, sum);
    if (threadIdx.x == 0) static_cast<T*>(p.out)[row] = narrow<T>(result);
    return;
  }
  const Row<T> out = row_of<T>({p.out, p.columns}, row, p.columns, is_vectorized);
  for (int64_t chunk = warp; chunk < chunks; chunk += kWarps) {
    if (!kIsHeld) from.load(chunk, -INFINITY, x);
    store_softmax<T, A>(out, chunk, p.op == RowsOp::kLogSoftmax, x, m, sum);
    if (kIsHeld) break;
  }
}

template <typename T>
void launch(const RowsProblem& p, const Context& context) {
  const bool is_vectorized =
      rows::is_vectorized<T>(p.x, p.columns) && rows::is_vectorized<T>({p.out, 0}, p.columns);
  const auto launch = [&](auto* kernel, int warps) {
    launch_blocks(kernel, warps, p, is_vectorized, context);
  };
  constexpr int kLong = kWarpsOfLongRow<T>;
  if (p.columns <= order::kChunk) {
    launch(softmax_warp_kernel<T>, kRowsOfBlock);
  } else if (p.columns <= kWarps * order::kChunk) {
    launch(softmax_block_kernel<T, kWarps, true>, kWarps);
  } else if (kLong > kWarps && p.columns <= kLong * order::kChunk) {
    launch(softmax_block_kernel<T, kLong, true>, kLong);
  } else {
    launch(softmax_block_kernel<T, kLong, false>, kLong);
  }
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_softmax(const RowsProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
