// Running sums of rows on the CPU: core/order_cumsum.h as a program. A row is computed by one
// thread.

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

constexpr int kGroups = kSegment / kGroup;

// Stores the running sums of up to kSegment elements that are `step` apart. `before` is the sum of
// the chunks before; `sum`, of the segments before in the chunk, gets this segment's added.
template <typename T, typename A>
SIMD void sum_segment(const T* x, int64_t step, int count, A before, A& sum, T* out) {
  A sums[kGroup][kGroups];  // of a group, up to an element
  for (int i = 0; i < kSegment; ++i) {
    sums[i % kGroup][i / kGroup] = i < count ? widen(x[i * step]) : A{0};
  }
  for (int i = 1; i < kGroup; ++i) {
    for (int g = 0; g < kGroups; ++g) sums[i][g] = sums[i - 1][g] + sums[i][g];
  }
  A totals[kGroups], last[kGroups];
  std::copy_n(sums[kGroup - 1], kGroups, totals);
  for (int width = 1; width < kGroups; width *= 2) {
    std::copy_n(totals, kGroups, last);
    for (int g = width; g < kGroups; ++g) totals[g] = last[g - width] + last[g];
  }
  for (int g = 0; g < kGroups; ++g) {
    const A start = before + (sum + (g > 0 ? totals[g - 1] : A{0}));
    for (int i = 0; i < kGroup; ++i) sums[i][g] = start + sums[i][g];
  }
  for (int i = 0; i < count; ++i) out[i * step] = narrow<T>(sums[i % kGroup][i / kGroup]);
  sum += totals[kGroups - 1];
}

template <typename T>
void sum_row(const CumSumProblem& p, int64_t row) {
  using A = accumulator_t<T>;
  const int64_t step = p.is_reversed ? -1 : 1, first = p.is_reversed ? p.columns - 1 : 0;
  const T* x = static_cast<const T*>(p.x.data) + row * p.x.pitch + first;
  T* out = static_cast<T*>(p.out) + row * p.columns + first;
  A superchunks = 0, chunks = 0, segments = 0;  // the sums of those before an element
  for (int64_t i = 0; i < p.columns; i += kSegment) {
    if (i > 0 && i % kChunk == 0) {
      chunks += segments;
      segments = 0;
      if (i % (int64_t{kChunk} * kChunk) == 0) {
        superchunks += chunks;
        chunks = 0;
      }
    }
    const auto count = static_cast<int>(std::min<int64_t>(kSegment, p.columns - i));
    sum_segment(x + i * step, step, count, superchunks + chunks, segments, out + i * step);
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
