// The gradient of a convolution's filters, of float32 by three float16 products.
//
// Idea:  dw is the product of dy, (filters, windows), by the windows of x, (windows, taps and
//        channels): K counts windows. dy is split into rows as filters are (fp16x3/split_sm90.cu),
//        and x into pixels as images are (split_images.cu). TMA in im2col mode loads one tap and 64
//        channels of a step of windows, which are MN-major columns of the product.
// Limit: the producer's four boxes a step; passes over x and dy.
// Next:  taps of few channels in one box.
//
//   producer    wait empty[s]       load a step of dy and of windows          -> full[s]
//   consumers   as in fp16x3_sm90.cu; the sum of a span of chunks is stored, and a second kernel
//               adds the spans; or a block has all spans of a tile, and adds them itself
//
// The work items are the spans of all tiles, and a block has a range of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/order_chunked.h"
#include "core/order_convolution.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/conv/im2col_map.h"
#include "kernels/conv/launch.h"
#include "kernels/conv/mainloop.cuh"
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
namespace {

// --- Tiles, shared memory, parameters ------------------------------------------------------------

constexpr int kTile = 128;                                  // filters, and columns
constexpr int kGroup = 64, kTileGroups = kTile / kGroup;    // channels of a tap in a box
constexpr int kStages = 5;
constexpr int kRowPlane = Presplit::plane_bytes(kTile);     // of dy
constexpr int kBoxBytes = kK * kGroup * 2, kColumnPlane = kTileGroups * kBoxBytes;
constexpr int kBStep = 16 * kGroup * 2 / 16;                // of a descriptor

struct Smem {
  struct Stage {
    uint8_t rows[2 * kRowPlane];  // the hi plane, then the lo plane
    uint8_t columns[2 * kColumnPlane];
  };
  alignas(1024) Stage stage[kStages];
  Accumulators totals[kConsumers];  // of the chunks before, in the span
  Columns columns[kConsumers];
  uint32_t small_numbers[kConsumers][kTileGroups];
  uint64_t full[kStages], empty[kStages];
};
static_assert(sizeof(Smem) <= kMaxSharedMemory);

struct Params {
  CUtensorMap map;
  FilterGradient gradient;
  WindowSizes sizes;
  SplitImages images;
  Presplit dy;
  FastDivmod spans, row_tiles, tap_groups;  // divide items, tiles and groups of columns
  int64_t items;
  bool has_depth;  // of the map
  bool whole;      // a block has all spans of a tile
  // Of (tile, span, consumer), or if whole of (block, consumer): the sum of the spans before.
  Accumulators* partial_sums;

