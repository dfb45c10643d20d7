// Splits images into fp16 parts for the convolution: one kernel finds the range of each image, and
// another one scales, splits and stores.
//
// To split, a block has kPixels pixels of an image and one step of channels, and a thread eight
// channels of kEach of the pixels. Adjacent threads read adjacent channels, or adjacent pixels,
// whichever are adjacent in memory; the parts of the latter pass through shared memory, so that
// adjacent threads write adjacent channels.

#include <algorithm>

#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/load_x8.cuh"
#include "kernels/conv/split_images.cuh"
#include "kernels/fp16x3/range.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::conv {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kGroups = Convolution::kStep / 8;      // threads that share a pixel
constexpr int kAtOnce = kThreads / kGroups;          // pixels
constexpr int kEach = 4, kPixels = kAtOnce * kEach;  // of a thread, and of a block
constexpr int kAhead = 8;                            // loads of a thread in flight, for ranges
constexpr int kPlaneBytes = Convolution::kStep * 2;  // of a part of a step
constexpr int kUnits = 2 * kPlaneBytes / 16;

struct Params {
  Convolution conv;
  SplitImages images;
  FastDivmod width, height;  // of an image
  FastDivmod pixel_blocks, channel_steps;
  int64_t first_block;
  int parts;      // of an image, to find its range
  bool is_dense;  // an image has no gaps
  bool channels_last, vectorized;
  Scales scales;
};

// --- Ranges --------------------------------------------------------------------------------------

__device__ void add(ImageRange& range, const ImageRange& other) {
  range.largest = max(range.largest, other.largest);
  range.least_complement = max(range.least_complement, other.least_complement);
  range.bits |= other.bits;
}
__device__ void add_number(ImageRange& range, float x) {
  const uint32_t magnitude = fp16x3::magnitude_bits(x);
  add(range, {magnitude, ~(magnitude - 1), magnitude});
}
__device__ ImageRange of_warp(const ImageRange& range) {
  return {__reduce_max_sync(~0u, range.largest), __reduce_max_sync(~0u, range.least_complement),
          __reduce_or_sync(~0u, range.bits)};
}

__device__ const float* pixel_of(const Params& params, int64_t image, int64_t pixel) {
  const Convolution& conv = params.conv;
  const float* x = conv.x.data + image * conv.x.image;
  if (params.is_dense) return x + pixel * (params.channels_last ? conv.channels : 1);
  const int64_t row = params.width.divide(pixel), depth = params.height.divide(row);
  return x + depth * conv.x.spatial[0] + (row - depth * conv.in[1]) * conv.x.spatial[1] +
         (pixel - row * conv.in[2]) * conv.x.spatial[2];
}

// A block finds the range of one part of an image. All clear what split_kernel() counts.
__global__ void __launch_bounds__(kThreads) range_kernel(const __grid_constant__ Params params) {
  ptx::pdl_launch_dependents();
  const Convolution& conv = params.conv;
  const int64_t image = blockIdx.x / params.parts;
  const int part = static_cast<int>(blockIdx.x % params.parts);
  const int64_t size = conv.channels * conv.in_pixels();
  const int64_t first = int64_t{part} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{params.parts} * kThreads;
  ImageRange range{};
  if (params.is_dense) {
    const float* from = conv.x.data + image * conv.x.image;
    const int64_t vectors = params.vectorized ? size / 4 : 0;
    for (int64_t i = first; i < vectors; i += kAhead * threads) {
      float4 x4[kAhead];
      UNROLL
      for (int j = 0; j < kAhead; ++j) {
        const int64_t at = i + j * threads;
        x4[j] = at < vectors ? __ldg(reinterpret_cast<const float4*>(from) + at) : float4{};
      }
      UNROLL
      for (const float4& each : x4) {
        add_number(range, each.x), add_number(range, each.y);
        add_number(range, each.z), add_number(range, each.w);
      }
    }
    for (int64_t i = vectors * 4 + first; i < size; i += threads) add_number(range, from[i]);
  } else {
    for (int64_t i = first; i < size; i += threads) {
      const int64_t inner = params.channels_last ? conv.channels : conv.in_pixels();
      const int64_t outer = i / inner, in = i - outer * inner;
      const int64_t pixel = params.channels_last ? outer : in;
      const int64_t channel = params.channels_last ? in : outer;
      add_number(range, pixel_of(params, image, pixel)[channel * conv.x.channel]);
    }
  }
  __shared__ ImageRange of_warps[kWarps];
  range = of_warp(range);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = range;
  __syncthreads();
  ptx::pdl_wait();
  for (int64_t i = first; i < conv.in_pixels(); i += threads) {
    params.images.small_numbers[image * conv.in_pixels() + i] = 0;
  }
  if (threadIdx.x > 0) return;
  UNROLL
  for (int warp = 1; warp < kWarps; ++warp) add(range, of_warps[warp]);
  if (params.scales == Scales::kOfImages) {
    params.images.ranges[image * SplitImages::kParts + part] = range;
    return;
  }
  ImageRange& of_all = params.images.ranges[0];
  atomicMax(&of_all.largest, range.largest);
  atomicMax(&of_all.least_complement, range.least_complement);
  atomicOr(&of_all.bits, range.bits);
}

