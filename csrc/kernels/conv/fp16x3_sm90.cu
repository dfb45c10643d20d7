// Convolutions of float32 by three float16 products: an implicit matrix product.
//
// Idea:  A filter is a row of a matrix and a window of an image is a column: K counts taps, and the
//        channels of each. The images are split into fp16 parts once (split_images.cu), and no
//        matrix of windows is written: TMA in im2col mode loads one tap and 32 channels of a tile's
//        windows, and zeros beyond the images. It multiplies as fp16x3_wgmma does.
// Limit: power; wave quantization for small images; passes over the images for few filters.
// Next:  taps of few channels in one step.
//
//   producer    wait empty[s]       load a step of filters and windows       -> full[s]
//   consumers   wait full[s]        part = hi hi;  low += hi lo + lo hi
//               part is finished    so is the step before                    -> empty[s - 1]
//               total += part       while the tensor cores compute low
//   end of a chunk                  descale the total, add it to those of the chunks before
//   end of a tile                   recompute flagged elements; bias, activation; store
//
// With few tiles each chunk of K is summed by blocks of its own, and a second kernel adds them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/conv/im2col_map.h"
#include "kernels/conv/launch.h"
#include "kernels/conv/mainloop.cuh"
#include "kernels/conv/plan.h"
#include "kernels/conv/split_images.cuh"
#include "kernels/conv/window.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/tma_im2col.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace conv {

// --- Tiles, shared memory, parameters ------------------------------------------------------------

// Consumers share the windows of a tile of 128 filters, or the filters of one of 64.
template <int kOfFilters>
struct Tile {
  static constexpr int kFilters = kOfFilters, kWindows = 128 * 128 / kFilters;
  static constexpr bool kShareWindows = kFilters == 128;
  static constexpr int kStages = kShareWindows ? 5 : 4;
  static constexpr int kFilterPlane = Presplit::plane_bytes(kFilters);
  static constexpr int kWindowPlane = Presplit::plane_bytes(kWindows);
};

template <class T>
struct Smem {
  struct Stage {
    uint8_t filters[2 * T::kFilterPlane];  // the hi plane, then the lo plane
    uint8_t windows[2 * T::kWindowPlane];
  };
  alignas(1024) Stage stage[T::kStages];
  Accumulators totals[kConsumers];  // of the chunks before
  Columns windows[kConsumers];      // offsets in y, and the inverse scales of images
  uint64_t full[T::kStages], empty[T::kStages];
};
static_assert(sizeof(Smem<Tile<128>>) <= kMaxSharedMemory);
static_assert(sizeof(Smem<Tile<64>>) <= kMaxSharedMemory);

struct Params {
  CUtensorMap map;
  Convolution conv;
  WindowSizes sizes;
  SplitImages images;
  Presplit filters;
  FastDivmod filter_tiles;
  int64_t tiles;
  int steps, channel_steps;    // of K, and of a tap
  bool has_depth;              // of the map
  Accumulators* partial_sums;  // if blocks share the chunks of a tile: (tile, chunk, consumer)
};

// The chunks that a block sums: all of them, or a part by the grid's y.
struct Chunks {
  int first, end;
  __device__ explicit Chunks(const Params& params) {
    const auto all = static_cast<unsigned>(chunks_of(params));
    first = static_cast<int>(blockIdx.y * all / gridDim.y);
    end = static_cast<int>((blockIdx.y + 1) * all / gridDim.y);
  }
  __device__ static int chunks_of(const Params& params) {
    return (params.steps + kStepsOfChunk - 1) / kStepsOfChunk;
  }
};
// The steps before the first one of a chunk.
__device__ inline int steps_before(const Params& params, int chunk) {
  return min(chunk * kStepsOfChunk, params.steps);
}

template <class T>
struct TilePlace {
  int64_t filter, window;
  __device__ TilePlace(const Params& params, int64_t tile) {
    const int64_t of_windows = params.filter_tiles.divide(tile);
    filter = (tile - of_windows * params.filter_tiles.by) * T::kFilters;
    window = of_windows * T::kWindows;
  }
};

// --- Producer ------------------------------------------------------------------------------------

