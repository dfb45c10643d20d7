#pragma once
// Marked elements where a kernel computes them again by itself, since a launch for them would cost
// more than they do. As a rule there are none, or few: then, if K is long, a warp takes one after
// another, since a thread that adds by itself waits for memory most of the time. It takes no shared
// memory: a kernel that adds sums is to find room beside the one that computes them.

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/problem.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// An element's row of A and column of B, along K.
struct Factors {
  const float *a, *b;
  int64_t a_stride, b_stride;

  __device__ Factors(const Problem& p, int64_t batch, int64_t row, int64_t col)
      : a(static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, batch) +
          row * p.a.row_stride),
        b(static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, batch) +
          col * p.b.col_stride),
        a_stride(p.a.col_stride),
        b_stride(p.b.row_stride) {}

  __device__ void skip(int64_t k) { a += k * a_stride, b += k * b_stride; }
};

// An element in the order of sum.h, by a thread; counted where there is a counter.
inline __device__ __noinline__ float sum_alone(const Problem& p, int64_t batch, int64_t row,
                                               int64_t col, unsigned long long* counter) {
  if (counter != nullptr) atomicAdd(counter, 1ull);
  Factors of(p, batch, row, col);
  float total = kAddIdentity<float>;
  for (int64_t left = p.k; left > 0; left -= kChunk) {
    const int length = static_cast<int>(min(left, int64_t{kChunk}));
    float acc = 0;
    _Pragma("unroll 8") for (int k = 0; k < length; ++k, of.skip(1)) {
      acc = fused_multiply_add(__ldg(of.a), __ldg(of.b), acc);
    }
    total += acc;
  }
  return total;
}

// So many chunks a warp adds at a time, each by a team of eight threads.
constexpr int kTeam = 8, kChunksAtOnce = 32 / kTeam;

// The sum of the team's chunk of an element, of those from `first` in K on. Each thread reads some
// of K, then all see what they have, one after another.
inline __device__ __noinline__ float sum_chunks(const Problem& p, int64_t batch, int64_t row,
                                                int64_t col, int64_t first) {
  constexpr int kEach = 16;
  const int in_team = static_cast<int>(threadIdx.x) % kTeam;
  const int longest = static_cast<int>(min(p.k - first, int64_t{kChunk}));
  first += static_cast<int>(threadIdx.x) % 32 / kTeam * kChunk;
  int left = static_cast<int>(min(p.k - first, int64_t{kChunk})) - in_team * kEach;
  Factors of(p, batch, row, col);
  of.skip(first + in_team * kEach);
  float acc = 0;
  NO_UNROLL
  for (int k = 0; k < longest; k += kTeam * kEach, left -= kTeam * kEach) {
    float a[kEach], b[kEach];
    UNROLL
    for (int i = 0; i < kEach; ++i, of.skip(1)) {
      a[i] = i < left ? __ldg(of.a) : kPadA<float>;
      b[i] = i < left ? __ldg(of.b) : kPadB<float>;
    }
    of.skip((kTeam - 1) * kEach);
    NO_UNROLL
    for (int whose = 0; whose < kTeam; ++whose) {
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        const float a_i = __shfl_sync(~0u, a[i], whose, kTeam);
        acc = fused_multiply_add(a_i, __shfl_sync(~0u, b[i], whose, kTeam), acc);
      }
    }
  }
  return acc;
}

// An element in the order of sum.h, by a warp.
inline __device__ float sum_together(const Problem& p, int64_t batch, int64_t row, int64_t col) {
  float total = kAddIdentity<float>;
  NO_UNROLL
  for (int64_t first = 0; first < p.k; first += kChunksAtOnce * kChunk) {
    const float own = sum_chunks(p, batch, row, col, first);
    NO_UNROLL
    for (int i = 0; i < kChunksAtOnce && first + i * kChunk < p.k; ++i) {
      total += __shfl_sync(~0u, own, i * kTeam);
    }
  }
  return total;
}

// An element whose sum is NaN, in the order of sum.h. All threads of a warp call this, each with an
// element or none; counted.
inline __device__ float sum_if_marked(const Problem& p, bool marked, int64_t batch, int64_t row,
                                      int64_t col, unsigned long long* counter) {
  unsigned left = __ballot_sync(~0u, marked);
  // More take together longer than each alone: a warp takes for four chunks of one half as long as
  // a thread for one chunk, by a measurement on an H200.
  const int64_t few = min(2 * ceil_div(p.k, kChunk), int64_t{8});
  if (__popc(left) > few) return marked ? sum_alone(p, batch, row, col, counter) : 0;
  if (marked && counter != nullptr) atomicAdd(counter, 1ull);
  float own = 0;
  for (; left != 0; left &= left - 1) {
    const int whose = __ffs(static_cast<int>(left)) - 1;
    const float sum = sum_together(p, __shfl_sync(~0u, batch, whose), __shfl_sync(~0u, row, whose),
                                   __shfl_sync(~0u, col, whose));
    if (static_cast<int>(threadIdx.x) % 32 == whose) own = sum;
  }
  return own;
}

// store(), once in the code however often it is called.
inline __device__ __noinline__ void store_one(const Problem& p, int64_t c_offset, int64_t row,
                                              int64_t col, float sum) {
  store<float>(p, c_offset, row, col, sum);
}

}  // namespace tiled::cuda
