#pragma once
// Convolutions of float32 images by filters, as kernels see them:
//
//   y[n, f, o] = activation(bias[f] + sum of x[n, c, first + o * stride + t * dilation] w[f, c, t])
//
// over channels c and taps t, where o and t are positions in up to three dimensions. x is 0 outside
// an image.

#include <cstdint>
#include <vector>

#include "core/host_device.h"
#include "core/order_chunked.h"
#include "core/problem.h"

namespace tiled {

inline constexpr int kSpatialDims = 3;  // depth, height and width; a missing one has the size 1

// Images, or filters. Strides count elements and may be negative.
template <class T>
struct ImagesOf {
  T* data = nullptr;
  int64_t image = 0, channel = 0;  // strides; of filters: of a filter, and of a channel
  int64_t spatial[kSpatialDims] = {};
};

struct Convolution {
  // The channels of a tap are padded to whole steps of K, with zeros.
  static constexpr int kStep = Presplit::kK;

  int64_t images = 0, channels = 0, filters = 0;
  int64_t in[kSpatialDims] = {1, 1, 1}, taps[kSpatialDims] = {1, 1, 1},
          out[kSpatialDims] = {1, 1, 1};
  int64_t stride[kSpatialDims] = {1, 1, 1}, dilation[kSpatialDims] = {1, 1, 1};
  int64_t first[kSpatialDims] = {};  // where the first tap of the first window is: -padding
  ImagesOf<const float> x, w;
  ImagesOf<float> y;
  const float* bias = nullptr;
  int64_t bias_stride = 0;
  Activation activation = Activation::kNone;

  HOST_DEVICE int64_t in_pixels() const { return in[0] * in[1] * in[2]; }  // of an image
  HOST_DEVICE int64_t all_taps() const { return taps[0] * taps[1] * taps[2]; }
  HOST_DEVICE int64_t windows() const { return images * out[0] * out[1] * out[2]; }
  HOST_DEVICE int64_t padded_channels() const { return ceil_div(channels, kStep) * kStep; }
  // The length of an element's sum: taps row by row, and the padded channels of each.
  HOST_DEVICE int64_t k() const { return all_taps() * padded_channels(); }
};

// The convolutions that make up the transposed one, which is the gradient of x from that of y: one
// for each remainder of the stride at which there are taps, and each writes elements of dx of its
// own. All other elements of dx are 0. `conv` describes the convolution forwards.
std::vector<Convolution> transposed(const Convolution& conv, const ImagesOf<const float>& dy,
                                    const ImagesOf<float>& dx);

// The gradient of filters: dw[f, c, t] is the sum over windows of dy[n, f, o] x[n, c, first + o *
// stride + t * dilation]. `conv` describes the convolution forwards; its w and y are left out.
struct FilterGradient {
  Convolution conv;
  ImagesOf<const float> dy;  // pixels are dy.spatial[kSpatialDims - 1] apart, across rows as well
  ImagesOf<float> dw;

  HOST_DEVICE int64_t k() const { return conv.windows(); }
};

// Images without depth and without taps along it have tensor maps of a dimension less, which
// allows larger filters.
inline bool has_depth(const Convolution& conv) {
  return conv.in[0] != 1 || conv.taps[0] != 1 || conv.out[0] != 1;
}

// Returns whether TMA in im2col mode can load the windows: their corners and their taps are near
// enough to the image, and the stride is at most 8 (CUDA driver API, cuTensorMapEncodeIm2col).
bool fits_im2col(const Convolution& conv);

// The range of windows' first taps along a dimension, from the image's edges: `lower` from its
// beginning, and `upper` from its end.
struct Corners {
  int64_t lower, upper;
  Corners(const Convolution& conv, int d)
      : lower(conv.first[d]),
        upper(conv.first[d] + (conv.out[d] - 1) * conv.stride[d] - (conv.in[d] - 1)) {}
};

}  // namespace tiled
