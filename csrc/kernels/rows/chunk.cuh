#pragma once
// Chunks of rows in a warp's registers, and launches of kernels of rows.
//
// Lane l has the elements 4 l to 4 l + 3 of each kParts of a chunk: those of the four parts that
// sum_parts() of sum.cuh joins.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_rows.h"
#include "core/rows.h"
#include "kernels/common/launch.h"
#include "kernels/rows/sum.cuh"

namespace tiled::cuda::rows {

// The adjacent elements of a lane, loaded at once: by two instructions if they have 32 bytes.
template <typename T>
struct alignas(kVector * sizeof(T) < 16 ? kVector * sizeof(T) : 16) Vector {
  T elements[kVector];
};

template <typename A>
using Chunk = A[kSteps][kVector];

// Calls f(x, step, i) for each element of a lane that is in the steps of `count` elements.
template <typename A, class F>
__device__ void for_elements(Chunk<A>& chunk, int count, const F& f) {
  UNROLL
  for (int step = 0; step < kSteps; ++step) {
    if (step * order::kParts >= count) break;
    UNROLL
    for (int i = 0; i < kVector; ++i) f(chunk[step][i], step, i);
  }
}

// A row in global memory, by chunks.
template <typename T>
class Row {
 public:
  using A = accumulator_t<T>;

  // is_vectorized: all vectors are aligned, and the row ends with one.
  __device__ Row(T* data, int64_t size, bool is_vectorized)
      : data_(data), size_(size), is_vectorized_(is_vectorized) {}

  // Returns how many elements a chunk has.
  __device__ int count(int64_t chunk) const {
    return static_cast<int>(min(size_ - chunk * order::kChunk, int64_t{order::kChunk}));
  }

  // Loads what a lane has of a chunk, with `filler` past the row's end.
  __device__ void load(int64_t chunk, A filler, Chunk<A>& to) const {
    const T* from = data_ + chunk * order::kChunk + lane_offset();
    const int left = count(chunk) - lane_offset();
    if (is_vectorized_) {
      Vector<T> vectors[kSteps] = {};
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int at = step * order::kParts;
        if (at < left) vectors[step] = *reinterpret_cast<const Vector<T>*>(from + at);
      }
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          to[step][i] = step * order::kParts < left ? widen(vectors[step].elements[i]) : filler;
        }
      }
    } else {
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          const int at = step * order::kParts + i;
          to[step][i] = at < left ? widen(from[at]) : filler;
        }
      }
    }
  }

  // Stores value(step, i) as what a lane has of a chunk, up to the row's end.
  template <class F>
  __device__ void store(int64_t chunk, const F& value) const {
    T* to = data_ + chunk * order::kChunk + lane_offset();
    const int left = count(chunk) - lane_offset();
    UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int at = step * order::kParts;
      if (at >= left) break;
      Vector<T> vector;
      UNROLL
      for (int i = 0; i < kVector; ++i) vector.elements[i] = narrow<T>(value(step, i));
      if (is_vectorized_) {
        *reinterpret_cast<Vector<T>*>(to + at) = vector;
      } else {
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          if (at + i < left) to[at + i] = vector.elements[i];
        }
      }
    }
  }

 private:
  __device__ static int lane_offset() { return static_cast<int>(threadIdx.x) % kWarp * kVector; }

  T* data_;
  int64_t size_;
  bool is_vectorized_;
};

// Returns a row of an operand, or of the result, which alone is written.
template <typename T>
__device__ Row<T> row_of(const Rows& x, int64_t row, int64_t columns, bool is_vectorized) {
  const T* first = static_cast<const T*>(x.data) + row * x.pitch;
  return {const_cast<T*>(first), columns, is_vectorized};
}

// --- The largest element -------------------------------------------------------------------------

// Returns the largest element of a warp's lanes, in every lane.
template <typename A>
__device__ A warp_max(A x) {
  UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = order::max_or_nan(x, __shfl_xor_sync(~0u, x, lanes));
  }
  return x;
}

// Returns the largest element of a block's threads, in every thread. All threads call it, once.
template <typename A, int kWarps>
__device__ A block_max(A x, A (&maxima)[kWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  x = warp_max(x);
  if (lane == 0) maxima[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_max(maxima[lane % kWarps]);
}

// --- Launches ------------------------------------------------------------------------------------

inline constexpr int kRowsOfBlock = 8;  // rows of up to one chunk, each a warp's
inline constexpr int kWarps = 8;        // of a block with one longer row
// Those of a block with a row of more than kWarps chunks. An SM's registers have a chunk for each
// of 32 warps if it is of floats.
template <typename T>
inline constexpr int kWarpsOfLongRow = std::is_same_v<T, double> ? 8 : 32;

// Returns whether vectors of T are aligned in all rows, and no row ends within one.
template <typename T>
bool is_vectorized(const Rows& x, int64_t columns) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.data) % alignof(Vector<T>) == 0;
  return is_aligned && x.pitch % kVector == 0 && columns % kVector == 0;
}

// Launches kernel(problem, is_vectorized, first_block) with enough blocks for all rows.
template <class Problem>
void launch_blocks(void (*kernel)(Problem, bool, int64_t), int warps, const Problem& p,
                   bool is_vectorized, const Context& context) {
  const bool is_row_of_warp = p.columns <= order::kChunk;
  for_grids(is_row_of_warp ? ceil_div(p.rows, kRowsOfBlock) : p.rows,
            [&](int64_t first, unsigned blocks) {
              launch_pdl(kernel, blocks, warps * kWarp, 0, context, p, is_vectorized, first);
            });
}

}  // namespace tiled::cuda::rows
