#include "cpu/convolution.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/order_convolution.h"
#include "core/order_fp16x3.h"
#include "cpu/fp16x3.h"
#include "cpu/parallel.h"
#include "cpu/recompute.h"

namespace tiled::cpu {
namespace {

constexpr int kTile = kFp16x3Tile;

struct Place {
  int64_t at[kSpatialDims];

  // `index` counts row by row.
  Place(const int64_t (&sizes)[kSpatialDims], int64_t index)
      : at{index / sizes[2] / sizes[1], index / sizes[2] % sizes[1], index % sizes[2]} {}
  template <class T>
  int64_t offset(const ImagesOf<T>& images) const {
    return at[0] * images.spatial[0] + at[1] * images.spatial[1] + at[2] * images.spatial[2];
  }
};

// The scale of some images that follow one another, and how many numbers of each of their pixels
// are small.
struct ScaledImages {
  ImageScale scale;
  std::vector<int64_t> small_numbers;

  ScaledImages(const Convolution& conv, int64_t first, int64_t count)
      : scale(find_scale(conv, first, count)), small_numbers(count * conv.in_pixels()) {
    for_all(conv, first, count, [&](int64_t pixel, float x) {
      small_numbers[pixel] += fp16x3::is_small(x, x * scale.scale());
    });
  }

