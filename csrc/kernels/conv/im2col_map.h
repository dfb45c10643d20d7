#pragma once
// Tensor maps of images in im2col mode: CUDA driver API, cuTensorMapEncodeIm2col.

#include <cuda.h>

#include "core/convolution.h"

namespace tiled::cuda::conv {

// Returns the map of split images (split_images.cuh): a box has one part of a step of channels, of
// `windows`. deep: the map has a depth, which images without it may have as well.
CUtensorMap im2col_map(const Convolution& conv, const void* hi_lo, int windows, bool deep);

}  // namespace tiled::cuda::conv
