#pragma once
// Tensor maps, by which the copy engine reads boxes of a matrix: CUDA driver API,
// cuTensorMapEncodeTiled.

#include <cuda.h>

#include <cstdint>

#include "core/problem.h"

namespace tiled::cuda {

// Of `rows` rows, row_stride apart, by k, col_stride apart, one of which strides is 1: boxes of
// box_rows by box_k elements of a dtype, float32 or halves, swizzled or not. Their coordinates are
// those of neighbours first, then the other, then of the batch dimensions that are not broadcast,
// the last one first. What is outside comes as zeros. For a matrix that is is_tma_aligned()
// (problem.h).
CUtensorMap tensor_map(const Batch& batch, const Matrix& matrix, int64_t rows, int64_t k,
                       int box_rows, int box_k, CUtensorMapSwizzle swizzle,
                       DType dtype = DType::kFloat32);

}  // namespace tiled::cuda
