#pragma once
// Recomputes single elements in the chunked order, in the kernel that flags them: a further launch
// would take longer than the few elements that there are as a rule. The functions use no shared
// memory, which lets blocks that add sums share an SM with those that still multiply.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/complex.h"
#include "core/context.h"
#include "core/element.h"
#include "core/epilogue.h"
#include "core/mixed.h"
#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/check.h"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/fp16x3/complex_column.cuh"

namespace tiled::cuda {

// An element's row of A and column of B, from some k on.
struct RowAndColumn {
  const float *a, *b;
  int64_t a_stride, b_stride;

  __device__ RowAndColumn(const Problem& p, int64_t batch, int64_t row, int64_t col)
      : a(static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, batch) +
          row * p.a.row_stride),
        b(static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, batch) +
          col * p.b.col_stride),
        a_stride(p.a.col_stride),
        b_stride(p.b.row_stride) {}

  __device__ void advance(int64_t k) { a += k * a_stride, b += k * b_stride; }
};

// Sums `left` products of a row and a column by one thread.
inline __device__ float sum_by_thread(RowAndColumn from, int64_t left) {
  float total = kAddIdentity<float>;
  for (; left > 0; left -= kChunk) {
    const int length = static_cast<int>(min(left, int64_t{kChunk}));
    float acc = 0;
    _Pragma("unroll 8") for (int k = 0; k < length; ++k, from.advance(1)) {
      acc = fused_multiply_add(__ldg(from.a), __ldg(from.b), acc);
    }
    total += acc;
  }
  return total;
}

inline __device__ __noinline__ float sum_by_thread_noinline(const RowAndColumn& from,
                                                            int64_t length) {
  return sum_by_thread(from, length);
}

// Recomputes an element by one thread, and counts it if there is a counter.
inline __device__ __noinline__ float recompute_by_thread(const Problem& p, int64_t batch,
                                                         int64_t row, int64_t col,
                                                         unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  return sum_by_thread(RowAndColumn(p, batch, row, col), p.k);
}

// A warp sums kChunksPerWarp chunks of an element at a time, kLanesPerChunk lanes each.
constexpr int kLanesPerChunk = 8, kChunksPerWarp = 32 / kLanesPerChunk;

// Returns the sum of the lane's own chunk, of the kChunksPerWarp chunks of an element from
// `first_k` on. The lanes of a chunk load different k, and then each of them adds the products of
// all, in order.
inline __device__ __noinline__ float sum_chunks(const Problem& p, int64_t batch, int64_t row,
                                                int64_t col, int64_t first_k) {
  constexpr int kPerLane = 16;
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerChunk;  // of the chunk's
  const int longest = static_cast<int>(min(p.k - first_k, int64_t{kChunk}));
  first_k += static_cast<int>(threadIdx.x) % 32 / kLanesPerChunk * kChunk;
  int left = static_cast<int>(min(p.k - first_k, int64_t{kChunk})) - lane * kPerLane;
  RowAndColumn from(p, batch, row, col);
  from.advance(first_k + lane * kPerLane);
  float acc = 0;
  NO_UNROLL
  for (int k = 0; k < longest; k += kLanesPerChunk * kPerLane, left -= kLanesPerChunk * kPerLane) {
    float a[kPerLane], b[kPerLane];
    UNROLL
    for (int i = 0; i < kPerLane; ++i, from.advance(1)) {
      a[i] = i < left ? __ldg(from.a) : kPadA<float>;
      b[i] = i < left ? __ldg(from.b) : kPadB<float>;
    }
    from.advance((kLanesPerChunk - 1) * kPerLane);
    NO_UNROLL
    for (int source = 0; source < kLanesPerChunk; ++source) {
      UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const float a_i = __shfl_sync(~0u, a[i], source, kLanesPerChunk);
        acc = fused_multiply_add(a_i, __shfl_sync(~0u, b[i], source, kLanesPerChunk), acc);
      }
    }
  }
  return acc;
}

// Recomputes an element by a warp.
inline __device__ float recompute_by_warp(const Problem& p, int64_t batch, int64_t row,
                                          int64_t col) {
  float total = kAddIdentity<float>;
  NO_UNROLL
  for (int64_t first_k = 0; first_k < p.k; first_k += kChunksPerWarp * kChunk) {
    const float own = sum_chunks(p, batch, row, col, first_k);
    NO_UNROLL
    for (int i = 0; i < kChunksPerWarp && first_k + i * kChunk < p.k; ++i) {
      total += __shfl_sync(~0u, own, i * kLanesPerChunk);
    }
  }
  return total;
}