 private:
  template <class See>
  static void for_all(const Convolution& conv, int64_t first, int64_t count, const See& see) {
    for (int64_t pixel = 0; pixel < count * conv.in_pixels(); ++pixel) {
      const int64_t image = first + pixel / conv.in_pixels();
      const Place place(conv.in, pixel % conv.in_pixels());
      const float* x = conv.x.data + image * conv.x.image + place.offset(conv.x);
      for (int64_t c = 0; c < conv.channels; ++c) see(pixel, x[c * conv.x.channel]);
    }
  }
  static ImageScale find_scale(const Convolution& conv, int64_t first, int64_t count) {
    uint32_t largest = 0, least_less_1 = ~0u, bits = 0;
    for_all(conv, first, count, [&](int64_t, float x) {
      const uint32_t magnitude = fp16x3::magnitude_bits(x);
      largest = std::max(largest, magnitude);
      least_less_1 = std::min(least_less_1, magnitude - 1);
      bits |= magnitude;
    });
    return {largest, least_less_1, bits};
  }
};

// The pixel that a window has at a tap: its image, its place there, and that of its first channel
// in x; or nothing outside the image.
struct Pixel {
  int64_t image, index, offset;
};
std::optional<Pixel> pixel_of(const Convolution& conv, int64_t window, int64_t tap) {
  const int64_t of_image = conv.out[0] * conv.out[1] * conv.out[2];
  const Place at(conv.out, window % of_image), of_tap(conv.taps, tap);
  Pixel pixel{window / of_image, 0, window / of_image * conv.x.image};
  for (int d = 0; d < kSpatialDims; ++d) {
    const int64_t place =
        conv.first[d] + at.at[d] * conv.stride[d] + of_tap.at[d] * conv.dilation[d];
    if (place < 0 || place >= conv.in[d]) return {};
    pixel.index = pixel.index * conv.in[d] + place;
    pixel.offset += place * conv.x.spatial[d];
  }
  return pixel;
}

// Sums an element in the chunked order.
template <class A, class B>
float recompute(const A& a, const B& b, int64_t row, int64_t col, int64_t k) {
  std::vector<float> of_a(k), of_b(k);
  for (int64_t i = 0; i < k; ++i) of_a[i] = a(row, i), of_b[i] = b(col, i);
  return sum_in_chunks(k, of_a.data(), 1, of_b.data(), 1);
}

// The product of two matrices, (rows, k) and (cols, k), that give their numbers by a(row, k) and
// b(col, k), with the scales of a chunk by a.group(row, numbers, begin, count). store(row, col,
// sum). Chunks are summed in spans: ends_before(chunk) says where they end.
template <class A, class B, class EndsBefore, class Store>
void multiply(int64_t rows, int64_t cols, int64_t k, const A& a, const B& b,
              const EndsBefore& ends_before, const Context& context, const Store& store) {
  const int64_t tiles_n = ceil_div(cols, kTile), tiles = ceil_div(rows, kTile) * tiles_n;
  const int promotion = fp16x3::promotion(k);
  const auto compute_tile = [&](int64_t tile) {
    const int64_t row = tile / tiles_n * kTile, col = tile % tiles_n * kTile;
    const auto row_count = static_cast<int>(std::min<int64_t>(rows - row, kTile));
    const auto col_count = static_cast<int>(std::min<int64_t>(cols - col, kTile));
    std::vector<float> numbers(2 * kTile * kChunk);
    alignas(64) Fp16x3Sums sums, span;
    std::fill_n(&sums[0][0], kTile * kTile, kAddIdentity<float>);
    std::fill_n(&span[0][0], kTile * kTile, kAddIdentity<float>);
    for (int64_t begin = 0; begin < k; begin += kChunk) {
      const int64_t chunk = std::min<int64_t>(k - begin, kChunk);
      OperandRow of_a[kTile], of_b[kTile];
      const auto gather = [&](const auto& from, int64_t first, int count, float* to,
                              OperandRow(&operand)[kTile]) {
        for (int i = 0; i < count; ++i, to += kChunk) {
          for (int64_t j = 0; j < chunk; ++j) to[j] = from(first + i, begin + j);
          operand[i] = {.data = to, .stride = 1};
          operand[i].group = from.group(first + i, to, begin, chunk);
        }
      };
      gather(a, row, row_count, numbers.data(), of_a);
      gather(b, col, col_count, numbers.data() + kTile * kChunk, of_b);
      alignas(64) Fp16x3Sums total = {}, low = {};
      multiply_fp16x3_chunk(of_a, row_count, of_b, col_count, chunk, promotion, total, low);
      const bool is_last = ends_before(begin / kChunk + 1);
      for (int i = 0; i < row_count; ++i) {
        for (int j = 0; j < col_count; ++j) {
          span[i][j] += fp16x3::chunk_sum(total[i][j], low[i][j], of_a[i].group.inverse_scale,
                                          of_b[j].group.inverse_scale, promotion);
          if (is_last) sums[i][j] += span[i][j], span[i][j] = kAddIdentity<float>;
        }
      }
    }
    for (int i = 0; i < row_count; ++i) {
      for (int j = 0; j < col_count; ++j) {
        const bool flagged = std::isnan(sums[i][j]);
        store(row + i, col + j, flagged ? recompute(a, b, row + i, col + j, k) : sums[i][j]);
      }
    }
  };
  parallel_for(context, tiles, double{kTile * kTile} * static_cast<double>(k),
               [&](int64_t begin, int64_t end) {
                 for (int64_t tile = begin; tile < end; ++tile) compute_tile(tile);
               });
}

// The operands of products, by rows of K.
struct Windows {
  const Convolution& conv;
  const std::vector<ScaledImages>& images;

  float operator()(int64_t window, int64_t k) const {
    const int64_t tap = k / conv.padded_channels(), channel = k % conv.padded_channels();
    const std::optional<Pixel> pixel = pixel_of(conv, window, tap);
    if (!pixel || channel >= conv.channels) return 0;
    return conv.x.data[pixel->offset + channel * conv.x.channel];
  }
  Group group(int64_t window, const float*, int64_t begin, int64_t count) const {
    const ScaledImages& image = images[window / (conv.out[0] * conv.out[1] * conv.out[2])];
    const int64_t channels = conv.padded_channels();
    int64_t small = 0;
    for (int64_t tap = begin / channels; tap * channels < begin + count; ++tap) {
      const std::optional<Pixel> pixel = pixel_of(conv, window, tap);
      if (pixel) small += image.small_numbers[pixel->index];
    }
    return {image.scale.scale(), image.scale.inverse_scale(small)};
  }
};

struct Filters {
  const Convolution& conv;