// Loads the steps of all of the block's tiles; one thread.
template <class T>
__device__ void produce(const Params& params, Smem<T>& smem) {
  const Convolution& conv = params.conv;
  const Chunks chunks(params);
  const int first_step = steps_before(params, chunks.first);
  const int end_step = steps_before(params, chunks.end);
  ptx::PipelineState pipe{.stages = T::kStages, .parity = 1};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const TilePlace<T> tile(params, index);
    const Window window(params.sizes, tile.window);
    int coords[5] = {0, window.first(conv, 2), window.first(conv, 1), window.first(conv, 0),
                     static_cast<int>(window.image)};
    PresplitRows filters(params.filters, tile.filter, T::kFilters, first_step);
    Tap tap(conv, first_step / params.channel_steps);
    int step_of_tap = first_step % params.channel_steps;
    for (int step = first_step; step < end_step; ++step, pipe.advance()) {
      typename Smem<T>::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      const uint16_t offsets[3] = {static_cast<uint16_t>(tap.at[2] * conv.dilation[2]),
                                   static_cast<uint16_t>(tap.at[1] * conv.dilation[1]),
                                   static_cast<uint16_t>(tap.at[0] * conv.dilation[0])};
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, 2 * (T::kWindowPlane + filters.bytes));
      NO_UNROLL
      for (int part = 0; part < 2; ++part) {
        ptx::bulk_load(stage.filters + part * T::kFilterPlane, filters.step + part * filters.plane,
                       filters.bytes, full);
        uint8_t* to = stage.windows + part * T::kWindowPlane;
        coords[0] = (part * params.channel_steps + step_of_tap) * kK;
        if (params.has_depth) {
          ptx::tma_load_im2col(to, &params.map, coords, offsets, full);
        } else {
          ptx::tma_load_im2col_2d(to, &params.map, coords, offsets, full);
        }
      }
      filters.step += 2 * filters.plane;
      if (++step_of_tap == params.channel_steps) step_of_tap = 0, tap.advance(conv);
    }
  }
}

// --- Products ------------------------------------------------------------------------------------

// A thread of a consumer warpgroup, and the part of a tile that it multiplies. Accumulator i is of
// filter `filter + i / 2 % 2 * 8` and of window `window + i / 4 * 8 + i % 2`, both in the part.
template <class T>
struct Consumer {
  int warpgroup, thread, filter, window;

