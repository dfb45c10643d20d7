#pragma once
// What the kernels of norms share: the warps that have a row, and a lane's elements of a chunk.

#include <algorithm>
#include <cstdint>

#include "core/element.h"
#include "kernels/rows/chunk.cuh"
#include "kernels/rows/sum.cuh"

namespace tiled::cuda::rows {

// --- Warps of a row ------------------------------------------------------------------------------

// The warps of a block with one row, up to kMostWarps. A warp has every `count`-th chunk from
// first_chunk on, which is 0 for the first one.
template <typename A, bool kIsShort>
struct RowWarps {
  static constexpr int kRows = 1, kMostWarps = 8, kThreads = kMostWarps * kWarp;  // of a block
  using Smem = typename RowSum<A, 0>::Smem;

  Smem& smem;
  const int row = 0;
  const int first_chunk = static_cast<int>(threadIdx.x) / kWarp;
  const int count = static_cast<int>(blockDim.x) / kWarp;

  __device__ explicit RowWarps(Smem& smem) : smem(smem) {}

  // Returns the sum of a row of n elements in every thread; chunk(index) is that of a chunk.
  template <class Chunk>
  __device__ A sum(int64_t n, const Chunk& chunk) const {
    return RowSum<A, 0>(smem)(n, chunk);
  }

  // The threads of a block for rows of this length.
  static int threads(int64_t columns) {
    const int64_t chunks = ceil_div(columns, order::kChunk);
    return static_cast<int>(std::min<int64_t>(chunks, kMostWarps)) * kWarp;
  }
};

// A warp with a row of one chunk, and the block's other warps with the next rows.
template <typename A>
struct RowWarps<A, true> {
  static constexpr int kRows = 4, kThreads = kRows * kWarp;
  struct Smem {};

  const int row = static_cast<int>(threadIdx.x) / kWarp;
  static constexpr int first_chunk = 0, count = 1;

  __device__ explicit RowWarps(Smem&) {}

  template <class Chunk>
  __device__ A sum(int64_t, const Chunk& chunk) const {
    return chunk(int64_t{0});
  }

  static int threads(int64_t) { return kThreads; }
};

// --- A lane's elements ---------------------------------------------------------------------------

// A lane has kSteps vectors of kVector elements of each chunk, kParts elements apart.
struct LaneOfChunk {
  int64_t first;  // element of the row
  int left;       // elements from there on, at most kChunk; 0 or less if there are none

  __device__ LaneOfChunk(int64_t chunk, int64_t columns)
      : first(chunk * order::kChunk + static_cast<int>(threadIdx.x) % kWarp * kVector),
        left(static_cast<int>(min(columns - first, int64_t{order::kChunk}))) {}

  __device__ int64_t at(int step) const { return first + step * order::kParts; }
  __device__ int left_at(int step) const { return left - step * order::kParts; }
};

// Returns the sum of a chunk, in every lane. add(part, step, i) adds an element to its part.
template <typename A, class Add>
__device__ A sum_lanes(const LaneOfChunk& lane, const Add& add) {
  A parts[kVector] = {};
  UNROLL
  for (int step = 0; step < kSteps; ++step) {
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (i < lane.left_at(step)) add(parts[i], step, i);
    }
  }
  return sum_parts(parts);
}

// Loads a vector, of which `left` elements are in the row, and zeros for the others. Rows of
// aligned vectors have a multiple of kVector elements.
template <typename T>
__device__ void load_vector(const T* from, int left, bool is_aligned,
                            accumulator_t<T> (&to)[kVector]) {
  if (is_aligned) {
    Vector<T> vector = {};
    if (left > 0) vector = *reinterpret_cast<const Vector<T>*>(from);
    UNROLL
    for (int i = 0; i < kVector; ++i) to[i] = widen(vector.elements[i]);
  } else {
    UNROLL
    for (int i = 0; i < kVector; ++i) to[i] = i < left ? widen(from[i]) : accumulator_t<T>(0);
  }
}

template <typename T>
__device__ void store_vector(T* to, int left, bool is_aligned,
                             const accumulator_t<T> (&from)[kVector]) {
  Vector<T> vector;
  UNROLL
  for (int i = 0; i < kVector; ++i) vector.elements[i] = narrow<T>(from[i]);
  if (is_aligned) {
    if (left > 0) *reinterpret_cast<Vector<T>*>(to) = vector;
  } else {
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (i < left) to[i] = vector.elements[i];
    }
  }
}

// Loads a vector of a weight or of a bias, which are T, or float32 if is_wide; `none` if it is
// null.
template <typename T, typename A = accumulator_t<T>>
__device__ void load_params(const void* params, int64_t at, int left, bool is_wide, bool is_aligned,
                            A none, A (&to)[kVector]) {
  if (params == nullptr) {
    UNROLL
    for (A& x : to) x = none;
    return;
  }
  if constexpr (sizeof(T) == 2) {
    if (is_wide) return load_vector(static_cast<const float*>(params) + at, left, is_aligned, to);
  }
  load_vector(static_cast<const T*>(params) + at, left, is_aligned, to);
}

// Returns whether a weight or a bias consists of aligned vectors; so does one that is null.
template <typename T>
bool are_params_aligned(const void* params, int64_t columns, bool is_wide) {
  const Rows rows{params, 0};
  return params == nullptr ||
         (is_wide ? is_vectorized<float>(rows, columns) : is_vectorized<T>(rows, columns));
}

}  // namespace tiled::cuda::rows
