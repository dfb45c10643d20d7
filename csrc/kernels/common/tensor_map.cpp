#include "kernels/common/tensor_map.h"

#include <stdexcept>
#include <string>

#include "core/driver.h"

namespace tiled::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  const auto encode = driver_function<Encode>("cuTensorMapEncodeTiled", 12000);
  if (encode == nullptr) {
    throw std::runtime_error(
        "torch_tiled: this CUDA driver has no tensor maps; install a driver for CUDA 12.0 or "
        "later");
  }
  return encode;
}

}  // namespace

CUtensorMap tensor_map(const Batch& batch, const Matrix& matrix, int64_t rows, int64_t k,
                       int box_rows, int box_k, CUtensorMapSwizzle swizzle, DType dtype) {
  static const Encode encode = find_encode();
  const auto element_bytes = static_cast<uint64_t>(size_of(dtype));
  constexpr int kRank = 2 + kMaxTmaBatchRank;
  const bool k_major = matrix.col_stride < matrix.row_stride;
  uint64_t size[kRank] = {static_cast<uint64_t>(k_major ? k : rows),
                          static_cast<uint64_t>(k_major ? rows : k), 1, 1, 1};
  const int64_t pitch = k_major ? matrix.row_stride : matrix.col_stride;
  uint64_t stride[kRank - 1];  // bytes, from the second dimension on
  for (uint64_t& each : stride) each = static_cast<uint64_t>(pitch) * element_bytes;
  uint32_t box[kRank] = {static_cast<uint32_t>(k_major ? box_k : box_rows),
                         static_cast<uint32_t>(k_major ? box_rows : box_k), 1, 1, 1};
  const uint32_t element_stride[kRank] = {1, 1, 1, 1, 1};
  int used = 2;
  for (int d = batch.rank - 1; d >= 0; --d) {
    if (matrix.batch_stride[d] == 0) continue;
    size[used] = static_cast<uint64_t>(batch.size[d]);
    stride[used - 1] = static_cast<uint64_t>(matrix.batch_stride[d]) * element_bytes;
    ++used;
  }
  // Promoting L2 fetches to two cache lines pays for 16-bit rows only if they begin with a line.
  const bool two_lines = dtype == DType::kFloat32 || stride[0] % kCacheLineBytes == 0;
  void* address = const_cast<void*>(matrix.data);  // the driver does not write there
  CUtensorMap map;
  const CUresult result = encode(
      &map,
      dtype == DType::kFloat64   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64
      : dtype == DType::kFloat32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,  // bfloat16 is copied alike
      kRank, address, size, stride, box, element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      two_lines ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("torch_tiled: the CUDA driver made no tensor map of " +
                             std::to_string(size[1]) + " rows of " + std::to_string(size[0]) +
                             " elements, " + std::to_string(stride[0]) + " bytes apart (error " +
                             std::to_string(result) + ")");
  }
  return map;
}

}  // namespace tiled::cuda
