// combine: C = alpha * sums + bias + beta * C over complex numbers, if a real epilogue cannot.
//
// Idea:  One thread for each element, along the side of C with closer elements in memory.
// Limit: DRAM bandwidth; the sums are written and read once more.

#include "core/complex_element.h"
#include "kernels/common/launch.h"
#include "kernels/complex/passes.h"

namespace tiled::cuda {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;

struct Square {
  static constexpr int kM = kSide, kN = kSide;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Combine combine, Scalars<T> scalars, bool by_rows,
                   int64_t first_square) {
  const TileIndex at = tile_index<Square>(combine.problem, first_square + blockIdx.x);
  const int near = threadIdx.x % kSide, far = threadIdx.x / kSide;
  const int64_t row = at.row + (by_rows ? far : near), col = at.col + (by_rows ? near : far);
  if (row < combine.problem.m && col < combine.problem.n) {
    combine_element<T>(combine, scalars, at.batch, row, col);
  }
}

template <typename T>
void launch(const Combine& combine, const Context& context) {
  const Problem& p = combine.problem;
  const bool by_rows = p.c.col_stride <= p.c.row_stride;
  const Scalars<T> scalars(combine.epilogue);
  for_grids(count_tiles(p, kSide, kSide), [&](int64_t first, unsigned blocks) {
    combine_kernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
        combine, scalars, by_rows, first);
  });
}

}  // namespace

void launch_combine(const Combine& combine, const Context& context) {
  combine.problem.dtype == DType::kFloat64 ? launch<double>(combine, context)
                                           : launch<float>(combine, context);
}

}  // namespace tiled::cuda
