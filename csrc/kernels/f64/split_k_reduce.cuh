#pragma once
// Split-K of f64: blocks share K's chunks and write each chunk's sums to a workspace; this kernel
// adds them in order and applies the epilogue.

#include "core/contiguous_sums.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::f64_mma {

// The chunks that a block sums, [begin, end), and the part of K that they cover.
struct ChunkRange {
  int begin, end;
  int64_t k, length;
  __device__ ChunkRange(int64_t all_k, int split, int k_splits) {
    const int64_t chunks = ceil_div(all_k, kChunk);
    begin = static_cast<int>(split * chunks / k_splits);
    end = static_cast<int>((split + 1) * chunks / k_splits);
    k = int64_t{begin} * kChunk;
    length = min(all_k, int64_t{end} * kChunk) - k;
  }
};

inline constexpr int kReduceThreads = 256;

// Partial sums are (chunk, batch, m, n). A thread has an element, and loads the sums of kAhead
// chunks before it adds them.
template <int kAhead>
__global__ void __launch_bounds__(kReduceThreads)
    f64_split_k_reduce_kernel(const __grid_constant__ Problem p, const double* partial_sums,
                              int64_t first_block) {
  const int64_t index = (first_block + blockIdx.x) * kReduceThreads + threadIdx.x;
  const int64_t in_chunk = p.batch.count * p.m * p.n;
  if (index >= in_chunk) return;
  const auto chunks = static_cast<int>(ceil_div(p.k, kChunk));
  const double* from = partial_sums + index;
  ptx::pdl_wait();
  double total = kAddIdentity<double>;
  NO_UNROLL
  for (int first = 0; first < chunks; first += kAhead) {
    double loaded[kAhead];
    UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < chunks) loaded[i] = __ldcg(from + (first + i) * in_chunk);
    }
    UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < chunks) total += loaded[i];
    }
  }
  const int64_t row = index / p.n;
  store<double>(p, batch_offset(p.batch, p.c, row / p.m), row % p.m, index % p.n, total);
}

// The problem with partial sums in memory as its C, the first of the chunks.
inline Problem to_partial_sums(Problem p, double* sums) {
  p.c = contiguous_sums(p);
  p.c.data = sums;
  p.epilogue = {};
  return p;
}

inline void launch_split_k_reduce(const Problem& p, const double* partial_sums,
                                  const Context& context) {
  for_grids(ceil_div(p.batch.count * p.m * p.n, kReduceThreads),
            [&](int64_t first, unsigned blocks) {
              launch_pdl(f64_split_k_reduce_kernel<8>, blocks, kReduceThreads, 0, context, p,
                         partial_sums, first);
            });
}

}  // namespace tiled::cuda::f64_mma
