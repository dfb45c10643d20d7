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
//   consumers   as in fp16x3_sm90.cu
//   end of a span of chunks         add its sum to those of the spans before, or store it
//
// Each block has as many whole tiles as every other one. The spans of the tiles that are left are
// shared by all blocks, which store their sums, and a second kernel adds these.

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
namespace {

// --- Tiles, shared memory, parameters ------------------------------------------------------------

constexpr int kProducers = 3;                       // threads
constexpr int kGroup = FilterGradientPlan::kGroup;  // channels of a tap in a box
constexpr int kBoxBytes = kK * kGroup * 2;          // of one part
constexpr int kBStep = 16 * kGroup * 2 / 16;        // of a descriptor
constexpr int kGroups = Columns::kCount / kGroup;   // of a consumer

// Consumers share the columns of a tile of 128 filters, or the filters of one of 64.
template <int kOfFilters>
struct Tile {
  static constexpr int kFilters = kOfFilters;
  static constexpr bool kShareColumns = kFilters == 128;
  static constexpr int kBoxes = kShareColumns ? kGroups : 2 * kGroups;
  static constexpr int kStages = kShareColumns ? 5 : 4;
  static constexpr int kRowPlane = Presplit::plane_bytes(kFilters);  // of dy
  static constexpr int kColumnPlane = kBoxes * kBoxBytes;
};

// Of a box: its first channel, and its tap's distance from a window's first one along width, height
// and depth.
struct Box {
  int channel;
  uint16_t offsets[kSpatialDims];
};

template <class T>
struct Smem {
  struct Stage {
    uint8_t rows[2 * T::kRowPlane];  // the hi plane, then the lo plane
    uint8_t columns[2 * T::kColumnPlane];
  };
  alignas(1024) Stage stage[T::kStages];
  Accumulators totals[kConsumers];  // of the chunks before, in the span
  Columns columns[kConsumers];
  uint32_t small_numbers[kConsumers][kGroups];
  Box boxes[2][T::kBoxes];  // of a producer's tile
  uint64_t full[T::kStages], empty[T::kStages];
};
static_assert(sizeof(Smem<Tile<128>>) <= kMaxSharedMemory);
static_assert(sizeof(Smem<Tile<64>>) <= kMaxSharedMemory);

struct Params {
  CUtensorMap map;
  FilterGradient gradient;
  WindowSizes sizes;
  SplitImages images;
  Presplit dy;
  FastDivmod row_tiles, taps;  // divide tiles and groups of columns
  int whole_tiles, split_tiles;
  bool has_depth;              // of the map
  Accumulators* partial_sums;  // of the split tiles: (tile, span, consumer)
  Accumulators* sums_before;   // of the spans before, if they have several chunks