  __device__ const Convolution& conv() const { return gradient.conv; }
  __device__ int64_t groups() const { return conv().all_taps() * tap_groups.by; }
};

// A tile of dw: its first filter, and its first group of columns.
struct TilePlace {
  int64_t filter, group;
  __device__ TilePlace(const Params& params, int64_t tile) {
    const int64_t of_columns = params.row_tiles.divide(tile);
    filter = (tile - of_columns * params.row_tiles.by) * kTile;
    group = of_columns * kTileGroups;
  }
};

// A column of dw, by its group and its place in that.
struct Column {
  Tap tap;
  int64_t channel;
  __device__ Column(const Params& params, int64_t group, int in_group)
      : tap(params.conv(), params.tap_groups.divide(group)),
        channel((group - params.tap_groups.divide(group) * params.tap_groups.by) * kGroup +
                in_group) {}
  __device__ int64_t offset_in_dw(const Params& params) const {
    const ImagesOf<float>& dw = params.gradient.dw;
    int64_t offset = channel * dw.channel;
    UNROLL
    for (int d = 0; d < kSpatialDims; ++d) offset += tap.at[d] * dw.spatial[d];
    return offset;
  }
};

// A work item: the chunks of a span of a tile.
struct Item {
  int64_t tile;
  int span;
  int64_t first, end;  // chunks
  __device__ Item(const Params& params, int64_t index)
      : tile(params.spans.divide(index)),
        span(static_cast<int>(index - tile * params.spans.by)) {
    const Spans spans(params.gradient.k());
    first = spans.first_chunk(span), end = spans.first_chunk(span + 1);
  }
};
struct Items {
  int64_t first, end;
  __device__ explicit Items(const Params& params) {
    const int64_t units = params.whole ? params.spans.divide(params.items) : params.items;
    const int64_t unit = params.whole ? params.spans.by : 1;
    first = blockIdx.x * units / gridDim.x * unit;
    end = (int64_t{blockIdx.x} + 1) * units / gridDim.x * unit;
  }
};

__device__ int steps_of_chunk(const Params& params, int64_t chunk) {
  const int64_t left = params.gradient.k() - chunk * kChunk;
  return static_cast<int>(min((left + kK - 1) / kK, int64_t{kStepsOfChunk}));
}

// --- Producer ------------------------------------------------------------------------------------

__device__ void produce(const Params& params, Smem& smem) {
  const Convolution& conv = params.conv();
  const auto lo_channels = static_cast<int>(conv.padded_channels());
  const Items items(params);
  ptx::PipelineState pipe{.stages = kStages, .parity = 1};
  ptx::pdl_wait();
  for (int64_t index = items.first; index < items.end; ++index) {
    const Item item(params, index);
    const TilePlace tile(params, item.tile);
    const int64_t row_tile = tile.filter / Presplit::kRows;
    const int row_bytes = Presplit::plane_bytes(params.dy.tile_rows(row_tile));
    const auto boxes = static_cast<int>(min(params.groups() - tile.group, int64_t{kTileGroups}));
    int channel[kTileGroups];
    uint16_t offsets[kTileGroups][3];
    UNROLL
    for (int box = 0; box < kTileGroups; ++box) {
      const Column column(params, tile.group + box, 0);
      channel[box] = static_cast<int>(column.channel);
      UNROLL
      for (int i = 0; i < 3; ++i) {
        offsets[box][i] = static_cast<uint16_t>(column.tap.at[2 - i] * conv.dilation[2 - i]);
      }
    }
    int64_t first_window = item.first * kChunk;
    const uint8_t* rows = params.dy.hi_lo + params.dy.step_offset(0, row_tile, first_window / kK);
    const int64_t end_window = min(item.end * kChunk, params.gradient.k());
    for (; first_window < end_window; first_window += kK, pipe.advance()) {
      Smem::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      const Window window(params.sizes, first_window);
      int coords[5] = {0, window.first(conv, 2), window.first(conv, 1), window.first(conv, 0),
                       static_cast<int>(window.image)};
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, 2 * (row_bytes + boxes * kBoxBytes));
      NO_UNROLL
      for (int part = 0; part < 2; ++part, rows += row_bytes) {
        ptx::bulk_load(stage.rows + part * kRowPlane, rows, row_bytes, full);
        UNROLL
        for (int box = 0; box < kTileGroups; ++box) {
          if (box >= boxes) break;
          uint8_t* to = stage.columns + part * kColumnPlane + box * kBoxBytes;
          coords[0] = part * lo_channels + channel[box];
          if (params.has_depth) {
            ptx::tma_load_im2col(to, &params.map, coords, offsets[box], full);
          } else {
            ptx::tma_load_im2col_2d(to, &params.map, coords, offsets[box], full);
          }
        }
      }
    }
  }
}

// --- Consumers -----------------------------------------------------------------------------------