// Returns a flagged element, recomputed and counted. All threads of a warp call it, each with an
// element of its own, flagged or not. A single thread is latency-bound, so the warp takes one
// flagged element after another if there are few, and if K is long enough to share.
inline __device__ float recompute_if_flagged(const Problem& p, bool flagged, int64_t batch,
                                             int64_t row, int64_t col,
                                             unsigned long long* counter) {
  unsigned left = __ballot_sync(~0u, flagged);
  const int64_t few = min(2 * ceil_div(p.k, kChunk), int64_t{8});  // measured on an H200
  if (__popc(left) > few) return flagged ? recompute_by_thread(p, batch, row, col, counter) : 0;
  if (flagged && counter != nullptr) atomicAdd(counter, 1ull);
  float own = 0;
  for (; left != 0; left &= left - 1) {
    const int source = __ffs(static_cast<int>(left)) - 1;
    const float sum =
        recompute_by_warp(p, __shfl_sync(~0u, batch, source), __shfl_sync(~0u, row, source),
                          __shfl_sync(~0u, col, source));
    if (static_cast<int>(threadIdx.x) % 32 == source) own = sum;
  }
  return own;
}

// --- A 16-bit operand ----------------------------------------------------------------------------

// Recomputes an element of a product of mixed operands by one thread, and counts it if there is a
// counter.
inline __device__ __noinline__ float recompute_mixed(const Problem& p, const Narrow& narrow,
                                                     int64_t matrix, int64_t row, int64_t col,
                                                     unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  const Matrix &a = p.a, &b = p.b;
  const int64_t a_offset = batch_offset(p.batch, a, matrix) + row * a.row_stride;
  const int64_t b_offset = batch_offset(p.batch, b, matrix) + col * b.col_stride;
  const bool is_a = narrow.is_a, is_half = narrow.dtype == DType::kFloat16;
  const auto* x = static_cast<const uint16_t*>(is_a ? a.data : b.data);
  const auto* y = static_cast<const float*>(is_a ? b.data : a.data);
  const int64_t x_stride = is_a ? a.col_stride : b.row_stride;
  const int64_t y_stride = is_a ? b.row_stride : a.col_stride;
  x += is_a ? a_offset : b_offset, y += is_a ? b_offset : a_offset;
  float total = kAddIdentity<float>;
  for (int64_t left = p.k; left > 0; left -= kChunk) {
    const int length = static_cast<int>(min(left, int64_t{kChunk}));
    float acc = 0;
    _Pragma("unroll 4") for (int k = 0; k < length; ++k) {
      const uint16_t bits = __ldg(x);
      acc = fused_multiply_add(is_half ? widen(Half{bits}) : widen(BFloat16{bits}), __ldg(y), acc);
      x += x_stride, y += y_stride;
    }
    total += acc;
  }
  return total;
}

// --- A complex B ---------------------------------------------------------------------------------

// Recomputes an element by one thread, and counts it if there is a counter. B is stored as
// in_place_b() describes it, and A has contiguous rows, or is stored as in_place_a() describes it.
// A warp of threads, each with an element of its own, waits for the longest: few products have such
// elements, and K is all that they read.
inline __device__ __noinline__ float recompute_complex(const Problem& p, const SignsOfB& signs,
                                                       int64_t matrix, int64_t row, int64_t col,
                                                       unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  const ComplexColumn column(signs, col);
  const auto* a =
      reinterpret_cast<const float2*>(static_cast<const float*>(p.a.data) +
                                      batch_offset(p.batch, p.a, matrix) + row * p.a.row_stride);
  const auto* b = reinterpret_cast<const float2*>(static_cast<const float*>(p.b.data) +
                                                  batch_offset(p.batch, p.b, matrix) +
                                                  col / 2 * 2 * p.b.col_stride);
  float total = kAddIdentity<float>;
  for (int64_t left = p.k; left > 0; left -= kChunk) {
    const int pairs = static_cast<int>(min(left, int64_t{kChunk})) / 2;
    float acc = 0;
    _Pragma("unroll 4") for (int i = 0; i < pairs; ++i) {
      const float2 x = __ldg(a), numbers = column.numbers(__ldg(b));
      acc = fused_multiply_add(x.x, numbers.x, acc);
      acc = fused_multiply_add(x.y, numbers.y, acc);
      a += p.a.col_stride, b += p.b.row_stride;
    }
    total += acc;
  }
  return total;
}

// Recomputes an element by one thread. kComplex: of a complex B, whose signs these are.
template <bool kComplex>
__device__ float recompute_element(const Problem& p, const SignsOfB& signs, int64_t matrix,
                                   int64_t row, int64_t col, unsigned long long* counter) {
  if constexpr (kComplex) return recompute_complex(p, signs, matrix, row, col, counter);
  return recompute_by_thread(p, matrix, row, col, counter);
}

// --- The host's side -----------------------------------------------------------------------------

// Calls run(counter) for a kernel that recomputes elements by itself and counts them in the GPU's
// memory, or run(nullptr) if the context does not ask for the count. Returns false if run() does,
// or, with nothing run, if there is no memory for the counter.
template <class Run>
bool with_recomputed_counter(const Context& context, const Run& run) {
  if (context.recomputed == nullptr) return run(nullptr);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  unsigned long long count = 0;
  auto* on_gpu = static_cast<unsigned long long*>(context.allocate(sizeof count));
  if (on_gpu == nullptr) return false;
  check(cudaMemsetAsync(on_gpu, 0, sizeof count, stream));
  if (!run(on_gpu)) return false;
  check(cudaMemcpyAsync(&count, on_gpu, sizeof count, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  *context.recomputed += static_cast<int64_t>(count);
  return true;
}

}  // namespace tiled::cuda