  __device__ const Convolution& conv() const { return gradient.conv; }
  __device__ int64_t groups() const { return taps.by * ceil_div(conv().channels, kGroup); }
};

// A tile of dw: its first filter, and its first group of columns.
template <class T>
struct TilePlace {
  int64_t filter, group;
  __device__ TilePlace(const Params& params, int64_t tile) {
    const int64_t of_columns = params.row_tiles.divide(tile);
    filter = (tile - of_columns * params.row_tiles.by) * T::kFilters;
    group = of_columns * T::kBoxes;
  }
};

// A column of dw, by its group and its place in that. All taps of 64 channels follow one another,
// so that blocks write the lines of dw at one time.
struct Column {
  int64_t of_channels;  // 64 of them
  Tap tap;
  int64_t channel;
  __device__ Column(const Params& params, int64_t group, int in_group)
      : of_channels(params.taps.divide(group)),
        tap(params.conv(), group - of_channels * params.taps.by),
        channel(of_channels * kGroup + in_group) {}
  __device__ int64_t offset_in_dw(const Params& params) const {
    const ImagesOf<float>& dw = params.gradient.dw;
    int64_t offset = channel * dw.channel;
    UNROLL
    for (int d = 0; d < kSpatialDims; ++d) offset += tap.at[d] * dw.spatial[d];
    return offset;
  }
};

// The chunks that a block sums before it adds or stores a sum.
struct Item {
  int tile;
  int first, end;          // chunks
  bool is_first, is_last;  // of the tile
  int split;               // the index of a stored sum, or -1 if the tile is whole
};

// The items of a block: those of its whole tiles, and those that begin in its part of the chunks of
// the split tiles.
class Items {
 public:
  __device__ explicit Items(const Params& params)
      : params_(params),
        whole_(static_cast<int>((params.whole_tiles + gridDim.x - 1 - blockIdx.x) / gridDim.x) *
               spans_of_whole_tile()),
        first_(first_split(blockIdx.x)),
        count_(whole_ + first_split(blockIdx.x + 1) - first_) {}
  __device__ int count() const { return count_; }
  __device__ Item operator[](int index) const {
    const Spans spans(params_.gradient.k());
    const int count = index < whole_ ? spans_of_whole_tile() : spans.count();
    const int of_block = index < whole_ ? index / count : 0;
    const int split = index < whole_ ? -1 : first_ + index - whole_;
    const int of_split = split / count;
    const int span = index < whole_ ? index - of_block * count : split - of_split * count;
    return {.tile = static_cast<int>(index < whole_ ? blockIdx.x + of_block * gridDim.x
                                                    : params_.whole_tiles + of_split),
            .first = static_cast<int>(span * spans.chunks / count),
            .end = static_cast<int>((span + 1) * spans.chunks / count),
            .is_first = span == 0,
            .is_last = span + 1 == count,
            .split = split};
  }

 private:
  // Sums of single chunks are added as the chunks of one span are.
  __device__ int spans_of_whole_tile() const {
    const Spans spans(params_.gradient.k());
    return spans.chunks == spans.count() ? 1 : spans.count();
  }
  // The first span of the split tiles that a block has: it begins at the block's first chunk, or
  // behind it.
  __device__ int first_split(unsigned block) const {
    const Spans spans(params_.gradient.k());
    const int64_t chunk = block * (params_.split_tiles * spans.chunks) / gridDim.x;
    const int64_t tile = chunk / spans.chunks;
    return static_cast<int>(tile * spans.count() + spans.span_from(chunk - tile * spans.chunks));
  }

  const Params& params_;
  int whole_, first_, count_;
};

__device__ int steps_of_chunk(const Params& params, int64_t chunk) {
  const int64_t left = params.gradient.k() - chunk * kChunk;
  return static_cast<int>(min((left + kK - 1) / kK, int64_t{kStepsOfChunk}));
}

__device__ int steps_of(const Params& params, const Item& item) {
  const int64_t windows =
      min(int64_t{item.end} * kChunk, params.gradient.k()) - int64_t{item.first} * kChunk;
  return static_cast<int>((windows + kK - 1) / kK);
}

// --- Producers -----------------------------------------------------------------------------------

// Three threads load all of a block's steps: one dy, and one each part of x.

template <class T>
__device__ void load_rows(const Params& params, Smem<T>& smem) {
  const Items items(params);
  ptx::PipelineState pipe{.stages = T::kStages, .parity = 1};
  ptx::pdl_wait();
  for (int index = 0; index < items.count(); ++index) {
    const Item item = items[index];
    const TilePlace<T> tile(params, item.tile);
    PresplitRows rows(params.dy, tile.filter, T::kFilters, item.first * kStepsOfChunk);
    for (int steps = steps_of(params, item); steps > 0; --steps, pipe.advance()) {
      typename Smem<T>::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, 2 * rows.bytes);
      ptx::bulk_load(stage.rows, rows.step, rows.bytes, full);
      ptx::bulk_load(stage.rows + T::kRowPlane, rows.step + rows.plane, rows.bytes, full);
      rows.step += 2 * rows.plane;
    }
  }
}

