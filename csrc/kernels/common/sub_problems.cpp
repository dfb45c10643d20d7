#include "kernels/common/sub_problems.h"

#include <algorithm>
#include <type_traits>

#include "core/presplit.h"
#include "kernels/common/check.h"

namespace tiled::cuda {

std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p) {
  std::pair parts{p, p};
  auto& [first, second] = parts;
  const auto advance = [](auto& matrix, int64_t elements) {  // of float32
    using Element =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(matrix.data)>>,
                           const float, float>;
    matrix.data = static_cast<Element*>(matrix.data) + elements;
  };
  for (int d = 0; d < p.batch.rank; ++d) {
    const int64_t size = p.batch.size[d];
    if (size == 1) continue;
    const int64_t half = ceil_div(size, 2);
    first.batch.size[d] = half, second.batch.size[d] = size - half;
    first.batch.count = p.batch.count / size * half;
    second.batch.count = p.batch.count / size * (size - half);
    advance(second.a, half * p.a.batch_stride[d]);
    advance(second.b, half * p.b.batch_stride[d]);
    advance(second.c, half * p.c.batch_stride[d]);
    return parts;
  }
  const bool along_m = p.m >= p.n || p.b_presplit.hi_lo != nullptr;
  const int64_t size = along_m ? p.m : p.n;
  if (size <= Presplit::kRows) return std::nullopt;
  const int64_t half = ceil_div(size, 2 * Presplit::kRows) * Presplit::kRows;
  (along_m ? first.m : first.n) = half;
  (along_m ? second.m : second.n) = size - half;
  if (along_m) {
    advance(second.a, half * p.a.row_stride);
    advance(second.c, half * p.c.row_stride);
  } else {
    advance(second.b, half * p.b.col_stride);
    advance(second.c, half * p.c.col_stride);
    if (p.epilogue.bias != nullptr) {
      second.epilogue.bias =
          static_cast<const float*>(p.epilogue.bias) + half * p.epilogue.bias_stride;
    }
  }
  return parts;
}

int64_t free_memory() {
  size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all));
  return std::max(static_cast<int64_t>(free), kSmallWorkspace);
}

}  // namespace tiled::cuda