  __device__ Consumer(int of_warpgroup, int of_thread)
      : warpgroup(of_warpgroup),
        thread(of_thread),
        filter(thread / 32 * 16 + thread % 32 / 4),
        window(thread % 4 * 2) {}
  // The first filter and window of the part in the tile.
  __device__ int first_filter() const { return T::kShareWindows ? warpgroup * 64 : 0; }
  __device__ int first_window() const { return T::kShareWindows ? 0 : warpgroup * 128; }
  __device__ int barrier() const { return 1 + warpgroup; }
  // Tells the producer that this warp has read a stage.
  __device__ void release(Smem<T>& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

// The descriptors of a stage's operands.
template <class T>
__device__ Operands operands_of(const typename Smem<T>::Stage& stage, const Consumer<T>& me) {
  const uint8_t* filters = stage.filters + Presplit::plane_bytes(me.first_filter());
  const uint8_t* windows = stage.windows + Presplit::plane_bytes(me.first_window());
  return {wgmma::descriptor(filters), wgmma::descriptor(filters + T::kFilterPlane),
          wgmma::descriptor(windows), wgmma::descriptor(windows + T::kWindowPlane)};
}

// --- Windows of a tile ---------------------------------------------------------------------------

// Counts the small numbers of a chunk of a window (core/order_convolution.h).
__device__ __noinline__ uint64_t count_small_numbers(const Params& params, const Window& window,
                                                     int chunk) {
  const Convolution& conv = params.conv;
  const int end_step = steps_before(params, chunk + 1);
  int index = steps_before(params, chunk) / params.channel_steps;
  Tap tap(conv, index);
  uint64_t small = 0;
  for (; index * params.channel_steps < end_step; ++index, tap.advance(conv)) {
    const Pixel pixel(conv, window, tap);
    if (!pixel.exists) continue;
    small += params.images.small_numbers[window.image * conv.in_pixels() + pixel.index];
  }
  return small;
}

// Fills the table of a consumer's windows; each thread has one. Windows beyond the last one have
// its scale. Returns whether any image is wide: then inverse scales differ from chunk to chunk.
__device__ bool fill(Columns& windows, const Params& params, int64_t first, int thread,
                     int barrier) {
  const int64_t last = params.conv.windows() - 1;
  const Window window(params.sizes, min(first + thread, last));
  const int64_t offset = first + thread <= last ? window.offset_in_y(params.conv) : Columns::kNone;
  const ImageScale& scale = params.images.scales[window.image];
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last tile's have been read
  windows.inverse_scales[thread] = scale.inverse_scale(0);
  windows.set_offset(thread, offset);
  return ptx::named_barrier_sync_or(barrier, kWarpgroup, scale.is_wide);
}

// Replaces the inverse scales by a chunk's.
__device__ __noinline__ void fill_wide(Columns& windows, const Params& params, int64_t first,
                                       int chunk, int thread, int barrier) {
  const int64_t last = params.conv.windows() - 1;
  const Window window(params.sizes, min(first + thread, last));
  const ImageScale& scale = params.images.scales[window.image];
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last chunk's have been read
  windows.inverse_scales[thread] =
      scale.inverse_scale(scale.is_wide ? count_small_numbers(params, window, chunk) : 0);
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

// --- Epilogue ------------------------------------------------------------------------------------

// Sums an element in the chunked order, which all threads of a warp ask for.
__device__ float recompute_by_warp(const Params& params, int64_t filter, int64_t window) {
  const Convolution& conv = params.conv;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Window at(params.sizes, window);
  Tap tap(conv, 0);
  float total = kAddIdentity<float>, sum = 0;
  for (int step = 0; step < params.steps;) {
    const Pixel pixel(conv, at, tap);
    const float* w = conv.w.data + filter * conv.w.image;
    UNROLL
    for (int d = 0; d < kSpatialDims; ++d) w += tap.at[d] * conv.w.spatial[d];
    for (int64_t channel = lane; channel < params.channel_steps * kK + lane; channel += kK) {
      const bool exists = channel < conv.channels;
      const float of_w = exists ? __ldg(w + channel * conv.w.channel) : 0.0f;
      const float of_x = exists && pixel.exists
                             ? __ldg(conv.x.data + pixel.offset + channel * conv.x.channel)
                             : 0.0f;
      UNROLL
      for (int i = 0; i < kK; ++i) {
        sum = fused_multiply_add(__shfl_sync(~0u, of_x, i), __shfl_sync(~0u, of_w, i), sum);
      }
      if (++step % kStepsOfChunk == 0) total += sum, sum = 0;
    }
    tap.advance(conv);
  }
  return params.steps % kStepsOfChunk == 0 ? total : total + sum;
}

// Recomputes the sums that are NaN, and adds bias and activation. The sums are in shared memory, so
// that the loop need not be unrolled.
template <int kCount>
__device__ void finish_each(const Params& params, const Elements& at, const Columns& windows,
                            int64_t first_window, float4 (&staging)[kCount / 4][kWarpgroup],
                            int thread) {
  const Convolution& conv = params.conv;
  NO_UNROLL
  for (int i = 0; i < kCount; ++i) {
    float& staged = reinterpret_cast<float*>(&staging[i / 4][thread])[i % 4];
    float value = staged;
    const int64_t filter = at.row_of(i), window = first_window + at.col_of(i);
    unsigned flagged = __ballot_sync(~0u, at.has(i, windows) && isnan(value));
    for (; flagged != 0; flagged &= flagged - 1) {
      const int lane = __ffs(static_cast<int>(flagged)) - 1;
      const float sum =
          recompute_by_warp(params, __shfl_sync(~0u, filter, lane), __shfl_sync(~0u, window, lane));
      if (thread % 32 == lane) value = sum;
    }
    if (conv.bias != nullptr && at.has(i, windows)) {
      value += __ldg(conv.bias + filter * conv.bias_stride);
    }
    staged = activate(conv.activation, value);
  }
}

// Finishes and stores a thread's sums, of `windows` from `first_window` on.
template <int kCount>
__device__ void store(const Params& params, const Elements& at, const Columns& windows,
                      int64_t first_window, float4 (&staging)[kCount / 4][kWarpgroup], int thread,
                      float (&sum)[kCount]) {
  const Convolution& conv = params.conv;
  bool plain = conv.activation == Activation::kNone || conv.activation == Activation::kRelu;
  UNROLL
  for (const float each : sum) plain &= !isnan(each);
  if (!__all_sync(~0u, plain)) {
    to_staging(staging, thread, sum);
    finish_each<kCount>(params, at, windows, first_window, staging, thread);
    from_staging(staging, thread, sum);
  } else {
    if (conv.bias != nullptr) {
      const float* bias = conv.bias + at.row * conv.bias_stride;
      const float first = at.rows > 0 ? __ldg(bias) : 0.0f;
      const float second = at.rows > 8 ? __ldg(bias + 8 * conv.bias_stride) : 0.0f;
      UNROLL
      for (int i = 0; i < kCount; i += 4) {
        sum[i] += first, sum[i + 1] += first, sum[i + 2] += second, sum[i + 3] += second;
      }
    }
    if (conv.activation == Activation::kRelu) {
      UNROLL
      for (float& each : sum) each = activate(Activation::kRelu, each);
    }
  }
  store_elements(conv.y.data + at.row * conv.y.channel, conv.y.channel, at, windows, sum);
}

__device__ inline Accumulators& sums_of_chunk(const Params& params, int64_t tile, int chunk,
                                              int consumer) {
  return params.partial_sums[(tile * Chunks::chunks_of(params) + chunk) * kConsumers + consumer];
}

template <class T>
__device__ Elements elements_of(const Params& params, const TilePlace<T>& tile,
                                const Consumer<T>& me, int first) {
  const int64_t row = tile.filter + me.first_filter() + me.filter;
  return {.row = row, .rows = params.conv.filters - row, .col = me.window, .first = first};
}

// --- Kernels -------------------------------------------------------------------------------------

template <int kPromote, class T>
__device__ void consume(const Params& params, Smem<T>& smem) {
  const Consumer<T> me(static_cast<int>(threadIdx.x / kWarpgroup) - 1,
                       static_cast<int>(threadIdx.x % kWarpgroup));
  const Chunks chunks(params);
  Accumulators& totals = smem.totals[me.warpgroup];
  Columns& windows = smem.windows[me.warpgroup];
  ptx::PipelineState pipe{.stages = T::kStages};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const TilePlace<T> tile(params, index);
    const int64_t first_window = tile.window + me.first_window();
    const bool is_wide = fill(windows, params, first_window, me.thread, me.barrier());
    const int64_t filter = tile.filter + me.first_filter() + me.filter;
    float low[kElements], total[kElements];
    for (int chunk = chunks.first; chunk < chunks.end; ++chunk) {
      const int steps = steps_before(params, chunk + 1) - steps_before(params, chunk);
      const int last = multiply_chunk<kPromote>(
          smem.full, pipe, steps, low, total,
          [&](int stage) { return operands_of(smem.stage[stage], me); },
          [&](int stage) { me.release(smem, stage); });
      float filter_scales[2];
      load_row_scales(params.filters, chunk, filter, filter_scales);
      wgmma::wait_group<0>();
      wgmma::fence_operand(low);
      me.release(smem, last);
      if (is_wide) fill_wide(windows, params, first_window, chunk, me.thread, me.barrier());
      float2 window_scales[kElements / 4];
      windows.load_scales(me.window, window_scales);
      descale_chunk(total, low, filter_scales, window_scales, kPromote);
      if (gridDim.y > 1) {
        store_chunk(sums_of_chunk(params, index, chunk, me.warpgroup), me.thread, total);
      } else {
        add_to_totals(totals, me.thread, chunk > 0, chunk + 1 < chunks.end, total);
      }
    }
    if (gridDim.y > 1) continue;
    store(params, elements_of(params, tile, me, 0), windows, first_window, totals, me.thread,
          total);
  }
}

template <int kPromote, int kFilters>
__global__ void __launch_bounds__(kThreads, 1)
    conv_fp16x3_kernel(const __grid_constant__ Params params) {
  using T = Tile<kFilters>;
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem<T>& smem = *reinterpret_cast<Smem<T>*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(T::kStages, smem.full, 1, smem.empty, kConsumers * kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  if (threadIdx.x >= kWarpgroup) {
    ptx::setmaxnreg_inc<240>();
    consume<kPromote>(params, smem);
  } else {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce(params, smem);
  }
}

// Adds the sums of chunks in order. A block has some elements of each thread of a consumer.
constexpr int kReduceElements = 16, kReduceParts = kElements / kReduceElements;

template <int kFilters>
__global__ void __launch_bounds__(kWarpgroup, 4)
    conv_split_k_reduce_kernel(const __grid_constant__ Params params) {
  __shared__ float4 staging[kReduceElements / 4][kWarpgroup];
  __shared__ Columns windows;
  ptx::pdl_wait();
  const auto part = static_cast<int>(blockIdx.x % kReduceParts);
  const int64_t index = blockIdx.x / kReduceParts;
  const Consumer<Tile<kFilters>> me(static_cast<int>(index % kConsumers),
                                    static_cast<int>(threadIdx.x));
  const TilePlace<Tile<kFilters>> tile(params, index / kConsumers);
  const int64_t first_window = tile.window + me.first_window();
  fill(windows, params, first_window, me.thread, me.barrier());
  float sum[kReduceElements];
  add_sums(&sums_of_chunk(params, index / kConsumers, 0, me.warpgroup), kConsumers,
           Chunks::chunks_of(params), part * kReduceElements, me.thread, sum);
  store(params, elements_of(params, tile, me, part * kReduceElements), windows, first_window,
        staging, me.thread, sum);
}

// --- The host's side -----------------------------------------------------------------------------

namespace {

struct Buffers {
  SplitImages images;
  Presplit filters;
  Accumulators* partial_sums;

  Buffers(const Convolution& conv, const ConvPlan& plan, const SplitImages& images,
          Workspace& workspace)
      : images(images), filters{.rows = conv.filters, .k = conv.k()} {
    filters.hi_lo = workspace.take<uint8_t>(filters.matrix_bytes()).data();
    filters.inverse_scales = workspace.take<float>(filters.matrix_groups()).data();
    const int64_t chunks = plan.k_splits > 1 ? ceil_div(conv.k(), kChunk) : 0;
    partial_sums = workspace.take<Accumulators>(plan.tiles * chunks * kConsumers).data();
  }
};

void split_filters(const Convolution& conv, const Presplit& presplit, const Context& context) {
  FilterTaps taps{
      .channels = static_cast<unsigned>(conv.channels),
      .padded_channels = static_cast<unsigned>(conv.padded_channels()),
      .count = {static_cast<unsigned>(conv.taps[1]), static_cast<unsigned>(conv.taps[2])}};
  std::copy_n(conv.w.spatial, kSpatialDims, taps.stride);
  const Matrix matrix{
      .data = conv.w.data, .row_stride = conv.w.image, .col_stride = conv.w.channel};
  launch_split_filters({.matrix = matrix, .batch = {}, .presplit = presplit}, taps, context);
}

template <int kFilters>
void launch(const Params& params, const ConvPlan& plan, const Context& context) {
  constexpr size_t kBytes = sizeof(Smem<Tile<kFilters>>);
  const auto kernel = fp16x3::promotion(params.conv.k()) == 16 ? conv_fp16x3_kernel<16, kFilters>
                                                               : conv_fp16x3_kernel<32, kFilters>;
  allow_shared_memory(kernel, kBytes);
  const int64_t blocks =
      plan.k_splits > 1 ? plan.tiles : std::min<int64_t>(plan.tiles, context.sms);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.k_splits));
  launch_pdl(kernel, grid, kThreads, kBytes, context, params);
  if (plan.k_splits == 1) return;
  const auto parts = static_cast<unsigned>(plan.tiles * kConsumers * kReduceParts);
  launch_pdl(conv_split_k_reduce_kernel<kFilters>, parts, kWarpgroup, 0, context, params);
}

void run(const Convolution& conv, const ConvPlan& plan, const Buffers& buffers,
         const Context& context) {
  Params params{};
  params.map =
      im2col_map(conv, buffers.images.hi_lo, kK, 128 * 128 / plan.filters, has_depth(conv));
  params.conv = conv;
  params.sizes = WindowSizes::of(conv);
  params.images = buffers.images, params.filters = buffers.filters;
  params.filter_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(conv.filters, plan.filters)));
  params.tiles = plan.tiles;
  params.steps = static_cast<int>(conv.k() / kK);
  params.channel_steps = static_cast<int>(conv.padded_channels() / kK);
  params.has_depth = has_depth(conv);
  params.partial_sums = buffers.partial_sums;
  plan.filters == 64 ? launch<64>(params, plan, context) : launch<128>(params, plan, context);
}

}  // namespace
}  // namespace conv

