#pragma once
// Splits images into fp16 parts, as the convolution loads them by TMA.

#include <cstdint>

#include "core/context.h"
#include "core/convolution.h"
#include "core/order_convolution.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda::conv {

// The range of magnitudes of some numbers, which decides their scale. All zeros say that there are
// none but 0.
struct ImageRange {
  uint32_t largest;           // magnitude bits
  uint32_t least_complement;  // ~(magnitude bits - 1) of the least number except 0
  uint32_t bits;              // bitwise or of all magnitudes
};

// Images split into parts: (image, depth, height, width, hi or lo, padded channel).
struct SplitImages {
  static constexpr int kParts = 64;  // of an image, at most, with a range each

  uint8_t* hi_lo = nullptr;
  ImageScale* scales = nullptr;       // of each image, or of all in scales[0]
  uint32_t* small_numbers = nullptr;  // of each pixel
  ImageRange* ranges = nullptr;       // of the parts of each image, or of all in ranges[0]

  static SplitImages take(const Convolution& conv, Workspace& workspace) {
    SplitImages split;
    const int64_t pixels = conv.images * conv.in_pixels();
    split.hi_lo = workspace.take<uint8_t>(pixels * conv.padded_channels() * 4).data();
    split.scales = workspace.take<ImageScale>(conv.images).data();
    split.small_numbers = workspace.take<uint32_t>(pixels).data();
    split.ranges = workspace.take<ImageRange>(conv.images * kParts).data();
    return split;
  }
};

// Images have a scale each, or one for all.
enum class Scales { kOfImages, kOfAll };

void launch_split_images(const Convolution& conv, const SplitImages& images, Scales scales,
                         const Context& context);

}  // namespace tiled::cuda::conv
