#pragma once
// Tensor maps of images in im2col mode: CUDA driver API, cuTensorMapEncodeIm2col.

#include <cuda.h>

#include "core/convolution.h"

namespace tiled::cuda::conv {

// Returns the map of split images (split_images.cuh): a box has `channels` of one part, 32 or 64,
// of `windows`, swizzled over all of its rows' bytes. deep: the map has a depth, which images
// without it may have as well.
CUtensorMap im2col_map(const Convolution& conv, const void* hi_lo, int channels, int windows,
                       bool deep);

}  // namespace tiled::cuda::conv
