// Running sums of rows on the CPU: core/order_cumsum.h as a program. A row is computed by one
// thread, and the segments of a chunk at once, by SIMD.

#include "cpu/cumsum.h"

#include <algorithm>
#include <cstdint>

#include "core/element.h"
#include "core/order_cumsum.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace tiled::cpu {
namespace {

using cumsum::kChunk, cumsum::kGroup, cumsum::kSegment;

constexpr int kGroups = kSegment / kGroup, kSegments = kChunk / kSegment;

template <typename T>
SIMD void widen_all(const T* __restrict x, int count, accumulator_t<T>* __restrict to) {
  for (int i = 0; i < count; ++i) to[i] = widen(x[i]);
}
template <typename T>
SIMD void narrow_all(const accumulator_t<T>* __restrict x, int count, T* __restrict to) {
  for (int i = 0; i < count; ++i) to[i] = narrow<T>(x[i]);
}

// Replaces the first `size` elements of segments, x[i][segment], by the running sums of the row.
// `before` is the sum before the chunk. Returns the chunk's sum.
template <typename A>
SIMD A sum_segments(A (&x)[kSegment][kSegments], int size, A before) {
  const int groups = static_cast<int>(ceil_div(size, kGroup));
  A totals[kGroups + 1][kSegments] = {};  // totals[g + 1] includes group g
  for (int g = 0; g < groups; ++g) {
    A(*group)[kSegments] = x + g * kGroup;
    for (int i = 1; i < kGroup; ++i) {
      for (int s = 0; s < kSegments; ++s) group[i][s] = group[i - 1][s] + group[i][s];
    }
    for (int s = 0; s < kSegments; ++s) totals[g + 1][s] = group[kGroup - 1][s];
  }
  for (int width = 1; width < groups; width *= 2) {
    for (int g = groups; g > width; --g) {
      for (int s = 0; s < kSegments; ++s) totals[g][s] = totals[g - width][s] + totals[g][s];
    }
  }
  A sum = 0, starts[kSegments];
  for (int s = 0; s < kSegments; ++s) {
    starts[s] = sum;
    sum += totals[groups][s];
  }
  for (int i = 0; i < size; ++i) {
    for (int s = 0; s < kSegments; ++s) {
      x[i][s] = (before + (starts[s] + totals[i / kGroup][s])) + x[i][s];
    }
  }
  return sum;
}

// Replaces the elements of a chunk by the running sums of the row, and returns the chunk's sum.
template <typename A>
A sum_chunk(A* x, int count, bool is_reversed, A before) {
  A segments[kSegment][kSegments] = {};
  const auto for_elements = [&](const auto& f) {
    for (int i = 0; i < count; ++i) {
      f(x[is_reversed ? count - 1 - i : i], segments[i % kSegment][i / kSegment]);
    }
  };
  for_elements([](A& element, A& in_segment) { in_segment = element; });
  const A sum = sum_segments(segments, std::min(count, kSegment), before);
  for_elements([](A& element, A& in_segment) { element = in_segment; });
  return sum;
}

template <typename T>
void sum_row(const CumSumProblem& p, int64_t row) {
  using A = accumulator_t<T>;
  const T* x = static_cast<const T*>(p.x.data) + row * p.x.pitch;
  T* out = static_cast<T*>(p.out) + row * p.columns;
  A superchunks = 0, chunks = 0;  // the sums of those before a chunk
  for (int64_t i = 0; i < p.columns; i += kChunk) {
    if (i > 0 && i % (int64_t{kChunk} * kChunk) == 0) {
      superchunks += chunks;
      chunks = 0;
    }
    const auto count = static_cast<int>(std::min<int64_t>(kChunk, p.columns - i));
    const int64_t first = p.is_reversed ? p.columns - i - count : i;
    A chunk[kChunk];
    widen_all(x + first, count, chunk);
    chunks += sum_chunk(chunk, count, p.is_reversed, superchunks + chunks);
    narrow_all(chunk, count, out + first);
  }
}

}  // namespace

void launch_cumsum(const CumSumProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() {
    const double operations = 4 * static_cast<double>(p.columns);
    parallel_for(context, p.rows, operations, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) sum_row<T>(p, row);
    });
  });
}

}  // namespace tiled::cpu
