#pragma once
// The kernels of mma_tma, by dtype and tile. tma_instances/ instantiates them in translation units
// that are compiled in parallel.

#include <cstdint>

#include "core/context.h"
#include "core/problem.h"
#include "kernels/mma/costs_h200.h"

namespace tiled::cuda {

// Multiplies by the kernels of tile kIndex of h200::kMmaTmaTiles and operands of T, Half or
// BFloat16: one for each layout, and the split-K reduction, which layouts share. Both operands are
// is_tma_aligned(). Returns false if there is no memory for a workspace.
template <class T, int kIndex>
bool run_mma_tma_tile(const Problem& p, int64_t k_splits, const Context& context);

// The index of a tile in h200::kMmaTmaTiles.
consteval int mma_tma_tile(int m, int n, int cluster) {
  int index = 0;
  for (const h200::MmaTmaTile& tile : h200::kMmaTmaTiles) {
    if (tile.m == m && tile.n == n && tile.cluster == cluster) return index;
    ++index;
  }
  throw "there is no such tile";  // does not compile
}

}  // namespace tiled::cuda
