#pragma once
// Loading tiles of parts (parts.h) by TMA.

#include <cstdint>

#include "kernels/attention/parts.h"
#include "kernels/attention/warpgroup.cuh"
#include "kernels/common/tensor_map.h"
#include "ptx/tma.cuh"

namespace tiled::cuda::attention {

template <int kBlocks>
__device__ void load_parts(Boxes<kBlocks>& to, const CUtensorMap& map, int row, uint32_t matrix,
                           uint64_t* full) {
  for (int i = 0; i < 2 * kBlocks; ++i) {
    const int part = i / kBlocks, block = i % kBlocks;
    const int coords[] = {block * 64, row, part, static_cast<int>(matrix), 0};
    ptx::tma_load(to[part][block], &map, coords, full);
  }
}

inline CUtensorMap map_of(const Parts& parts) {
  const Batch batch{.rank = 2, .count = parts.matrices * 2, .size = {parts.matrices, 2}};
  const int64_t plane = parts.rows * parts.columns;
  const Matrix matrix{.data = parts.data,
                      .row_stride = parts.columns,
                      .col_stride = 1,
                      .batch_stride = {plane * 2, plane}};
  return tensor_map(batch, matrix, parts.rows, parts.columns, kRows, 64, CU_TENSOR_MAP_SWIZZLE_128B,
                    DType::kFloat16);
}

}  // namespace tiled::cuda::attention
