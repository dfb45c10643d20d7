#pragma once
// Windows of images and taps of filters, by their positions.

#include <cstdint>

#include "core/convolution.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"

namespace tiled::cuda::conv {

// Divides by the sizes of y.
struct WindowSizes {
  FastDivmod out[kSpatialDims];

  static WindowSizes of(const Convolution& conv) {
    WindowSizes sizes{};
    for (int d = 0; d < kSpatialDims; ++d) {
      sizes.out[d] = FastDivmod::of(static_cast<uint32_t>(conv.out[d]));
    }
    return sizes;
  }
};

// The image of a window, and its place there. Windows are counted image by image, row by row.
struct Window {
  int64_t image;
  int at[kSpatialDims];

  __device__ Window(const WindowSizes& sizes, int64_t index) {
    UNROLL
    for (int d = kSpatialDims - 1; d >= 0; --d) {
      const int64_t next = sizes.out[d].divide(index);
      at[d] = static_cast<int>(index - next * sizes.out[d].by);
      index = next;
    }
    image = index;
  }
  __device__ void advance(const Convolution& conv, int count) {
    at[2] += count;
    while (at[2] >= conv.out[2]) {
      at[2] -= static_cast<int>(conv.out[2]);
      if (++at[1] < conv.out[1]) continue;
      at[1] = 0;
      if (++at[0] < conv.out[0]) continue;
      at[0] = 0, ++image;
    }
  }
  // Where its first tap is along a dimension.
  __device__ int first(const Convolution& conv, int d) const {
    return static_cast<int>(conv.first[d] + at[d] * conv.stride[d]);
  }
  __device__ int64_t offset_in_y(const Convolution& conv) const {
    int64_t offset = image * conv.y.image;
    UNROLL
    for (int d = 0; d < kSpatialDims; ++d) offset += at[d] * conv.y.spatial[d];
    return offset;
  }
};

// A tap of all filters.
struct Tap {
  int at[kSpatialDims];

  __device__ Tap(const Convolution& conv, int64_t index)
      : at{static_cast<int>(index / conv.taps[2] / conv.taps[1]),
           static_cast<int>(index / conv.taps[2] % conv.taps[1]),
           static_cast<int>(index % conv.taps[2])} {}
  __device__ void advance(const Convolution& conv) {
    if (++at[2] < conv.taps[2]) return;
    at[2] = 0;
    if (++at[1] < conv.taps[1]) return;
    at[1] = 0, ++at[0];
  }
};

// The pixel that a window has at a tap.
struct Pixel {
  bool exists = true;  // inside the image
  int64_t index = 0;   // in the image
  int64_t offset;      // of its first channel, in x

  __device__ Pixel(const Convolution& conv, const Window& window, const Tap& tap)
      : offset(window.image * conv.x.image) {
    UNROLL
    for (int d = 0; d < kSpatialDims; ++d) {
      const int64_t place = window.first(conv, d) + tap.at[d] * conv.dilation[d];
      exists &= place >= 0 && place < conv.in[d];
      index = index * conv.in[d] + place;
      offset += place * conv.x.spatial[d];
    }
  }
};

}  // namespace tiled::cuda::conv