template <class T>
__device__ void load_columns(const Params& params, Smem<T>& smem, int part) {
  const Convolution& conv = params.conv();
  const Items items(params);
  ptx::PipelineState pipe{.stages = T::kStages, .parity = 1};
  ptx::pdl_wait();
  for (int index = 0; index < items.count(); ++index) {
    const Item item = items[index];
    const TilePlace<T> tile(params, item.tile);
    const auto boxes = static_cast<int>(min(params.groups() - tile.group, int64_t{T::kBoxes}));
    NO_UNROLL
    for (int i = 0; i < boxes; ++i) {
      const Column column(params, tile.group + i, 0);
      Box& box = smem.boxes[part][i];
      box.channel = static_cast<int>(part * conv.padded_channels() + column.channel);
      UNROLL
      for (int d = 0; d < kSpatialDims; ++d) {
        box.offsets[2 - d] = static_cast<uint16_t>(column.tap.at[d] * conv.dilation[d]);
      }
    }
    Window window(params.sizes, int64_t{item.first} * kChunk);
    for (int steps = steps_of(params, item); steps > 0; --steps, pipe.advance()) {
      uint8_t* to = smem.stage[pipe.stage].columns + part * T::kColumnPlane;
      uint64_t* full = &smem.full[pipe.stage];
      int coords[5] = {0, window.first(conv, 2), window.first(conv, 1), window.first(conv, 0),
                       static_cast<int>(window.image)};
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, boxes * kBoxBytes);
      NO_UNROLL
      for (int i = 0; i < boxes; ++i, to += kBoxBytes) {
        const Box& box = smem.boxes[part][i];
        coords[0] = box.channel;
        if (params.has_depth) {
          ptx::tma_load_im2col(to, &params.map, coords, box.offsets, full);
        } else {
          ptx::tma_load_im2col_2d(to, &params.map, coords, box.offsets, full);
        }
      }
      window.advance(conv, kK);
    }
  }
}

// --- Consumers -----------------------------------------------------------------------------------