struct Consumer {
  int warpgroup, thread;
  int row, column;  // of accumulator 0, in the part of 64 filters and in the tile
  __device__ Consumer(int of_warpgroup, int of_thread)
      : warpgroup(of_warpgroup),
        thread(of_thread),
        row(warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4),
        column(thread % 4 * 2) {}
  __device__ int barrier() const { return 1 + warpgroup; }
  __device__ void release(Smem& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

__device__ Operands operands_of(const Smem::Stage& stage, const Consumer& me) {
  const uint8_t* rows = stage.rows + Presplit::plane_bytes(me.warpgroup * 64);
  return {wgmma::descriptor(rows), wgmma::descriptor(rows + kRowPlane),
          wgmma::swizzled_descriptor<kBoxBytes>(stage.columns),
          wgmma::swizzled_descriptor<kBoxBytes>(stage.columns + kColumnPlane)};
}

// Fills the table of a tile's columns; each thread has one.
__device__ void fill(Columns& columns, const Params& params, const TilePlace& tile, int thread,
                     int barrier) {
  const Column column(params, tile.group + thread / kGroup, thread % kGroup);
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last tile's have been read
  const bool exists =
      column.channel < params.conv().channels && tile.group + thread / kGroup < params.groups();
  columns.set_offset(thread, exists ? column.offset_in_dw(params) : Columns::kNone);
  columns.inverse_scales[thread] = params.images.scales[0].inverse_scale(0);
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

// Replaces the inverse scales by a chunk's, which the small numbers of its pixels decide.
__device__ __noinline__ void fill_wide(Columns& columns, uint32_t (&small_numbers)[kTileGroups],
                                       const Params& params, const TilePlace& tile, int64_t chunk,
                                       int thread, int barrier) {
  const Convolution& conv = params.conv();
  if (thread < kTileGroups) small_numbers[thread] = 0;
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last chunk's have been read, too
  const int64_t end = min((chunk + 1) * kChunk, params.gradient.k());
  for (int group = 0; group < kTileGroups; ++group) {
    const Tap tap = Column(params, tile.group + group, 0).tap;
    uint32_t small = 0;
    for (int64_t index = chunk * kChunk + thread; index < end; index += kWarpgroup) {
      const Window window(params.sizes, index);
      const Pixel pixel(conv, window, tap);
      if (!pixel.exists) continue;
      const int64_t at = window.image * conv.in_pixels() + pixel.index;
      small += min(params.images.small_numbers[at], static_cast<uint32_t>(kChunk));
    }
    if (small > 0) atomicAdd(&small_numbers[group], small);
  }
  ptx::named_barrier_sync(barrier, kWarpgroup);
  columns.inverse_scales[thread] =
      params.images.scales[0].inverse_scale(small_numbers[thread / kGroup]);
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

// --- Epilogue ------------------------------------------------------------------------------------

// Sums an element in the chunked order, which all threads of a warp ask for: each sums chunks of
// its own.
__device__ float recompute_by_warp(const Params& params, int64_t filter,
                                                const Column& column) {
  const Convolution& conv = params.conv();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t k = params.gradient.k(), chunks = ceil_div(k, int64_t{kChunk});
  const int64_t of_image = conv.out[0] * conv.out[1] * conv.out[2];
  const ImagesOf<const float>& dy = params.gradient.dy;
  float total = kAddIdentity<float>;
  for (int64_t first = 0; first < chunks; first += 32) {
    float sum = 0;
    const int64_t end = min((first + lane + 1) * kChunk, k);
    for (int64_t index = (first + lane) * kChunk; index < end; ++index) {
      const Window window(params.sizes, index);
      const Pixel pixel(conv, window, column.tap);
      const int64_t in_image = index - window.image * of_image;
      const float of_dy = __ldg(dy.data + window.image * dy.image + filter * dy.channel +
                                in_image * dy.spatial[kSpatialDims - 1]);
      const float of_x =
          pixel.exists ? __ldg(conv.x.data + pixel.offset + column.channel * conv.x.channel) : 0.0f;
      sum = fused_multiply_add(of_dy, of_x, sum);
    }
    for (int i = 0; i < min(chunks - first, int64_t{32}); ++i) total += __shfl_sync(~0u, sum, i);
  }
  return total;
}

// Recomputes the sums that are NaN. The sums are in shared memory, so that the loop need not be
// unrolled.
template <int kCount>
__device__ void recompute(const Params& params, const TilePlace& tile,
                                       const Elements& at, const Columns& columns,
                                       float4 (&staging)[kCount / 4][kWarpgroup], int thread) {
  NO_UNROLL
  for (int i = 0; i < kCount; ++i) {
    float& staged = reinterpret_cast<float*>(&staging[i / 4][thread])[i % 4];
    const int64_t filter = at.row_of(i);
    const int column = at.col_of(i);
    unsigned flagged = __ballot_sync(~0u, at.has(i, columns) && isnan(staged));
    for (; flagged != 0; flagged &= flagged - 1) {
      const int lane = __ffs(static_cast<int>(flagged)) - 1;
      const int of_lane = __shfl_sync(~0u, column, lane);
      const Column place(params, tile.group + of_lane / kGroup, of_lane % kGroup);
      const float sum = recompute_by_warp(params, __shfl_sync(~0u, filter, lane), place);
      if (thread % 32 == lane) staged = sum;
    }
  }
}

// Finishes and stores a thread's sums, from accumulator `first` on.
template <int kCount>
__device__ void store(const Params& params, const TilePlace& tile, const Columns& columns,
                      const Consumer& me, int first, float4 (&staging)[kCount / 4][kWarpgroup],
                      float (&sum)[kCount]) {
  const ImagesOf<float>& dw = params.gradient.dw;
  const int64_t row = tile.filter + me.row;
  const Elements at{
      .row = row, .rows = params.conv().filters - row, .col = me.column, .first = first};
  bool plain = true;
  UNROLL
  for (const float each : sum) plain &= !isnan(each);
  if (!__all_sync(~0u, plain)) {
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      staging[i / 4][me.thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
    }
    recompute<kCount>(params, tile, at, columns, staging, me.thread);
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const float4 x4 = staging[i / 4][me.thread];
      sum[i] = x4.x, sum[i + 1] = x4.y, sum[i + 2] = x4.z, sum[i + 3] = x4.w;
    }
  }
  store_elements(dw.data + row * dw.image, dw.image, at, columns, sum);
}

// --- Kernels -------------------------------------------------------------------------------------

template <int kPromote>
__device__ void consume(const Params& params, Smem& smem) {
  const Consumer me(static_cast<int>(threadIdx.x / kWarpgroup) - 1,
                    static_cast<int>(threadIdx.x % kWarpgroup));
  Accumulators& totals = smem.totals[me.warpgroup];
  Columns& columns = smem.columns[me.warpgroup];
  const Items items(params);
  ptx::PipelineState pipe{.stages = kStages};
  ptx::pdl_wait();
  const bool is_wide = params.images.scales[0].is_wide;
  int64_t last_tile = -1;
  for (int64_t index = items.first; index < items.end; ++index) {
    const Item item(params, index);
    const TilePlace tile(params, item.tile);
    if (item.tile != last_tile) fill(columns, params, tile, me.thread, me.barrier());
    last_tile = item.tile;
    float low[kElements], total[kElements];
    for (int64_t chunk = item.first; chunk < item.end; ++chunk) {
      const int last = multiply_chunk<kPromote, kBStep>(
          smem.full, pipe, steps_of_chunk(params, chunk), low, total,
          [&](int stage) { return operands_of(smem.stage[stage], me); },
          [&](int stage) { me.release(smem, stage); });
      float row_scales[2];
      load_row_scales(params.dy, static_cast<int>(chunk), tile.filter + me.row, row_scales);
      wgmma::wait_group<0>();
      wgmma::fence_operand(low);
      me.release(smem, last);
      if (is_wide) {
        fill_wide(columns, smem.small_numbers[me.warpgroup], params, tile, chunk, me.thread,
                  me.barrier());
      }
      float2 column_scales[kElements / 4];
      columns.load_scales(me.column, column_scales);
      descale_chunk(total, low, row_scales, column_scales, kPromote);
      add_to_totals(totals, me.thread, chunk > item.first, chunk + 1 < item.end, total);
    }
    if (!params.whole) {
      store_chunk(params.partial_sums[index * kConsumers + me.warpgroup], me.thread, total);
      continue;
    }
    const bool is_last = item.span + 1 == static_cast<int>(params.spans.by);
    add_to_totals(params.partial_sums[blockIdx.x * kConsumers + me.warpgroup], me.thread,
                  item.span > 0, !is_last, total);
    if (is_last) store(params, tile, columns, me, 0, totals, total);
  }
}

template <int kPromote>
__global__ void __launch_bounds__(kThreads, 1)
    filter_gradient_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(kStages, smem.full, 1, smem.empty, kConsumers * kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  if (threadIdx.x >= kWarpgroup) {
    ptx::setmaxnreg_inc<232>();
    consume<kPromote>(params, smem);
  } else {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce(params, smem);
  }
}

// Adds the sums of spans in order. A block has some elements of each thread of a consumer.
constexpr int kReduceElements = 16, kReduceParts = kElements / kReduceElements;

__global__ void __launch_bounds__(kWarpgroup)
    filter_gradient_reduce_kernel(const __grid_constant__ Params params) {
  __shared__ float4 staging[kReduceElements / 4][kWarpgroup];
  __shared__ Columns columns;
  ptx::pdl_wait();
  const auto part = static_cast<int>(blockIdx.x % kReduceParts);
  const int64_t index = blockIdx.x / kReduceParts;
  const Consumer me(static_cast<int>(index % kConsumers), static_cast<int>(threadIdx.x));
  const TilePlace tile(params, index / kConsumers);
  fill(columns, params, tile, me.thread, me.barrier());
  const auto spans = static_cast<int>(params.spans.by);
  float sum[kReduceElements];
  add_sums(&params.partial_sums[index / kConsumers * spans * kConsumers + me.warpgroup], kConsumers,
           spans, part * kReduceElements, me.thread, sum);
  store(params, tile, columns, me, part * kReduceElements, staging, sum);
}

// --- The host's side -----------------------------------------------------------------------------

struct Plan {
  int64_t row_tiles, tap_groups, tiles, spans;
  bool whole;
  unsigned blocks;

  Plan(const FilterGradient& gradient, int64_t sms) {
    const Convolution& conv = gradient.conv;
    row_tiles = ceil_div(conv.filters, int64_t{kTile});
    tap_groups = ceil_div(conv.channels, int64_t{kGroup});
    tiles = row_tiles * ceil_div(conv.all_taps() * tap_groups, int64_t{kTileGroups});
    const Spans of_k(gradient.k());
    spans = of_k.count();
    // Spans: the time of a tile's chunks is 1, and the reduction reads and writes each sum.
    constexpr double kReduceEach = 0.03;
    const auto each = 1.0 / static_cast<double>(spans);
    const auto chunks = static_cast<double>(of_k.chunks);
    const double split =
        static_cast<double>(ceil_div(tiles * spans, sms)) * each +
        kReduceEach * static_cast<double>(tiles * spans) / static_cast<double>(sms) / chunks;
    whole = static_cast<double>(ceil_div(tiles, sms)) <= split;
    blocks = static_cast<unsigned>(std::min(whole ? tiles : tiles * spans, sms));
  }
};

struct Buffers {
  SplitImages images;
  Presplit dy;
  Accumulators* partial_sums;

  Buffers(const FilterGradient& gradient, const Plan& plan, Workspace& workspace)
      : images(SplitImages::take(gradient.conv, workspace)),
        dy{.rows = gradient.conv.filters, .k = gradient.k()} {
    dy.hi_lo = workspace.take<uint8_t>(dy.matrix_bytes()).data();
    dy.inverse_scales = workspace.take<float>(dy.matrix_groups()).data();
    const int64_t sums = plan.whole ? int64_t{plan.blocks} : plan.tiles * plan.spans;
    partial_sums = workspace.take<Accumulators>(sums * kConsumers).data();
  }
};

// K counts the windows of images: a tap for each image, and a channel for each of its windows.
void split_rows(const FilterGradient& gradient, const Presplit& presplit, const Context& context) {
  const Convolution& conv = gradient.conv;
  const ImagesOf<const float>& dy = gradient.dy;
  const auto windows = static_cast<unsigned>(conv.out[0] * conv.out[1] * conv.out[2]);
  const FilterTaps taps{.channels = windows,
                        .padded_channels = windows,
                        .count = {1, 1},
                        .stride = {dy.image, 0, 0}};
  const Matrix matrix{
      .data = dy.data, .row_stride = dy.channel, .col_stride = dy.spatial[kSpatialDims - 1]};
  launch_split_filters({.matrix = matrix, .batch = {}, .presplit = presplit}, taps, context);
}

}  // namespace
}  // namespace conv

int64_t filter_gradient_workspace(const FilterGradient& gradient, int64_t sms) {
  return workspace_bytes([&](Workspace& each) {
    conv::Buffers(gradient, conv::Plan(gradient, sms), each);
  });
}

bool launch_filter_gradient(const FilterGradient& gradient, const Context& context) {
  using namespace conv;
  const Convolution& conv = gradient.conv;
  void* memory = context.allocate(filter_gradient_workspace(gradient, context.sms));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const Plan plan(gradient, context.sms);
  const Buffers buffers(gradient, plan, workspace);
  split_rows(gradient, buffers.dy, context);
  launch_split_images(conv, buffers.images, Scales::kOfAll, context);
  Params params{};
  params.has_depth = has_depth(conv);
  params.map = im2col_map(conv, buffers.images.hi_lo, kGroup, kK, params.has_depth);
  params.gradient = gradient;
  params.sizes = WindowSizes::of(conv);
  params.images = buffers.images, params.dy = buffers.dy;
  params.spans = FastDivmod::of(static_cast<uint32_t>(plan.spans));
  params.row_tiles = FastDivmod::of(static_cast<uint32_t>(plan.row_tiles));
  params.tap_groups = FastDivmod::of(static_cast<uint32_t>(plan.tap_groups));
  params.items = plan.tiles * plan.spans, params.whole = plan.whole;
  params.partial_sums = buffers.partial_sums;
  const auto kernel = fp16x3::promotion(gradient.k()) == 16 ? filter_gradient_kernel<16>
                                                            : filter_gradient_kernel<32>;
  allow_shared_memory(kernel, sizeof(Smem));
  launch_pdl(kernel, plan.blocks, kThreads, sizeof(Smem), context, params);
  if (plan.whole) return true;
  const auto parts = static_cast<unsigned>(plan.tiles * kConsumers * kReduceParts);
  launch_pdl(filter_gradient_reduce_kernel, parts, kWarpgroup, 0, context, params);
  return true;
}

}  // namespace tiled::cuda