int64_t conv_fp16x3_workspace(std::span<const Convolution> convs, int64_t sms) {
  using namespace conv;
  Workspace images;
  if (!convs.empty()) SplitImages::take(convs.front(), images);
  int64_t most = 0;  // of the rest, which convolutions use one after another
  for (const Convolution& conv : convs) {
    most = std::max(most, workspace_bytes([&](Workspace& each) {
                      Buffers(conv, conv_plan(conv, sms), {}, each);
                    }));
  }
  return images.bytes() + most;
}

bool launch_conv_fp16x3(std::span<const Convolution> convs, const Context& context) {
  using namespace conv;
  if (convs.empty()) return true;
  void* memory = context.allocate(conv_fp16x3_workspace(convs, context.sms));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const SplitImages images = SplitImages::take(convs.front(), workspace);
  for (const Convolution& conv : convs) {
    Workspace rest(static_cast<std::byte*>(memory) + workspace.bytes());
    const ConvPlan plan = conv_plan(conv, context.sms);
    const Buffers buffers(conv, plan, images, rest);
    split_filters(conv, buffers.filters, context);
    if (&conv == &convs.front()) launch_split_images(conv, images, Scales::kOfImages, context);
    run(conv, plan, buffers, context);
  }
  return true;
}

}  // namespace tiled::cuda