template <class T>
struct Consumer {
  int warpgroup, thread;
  int row, column;  // of accumulator 0, in the tile and in the consumer's columns
  __device__ Consumer(int of_warpgroup, int of_thread)
      : warpgroup(of_warpgroup),
        thread(of_thread),
        row(first_row() + thread / 32 * 16 + thread % 32 / 4),
        column(thread % 4 * 2) {}
  // The first row, and the first group of columns, in the tile.
  __device__ int first_row() const { return T::kShareColumns ? warpgroup * 64 : 0; }
  __device__ int first_group() const { return T::kShareColumns ? 0 : warpgroup * kGroups; }
  __device__ int barrier() const { return 1 + warpgroup; }
  __device__ void release(Smem<T>& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

template <class T>
__device__ Operands operands_of(const typename Smem<T>::Stage& stage, const Consumer<T>& me) {
  const uint8_t* rows = stage.rows + Presplit::plane_bytes(me.first_row());
  const uint8_t* columns = stage.columns + me.first_group() * kBoxBytes;
  return {wgmma::descriptor(rows), wgmma::descriptor(rows + T::kRowPlane),
          wgmma::swizzled_descriptor<kBoxBytes>(columns),
          wgmma::swizzled_descriptor<kBoxBytes>(columns + T::kColumnPlane)};
}

// Fills the table of a consumer's columns, from a group on; each thread has one.
__device__ void fill(Columns& columns, const Params& params, int64_t group, int thread,
                     int barrier) {
  const Column column(params, group + thread / kGroup, thread % kGroup);
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last tile's have been read
  const bool exists =
      column.channel < params.conv().channels && group + thread / kGroup < params.groups();
  columns.set_offset(thread, exists ? column.offset_in_dw(params) : Columns::kNone);
  columns.inverse_scales[thread] = params.images.scales[0].inverse_scale(0);
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

// Replaces the inverse scales by a chunk's, which the small numbers of its pixels decide.
__device__ __noinline__ void fill_wide(Columns& columns, uint32_t (&small_numbers)[kGroups],
                                       const Params& params, int64_t group, int64_t chunk,
                                       int thread, int barrier) {
  const Convolution& conv = params.conv();
  if (thread < kGroups) small_numbers[thread] = 0;
  ptx::named_barrier_sync(barrier, kWarpgroup);  // the last chunk's have been read, too
  const int64_t end = min((chunk + 1) * kChunk, params.gradient.k());
  for (int i = 0; i < kGroups; ++i) {
    const Tap tap = Column(params, group + i, 0).tap;
    uint32_t small = 0;
    for (int64_t index = chunk * kChunk + thread; index < end; index += kWarpgroup) {
      const Window window(params.sizes, index);
      const Pixel pixel(conv, window, tap);
      if (!pixel.exists) continue;
      const int64_t at = window.image * conv.in_pixels() + pixel.index;
      small += min(params.images.small_numbers[at], static_cast<uint32_t>(kChunk));
    }
    if (small > 0) atomicAdd(&small_numbers[i], small);
  }
  ptx::named_barrier_sync(barrier, kWarpgroup);
  columns.inverse_scales[thread] =
      params.images.scales[0].inverse_scale(small_numbers[thread / kGroup]);
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

// --- Epilogue ------------------------------------------------------------------------------------

// Sums an element in the chunked order, which all threads of a warp ask for: each sums chunks of
// its own.
__device__ float recompute_by_warp(const Params& params, int64_t filter, const Column& column) {
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
__device__ void recompute(const Params& params, int64_t group, const Elements& at,
                          const Columns& columns, float4 (&staging)[kCount / 4][kWarpgroup],
                          int thread) {
  NO_UNROLL
  for (int i = 0; i < kCount; ++i) {
    float& staged = reinterpret_cast<float*>(&staging[i / 4][thread])[i % 4];
    const int64_t filter = at.row_of(i);
    const int column = at.col_of(i);
    unsigned flagged = __ballot_sync(~0u, at.has(i, columns) && isnan(staged));
    for (; flagged != 0; flagged &= flagged - 1) {
      const int lane = __ffs(static_cast<int>(flagged)) - 1;
      const int of_lane = __shfl_sync(~0u, column, lane);
      const Column place(params, group + of_lane / kGroup, of_lane % kGroup);
      const float sum = recompute_by_warp(params, __shfl_sync(~0u, filter, lane), place);
      if (thread % 32 == lane) staged = sum;
    }
  }
}

// Finishes and stores a thread's sums, of columns from a group on.
template <int kCount>
__device__ void store(const Params& params, const Elements& at, const Columns& columns,
                      int64_t group, float4 (&staging)[kCount / 4][kWarpgroup], int thread,
                      float (&sum)[kCount]) {
  const ImagesOf<float>& dw = params.gradient.dw;
  bool plain = true;
  UNROLL
  for (const float each : sum) plain &= !isnan(each);
  if (!__all_sync(~0u, plain)) {
    to_staging(staging, thread, sum);
    recompute<kCount>(params, group, at, columns, staging, thread);
    from_staging(staging, thread, sum);
  }
  store_elements(dw.data + at.row * dw.image, dw.image, at, columns, sum);
}

template <class T>
__device__ Elements elements_of(const Params& params, const TilePlace<T>& tile,
                                const Consumer<T>& me, int first) {
  const int64_t row = tile.filter + me.row;
  return {.row = row, .rows = params.conv().filters - row, .col = me.column, .first = first};
}

// --- Kernels -------------------------------------------------------------------------------------

template <int kPromote, class T>
__device__ void consume(const Params& params, Smem<T>& smem) {
  const Consumer<T> me(static_cast<int>(threadIdx.x / kWarpgroup) - 1,
                       static_cast<int>(threadIdx.x % kWarpgroup));
  Accumulators& totals = smem.totals[me.warpgroup];
  Columns& columns = smem.columns[me.warpgroup];
  const Items items(params);
  ptx::PipelineState pipe{.stages = T::kStages};
  ptx::pdl_wait();
  const bool is_wide = params.images.scales[0].is_wide;
  for (int index = 0; index < items.count(); ++index) {
    const Item item = items[index];
    const TilePlace<T> tile(params, item.tile);
    const int64_t group = tile.group + me.first_group();
    fill(columns, params, group, me.thread, me.barrier());
    float low[kElements], total[kElements];
    for (int chunk = item.first; chunk < item.end; ++chunk) {
      const int last = multiply_chunk<kPromote, kBStep>(
          smem.full, pipe, steps_of_chunk(params, chunk), low, total,
          [&](int stage) { return operands_of(smem.stage[stage], me); },
          [&](int stage) { me.release(smem, stage); });
      float row_scales[2];
      load_row_scales(params.dy, chunk, tile.filter + me.row, row_scales);
      wgmma::wait_group<0>();
      wgmma::fence_operand(low);
      me.release(smem, last);
      if (is_wide) {
        fill_wide(columns, smem.small_numbers[me.warpgroup], params, group, chunk, me.thread,
                  me.barrier());
      }
      float2 column_scales[kElements / 4];
      columns.load_scales(me.column, column_scales);
      descale_chunk(total, low, row_scales, column_scales, kPromote);
      add_to_totals(totals, me.thread, chunk > item.first, chunk + 1 < item.end, total);
    }
    if (item.split >= 0) {
      store_chunk(params.partial_sums[item.split * kConsumers + me.warpgroup], me.thread, total);
      continue;
    }
    add_to_totals(params.sums_before[blockIdx.x * kConsumers + me.warpgroup], me.thread,
                  !item.is_first, !item.is_last, total);
    if (!item.is_last) continue;
    store(params, elements_of(params, tile, me, 0), columns, group, totals, me.thread, total);
  }
}

template <int kPromote, int kFilters>
__global__ void __launch_bounds__(kThreads, 1)
    filter_gradient_kernel(const __grid_constant__ Params params) {
  using T = Tile<kFilters>;
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem<T>& smem = *reinterpret_cast<Smem<T>*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(T::kStages, smem.full, kProducers, smem.empty,
                              kConsumers * kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  if (threadIdx.x >= kWarpgroup) {
    ptx::setmaxnreg_inc<232>();
    consume<kPromote>(params, smem);
  } else {
    ptx::setmaxnreg_dec<40>();
    const auto warp = static_cast<int>(threadIdx.x / 32);
    if (warp < kProducers && ptx::elect_one()) {
      warp < 2 ? load_columns(params, smem, warp) : load_rows(params, smem);
    }
  }
}

// Adds the sums of spans in order. A block has some elements of each thread of a consumer.
constexpr int kReduceElements = 16, kReduceParts = kElements / kReduceElements;

template <int kFilters>
__global__ void __launch_bounds__(kWarpgroup, 4)
    filter_gradient_reduce_kernel(const __grid_constant__ Params params) {
  using T = Tile<kFilters>;
  __shared__ float4 staging[kReduceElements / 4][kWarpgroup];
  __shared__ Columns columns;
  ptx::pdl_wait();
  const auto part = static_cast<int>(blockIdx.x % kReduceParts);
  const int64_t index = blockIdx.x / kReduceParts, split = index / kConsumers;
  const Consumer<T> me(static_cast<int>(index % kConsumers), static_cast<int>(threadIdx.x));
  const TilePlace<T> tile(params, params.whole_tiles + split);
  const int64_t group = tile.group + me.first_group();
  fill(columns, params, group, me.thread, me.barrier());
  const int spans = Spans(params.gradient.k()).count();
  float sum[kReduceElements];
  add_sums(&params.partial_sums[split * spans * kConsumers + me.warpgroup], kConsumers, spans,
           part * kReduceElements, me.thread, sum);
  store(params, elements_of(params, tile, me, part * kReduceElements), columns, group, staging,
        me.thread, sum);
}

// --- The host's side -----------------------------------------------------------------------------

struct Buffers {
  SplitImages images;
  Presplit dy;
  Accumulators *partial_sums, *sums_before;

  Buffers(const FilterGradient& gradient, const FilterGradientPlan& plan, Workspace& workspace)
      : images(SplitImages::take(gradient.conv, workspace)),
        dy{.rows = gradient.conv.filters, .k = gradient.k()} {
    dy.hi_lo = workspace.take<uint8_t>(dy.matrix_bytes()).data();
    dy.inverse_scales = workspace.take<float>(dy.matrix_groups()).data();
    const int64_t blocks = plan.spans_are_chunks ? 0 : plan.blocks;
    partial_sums =
        workspace.take<Accumulators>(plan.split_tiles() * plan.spans * kConsumers).data();
    sums_before = workspace.take<Accumulators>(blocks * kConsumers).data();
  }
};

// K counts the windows of images: a tap for each image, and a channel for each of its windows.
void split_rows(const FilterGradient& gradient, const Presplit& presplit, const Context& context) {
  const Convolution& conv = gradient.conv;
  const ImagesOf<const float>& dy = gradient.dy;
  const auto windows = static_cast<unsigned>(conv.out[0] * conv.out[1] * conv.out[2]);
  const FilterTaps taps{
      .channels = windows, .padded_channels = windows, .count = {1, 1}, .stride = {dy.image, 0, 0}};
  const Matrix matrix{
      .data = dy.data, .row_stride = dy.channel, .col_stride = dy.spatial[kSpatialDims - 1]};
  launch_split_filters({.matrix = matrix, .batch = {}, .presplit = presplit}, taps, context);
}

template <int kFilters>
void launch(const Params& params, const FilterGradientPlan& plan, const Context& context) {
  constexpr size_t kBytes = sizeof(Smem<Tile<kFilters>>);
  const auto kernel = fp16x3::promotion(params.gradient.k()) == 16
                          ? filter_gradient_kernel<16, kFilters>
                          : filter_gradient_kernel<32, kFilters>;
  allow_shared_memory(kernel, kBytes);
  launch_pdl(kernel, static_cast<unsigned>(plan.blocks), kThreads, kBytes, context, params);
  if (plan.split_tiles() == 0) return;
  const auto parts = static_cast<unsigned>(plan.split_tiles() * kConsumers * kReduceParts);
  launch_pdl(filter_gradient_reduce_kernel<kFilters>, parts, kWarpgroup, 0, context, params);
}

}  // namespace
}  // namespace conv

int64_t filter_gradient_workspace(const FilterGradient& gradient, int64_t sms) {
  return workspace_bytes(
      [&](Workspace& each) { conv::Buffers(gradient, filter_gradient_plan(gradient, sms), each); });
}

bool launch_filter_gradient(const FilterGradient& gradient, const Context& context) {
  using namespace conv;
  const Convolution& conv = gradient.conv;
  void* memory = context.allocate(filter_gradient_workspace(gradient, context.sms));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const FilterGradientPlan plan = filter_gradient_plan(gradient, context.sms);
  const Buffers buffers(gradient, plan, workspace);
  split_rows(gradient, buffers.dy, context);
  launch_split_images(conv, buffers.images, Scales::kOfAll, context);
  Params params{};
  params.has_depth = has_depth(conv);
  params.map = im2col_map(conv, buffers.images.hi_lo, kGroup, kK, params.has_depth);
  params.gradient = gradient;
  params.sizes = WindowSizes::of(conv);
  params.images = buffers.images, params.dy = buffers.dy;
  params.row_tiles = FastDivmod::of(static_cast<uint32_t>(plan.row_tiles));
  params.taps = FastDivmod::of(static_cast<uint32_t>(conv.all_taps()));
  params.whole_tiles = static_cast<int>(plan.whole_tiles);
  params.split_tiles = static_cast<int>(plan.split_tiles());
  params.partial_sums = buffers.partial_sums, params.sums_before = buffers.sums_before;
  plan.filters == 64 ? launch<64>(params, plan, context) : launch<128>(params, plan, context);
  return true;
}

}  // namespace tiled::cuda
