#include "kernels/conv/im2col_map.h"

#include <stdexcept>
#include <string>

#include "core/driver.h"

namespace tiled::cuda::conv {
namespace {

using Encode = decltype(&cuTensorMapEncodeIm2col);

}  // namespace

CUtensorMap im2col_map(const Convolution& conv, const void* hi_lo, int channels, int windows,
                       bool deep) {
  static const Encode encode = driver_function<Encode>("cuTensorMapEncodeIm2col", 12000);
  if (encode == nullptr) {
    throw std::runtime_error(
        "torch_tiled: this CUDA driver has no tensor maps; install a driver for CUDA 12.0 or "
        "later");
  }
  const auto rank = static_cast<uint32_t>(deep ? 5 : 4);
  const auto pixel_bytes = static_cast<uint64_t>(conv.padded_channels()) * 4;
  uint64_t size[5] = {pixel_bytes / 2}, stride[4];
  uint32_t traversal[5] = {1, 1, 1, 1, 1};
  int lower[3], upper[3];
  stride[0] = pixel_bytes;
  const int dims = deep ? 3 : 2;
  for (int i = 0; i < dims; ++i) {
    const int d = kSpatialDims - 1 - i;
    const Corners corners(conv, d);
    size[1 + i] = static_cast<uint64_t>(conv.in[d]);
    stride[1 + i] = stride[i] * size[1 + i];
    traversal[1 + i] = static_cast<uint32_t>(conv.stride[d]);
    lower[i] = static_cast<int>(corners.lower), upper[i] = static_cast<int>(corners.upper);
  }
  size[1 + dims] = static_cast<uint64_t>(conv.images);
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, const_cast<void*>(hi_lo), size, stride,
             lower, upper, static_cast<uint32_t>(channels), static_cast<uint32_t>(windows),
             traversal, CU_TENSOR_MAP_INTERLEAVE_NONE,
             channels == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(
        "torch_tiled: the CUDA driver made no tensor map of " + std::to_string(conv.images) +
        " images of " + std::to_string(conv.channels) + " channels and " +
        std::to_string(conv.in_pixels()) + " pixels (error " + std::to_string(result) + ")");
  }
  return map;
}

}  // namespace tiled::cuda::conv