// --- Split ---------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ Params params) {
  __shared__ uint4 staging[kPixels][kUnits];
  __shared__ float scale_of_image;
  __shared__ bool image_is_wide;
  ptx::pdl_launch_dependents();
  const Convolution& conv = params.conv;
  const int64_t index = params.first_block + blockIdx.x;
  const int64_t next = params.pixel_blocks.divide(index), image = params.channel_steps.divide(next);
  const int64_t pixel_block = index - next * params.pixel_blocks.by;
  const int64_t step = next - image * params.channel_steps.by;
  const auto thread = static_cast<int>(threadIdx.x);
  const int group = params.channels_last ? thread % kGroups : thread / kAtOnce;
  const int in_block = params.channels_last ? thread / kGroups : thread % kAtOnce;
  const auto pixels =
      static_cast<int>(min(conv.in_pixels() - pixel_block * kPixels, int64_t{kPixels}));
  const int64_t channel = step * Convolution::kStep + group * 8;
  float x[kEach][8];
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int pixel = i * kAtOnce + in_block;
    const int64_t left = pixel < pixels ? conv.channels - channel : 0;
    const float* from = pixel_of(params, image, pixel_block * kPixels + min(pixel, pixels - 1));
    load_x8(x[i], from + channel * conv.x.channel, conv.x.channel, left, params.vectorized);
  }
  ptx::pdl_wait();
  if (thread < 32) {
    const bool of_all = params.scales == Scales::kOfAll;
    const ImageRange* ranges = params.images.ranges + (of_all ? 0 : image * SplitImages::kParts);
    ImageRange range{};
    for (int part = thread; part < (of_all ? 1 : params.parts); part += 32) {
      add(range, ranges[part]);
    }
    range = of_warp(range);
    const ImageScale scale(range.largest, ~range.least_complement, range.bits);
    if (thread == 0) scale_of_image = scale.scale(), image_is_wide = scale.is_wide;
    if (thread == 0 && pixel_block == 0 && step == 0) params.images.scales[image] = scale;
  }
  __syncthreads();
  const float scale = scale_of_image;
  const int64_t first_pixel = image * conv.in_pixels() + pixel_block * kPixels;
  const int64_t lo_plane = int64_t{params.channel_steps.by} * kPlaneBytes, pitch = 2 * lo_plane;
  uint8_t* to = params.images.hi_lo + first_pixel * pitch + step * kPlaneBytes;
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int pixel = i * kAtOnce + in_block;
    uint4 hi, lo;
    ptx::split_x8(x[i], scale, hi, lo);
    if (!params.channels_last) {
      staging[pixel][group ^ pixel % kUnits] = hi;
      staging[pixel][(group + kGroups) ^ pixel % kUnits] = lo;
    } else if (pixel < pixels) {
      *reinterpret_cast<uint4*>(to + pixel * pitch + group * 16) = hi;
      *reinterpret_cast<uint4*>(to + pixel * pitch + lo_plane + group * 16) = lo;
    }
  }
  if (image_is_wide) {
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      const uint32_t small = count_small_numbers(x[i], scale);
      const int64_t pixel = first_pixel + i * kAtOnce + in_block;
      if (small > 0) atomicAdd(&params.images.small_numbers[pixel], small);
    }
  }
  if (params.channels_last) return;
  __syncthreads();
  UNROLL
  for (int i = 0; i < kPixels * kUnits / kThreads; ++i) {
    const int pixel = (i * kThreads + thread) / kUnits, unit = thread % kUnits;
    if (pixel >= pixels) break;
    const int64_t plane = unit < kGroups ? 0 : lo_plane;
    *reinterpret_cast<uint4*>(to + pixel * pitch + plane + unit % kGroups * 16) =
        staging[pixel][unit ^ pixel % kUnits];
  }
}

