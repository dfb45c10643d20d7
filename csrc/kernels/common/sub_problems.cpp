#include "kernels/common/sub_problems.h"

#include "core/presplit.h"
#include "core/split_in_two.h"
#include "kernels/common/check.h"

namespace tiled::cuda {

std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p) {
  const bool along_m = p.m >= p.n || p.b_presplit.hi_lo != nullptr;
  return tiled::split_in_two(p, along_m, Presplit::kRows, sizeof(float));
}

bool fits_in_free_memory(int64_t bytes) {
  constexpr int64_t kNotAsked = int64_t{1} << 30;
  if (bytes <= kNotAsked) return true;
  size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all));
  return bytes <= static_cast<int64_t>(free);
}

}  // namespace tiled::cuda