  float operator()(int64_t filter, int64_t k) const {
    const int64_t tap = k / conv.padded_channels(), channel = k % conv.padded_channels();
    if (channel >= conv.channels) return 0;
    return conv.w.data[filter * conv.w.image + channel * conv.w.channel +
                       Place(conv.taps, tap).offset(conv.w)];
  }
  Group group(int64_t, const float* numbers, int64_t, int64_t count) const {
    return measure(count, [&](int64_t i) { return numbers[i]; });
  }
};

// The operands of gradients of filters, by rows of K, which counts windows.
struct Columns {
  const Convolution& conv;
  const ScaledImages& images;

  float operator()(int64_t column, int64_t window) const {
    const std::optional<Pixel> pixel = pixel_of(conv, window, column / conv.channels);
    if (!pixel) return 0;
    return conv.x.data[pixel->offset + column % conv.channels * conv.x.channel];
  }
  Group group(int64_t column, const float*, int64_t begin, int64_t count) const {
    int64_t small = 0;
    for (int64_t window = begin; window < begin + count; ++window) {
      const std::optional<Pixel> pixel = pixel_of(conv, window, column / conv.channels);
      if (pixel) small += images.small_numbers[pixel->image * conv.in_pixels() + pixel->index];
    }
    return {images.scale.scale(), images.scale.inverse_scale(small)};
  }
};

struct GradientRows {
  const FilterGradient& gradient;

  float operator()(int64_t filter, int64_t window) const {
    const Convolution& conv = gradient.conv;
    const int64_t of_image = conv.out[0] * conv.out[1] * conv.out[2];
    const ImagesOf<const float>& dy = gradient.dy;
    return dy.data[window / of_image * dy.image + filter * dy.channel +
                   window % of_image * dy.spatial[kSpatialDims - 1]];
  }
  Group group(int64_t, const float* numbers, int64_t, int64_t count) const {
    return measure(count, [&](int64_t i) { return numbers[i]; });
  }
};

}  // namespace

void launch_filter_gradient(const FilterGradient& gradient, const Context& context) {
  const Convolution& conv = gradient.conv;
  const ScaledImages images(conv, 0, conv.images);
  const Spans spans(gradient.k());
  const auto ends_before = [&](int64_t chunk) { return spans.end_before(chunk); };
  multiply(
      conv.all_taps() * conv.channels, conv.filters, gradient.k(), Columns{conv, images},
      GradientRows{gradient}, ends_before, context, [&](int64_t column, int64_t filter, float sum) {
        gradient.dw.data[filter * gradient.dw.image + column % conv.channels * gradient.dw.channel +
                         Place(conv.taps, column / conv.channels).offset(gradient.dw)] = sum;
      });
}

void launch_conv_fp16x3(const Convolution& conv, const Context& context) {
  std::vector<ScaledImages> images;
  for (int64_t i = 0; i < conv.images; ++i) images.emplace_back(conv, i, 1);
  const int64_t of_image = conv.out[0] * conv.out[1] * conv.out[2];
  const auto ends_before = [&](int64_t chunk) { return chunk == ceil_div(conv.k(), kChunk); };
  multiply(conv.windows(), conv.filters, conv.k(), Windows{conv, images}, Filters{conv},
           ends_before, context, [&](int64_t window, int64_t filter, float sum) {
             if (conv.bias != nullptr) sum += conv.bias[filter * conv.bias_stride];
             conv.y.data[window / of_image * conv.y.image + filter * conv.y.channel +
                         Place(conv.out, window % of_image).offset(conv.y)] =
                 activate(conv.activation, sum);
           });
}

}  // namespace tiled::cpu