// Returns whether the elements of an image follow one another, channels first or last.
bool is_dense(const Convolution& conv, bool channels_last) {
  int64_t next = channels_last ? conv.channels : 1;
  bool dense = channels_last ? conv.x.channel == 1 || conv.channels == 1
                             : conv.x.channel == conv.in_pixels() || conv.channels == 1;
  for (int d = kSpatialDims - 1; d >= 0; next *= conv.in[d--]) {
    dense &= conv.in[d] == 1 || conv.x.spatial[d] == next;
  }
  return dense;
}

}  // namespace

void launch_split_images(const Convolution& conv, const SplitImages& images, Scales scales,
                         const Context& context) {
  Params params{};
  params.conv = conv, params.images = images, params.scales = scales;
  params.channels_last = conv.x.channel == 1 && conv.channels > 1;
  params.is_dense = is_dense(conv, params.channels_last);
  bool aligned = reinterpret_cast<uintptr_t>(conv.x.data) % 16 == 0 &&
                 (conv.x.image % 4 == 0 || conv.images == 1);
  if (params.channels_last) {
    for (int d = 0; d < kSpatialDims; ++d) {
      aligned &= conv.x.spatial[d] % 4 == 0 || conv.in[d] == 1;
    }
  } else {
    aligned &= params.is_dense;
  }
  params.vectorized = aligned;
  params.width = FastDivmod::of(static_cast<uint32_t>(conv.in[2]));
  params.height = FastDivmod::of(static_cast<uint32_t>(conv.in[1]));
  constexpr int64_t kOfPart = kThreads * kAhead * 4;  // numbers of a part of an image, at least
  const int64_t size = conv.channels * conv.in_pixels();
  params.parts =
      static_cast<int>(std::clamp<int64_t>(size / kOfPart, 1, int64_t{SplitImages::kParts}));
  if (scales == Scales::kOfAll) {
    check(cudaMemsetAsync(images.ranges, 0, sizeof(ImageRange),
                          static_cast<cudaStream_t>(context.stream)));
  }
  // There are fewer images than 2^31 / kParts: each has a pixel in memory.
  launch_pdl(range_kernel, static_cast<unsigned>(conv.images * params.parts), kThreads, 0, context,
             params);
  params.vectorized &= params.channels_last;
  const int64_t pixel_blocks = ceil_div(conv.in_pixels(), kPixels);
  const int64_t steps = conv.padded_channels() / Convolution::kStep;
  params.pixel_blocks = FastDivmod::of(static_cast<uint32_t>(pixel_blocks));
  params.channel_steps = FastDivmod::of(static_cast<uint32_t>(steps));
  for_grids(pixel_blocks * steps * conv.images, [&](int64_t first, unsigned blocks) {
    params.first_block = first;
    launch_pdl(split_kernel, blocks, kThreads, 0, context, params);
  });
}

}  // namespace tiled::cuda::conv
