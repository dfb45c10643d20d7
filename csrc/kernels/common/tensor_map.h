#pragma once
// Tensor maps, by which TMA loads and stores boxes of a matrix: CUDA driver API,
// cuTensorMapEncodeTiled.

#include <cuda.h>

#include <cstdint>

#include "core/problem.h"

namespace tiled::cuda {

// Returns the map of a matrix of `rows`, row_stride apart, by k, col_stride apart; one of the
// strides is 1, and the matrix is is_tma_aligned() (problem.h). Its boxes have box_rows by box_k
// elements. A box has five coordinates: along the contiguous side, along the other one, then in the
// batch dimensions that are not broadcast, the last one first. Elements outside the matrix are
// loaded as zeros.
CUtensorMap tensor_map(const Batch& batch, const Matrix& matrix, int64_t rows, int64_t k,
                       int box_rows, int box_k, CUtensorMapSwizzle swizzle,
                       DType dtype = DType::kFloat32);

}  // namespace tiled::cuda
