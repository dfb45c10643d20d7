#include "core/convolution.h"

#include <algorithm>
#include <numeric>

namespace tiled {
namespace {

// The taps along one dimension that reach the elements of dx with one remainder of the stride,
// last one first: `count` of them, `step` apart. Window i of dx has tap t at dy[first + i +
// t * dilation].
struct Taps {
  int64_t count = 0, last = 0, step = 1, first = 0, dilation = 1;

  Taps(const Convolution& conv, int d, int64_t remainder) {
    const int64_t stride = conv.stride[d];
    step = stride / std::gcd(stride, conv.dilation[d]);
    dilation = conv.dilation[d] / std::gcd(stride, conv.dilation[d]);
    for (int64_t tap = 0; tap < std::min(step, conv.taps[d]); ++tap) {
      // The place in dx, from the place of the tap.
      if ((remainder - conv.first[d] - tap * conv.dilation[d]) % stride != 0) continue;
      count = (conv.taps[d] - 1 - tap) / step + 1;
      last = tap + (count - 1) * step;
      first = (remainder - conv.first[d] - last * conv.dilation[d]) / stride;
      return;
    }
  }
};

}  // namespace

std::vector<Convolution> transposed(const Convolution& conv, const ImagesOf<const float>& dy,
                                    const ImagesOf<float>& dx) {
  std::vector<Convolution> parts;
  const auto& [of_depth, of_height, of_width] = conv.stride;
  for (int64_t index = 0; index < of_depth * of_height * of_width; ++index) {
    const int64_t remainder[] = {index / of_width / of_height, index / of_width % of_height,
                                 index % of_width};
    Convolution part;
    part.images = conv.images, part.channels = conv.filters, part.filters = conv.channels;
    part.x = dy, part.y = dx;
    part.w = {.data = conv.w.data, .image = conv.w.channel, .channel = conv.w.image};
    for (int d = 0; d < kSpatialDims; ++d) {
      const Taps taps(conv, d, remainder[d]);
      part.in[d] = conv.out[d], part.taps[d] = taps.count;
      part.out[d] = std::max<int64_t>(ceil_div(conv.in[d] - remainder[d], conv.stride[d]), 0);
      part.first[d] = taps.first, part.dilation[d] = taps.dilation;
      part.w.data += taps.last * conv.w.spatial[d];
      part.w.spatial[d] = -taps.step * conv.w.spatial[d];
      part.y.data += remainder[d] * dx.spatial[d];
      part.y.spatial[d] = conv.stride[d] * dx.spatial[d];
    }
    if (part.all_taps() > 0 && part.windows() > 0) parts.push_back(part);
  }
  return parts;
}

bool fits_im2col(const Convolution& conv) {
  const bool deep = has_depth(conv);
  const int64_t most_offset = deep ? 31 : 255, corner = deep ? 16 : 128;
  constexpr int64_t kMostStride = 8, kMostSize = (int64_t{1} << 31) - 1;
  bool fits = conv.images <= kMostSize && conv.padded_channels() * 2 <= kMostSize;
  for (int d = deep ? 0 : 1; d < kSpatialDims; ++d) {
    const Corners corners(conv, d);
    fits &= (conv.taps[d] - 1) * conv.dilation[d] <= most_offset;
    fits &= corners.lower >= -corner && corners.lower < corner;
    fits &= corners.upper >= -corner && corners.upper < corner;
    fits &= conv.stride[d] <= kMostStride && conv.in[d] <= kMostSize && conv.out[d] <= kMostSize;
  }
  return fits && conv.k() <= kMostSize;
}

}  // namespace tiled
