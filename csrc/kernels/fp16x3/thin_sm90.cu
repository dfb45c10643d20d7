// fp16x3_thin: matrix x vector, or up to eight of them. Warps load, and one of them multiplies.
//
// Idea:  There is little to compute for what is read, but a chunk's sum is a chain of 128 dependent
//        products. So one warp of a block multiplies a tile, 16 rows of the long operand in a
//        chunk, while the others load the next one to their registers and find its ranges. Each
//        element is loaded once and split in registers, and goes to shared memory as mma.sync takes
//        it. Chunks are tiles of their own, so that all SMs are busy whatever the sides; a second
//        kernel adds them.
// Limit: The chain, 92 cycles for 16 of K, and splitting a tile, which waits for it: where K fills
//        a chunk, an SM has registers and shared memory for two blocks.
// Next:  fp16x3_skinny, which loads aligned rows by 16 bytes, and multiplies up to 32 rows.
//
//   warps that load   load a tile, find its ranges (of a K-major operand, a warp has whole rows)
//                     kEmpty: the tile before is multiplied
//                     split, store fragments -> smem;  kFull
//   last warp         kFull;  multiply;  kEmpty;  descale;  store the sums

#include <algorithm>
#include <cstdint>

#include "core/order_fp16x3.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/recomputed_counter.h"
#include "kernels/fp16x3/thin_load.cuh"
#include "kernels/fp16x3/thin_multiply.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace fp16x3_thin {

// The long operand's rows are columns of the sums, as in all kernels that split on the fly.
struct Params : OnTheFlyParams {
  unsigned tiles, tiles_of_block;                // in all, and at most
  unsigned team;                                 // blocks that take tiles in turn
  unsigned panel_chunks_apart, col_tiles_apart;  // a block's tile and its next one
};

// The tiles of a block. A team of blocks has adjacent tiles, so that each block seldom enters
// another panel chunk, whose rows of the short operand it has to load.
struct Tiles {
  unsigned panel_chunk, col_tile;  // of this tile
  unsigned left;                   // with this one
  bool enters_panel_chunk = true;

  __device__ explicit Tiles(const Params& params) {
    const unsigned team = blockIdx.x / params.team, member = blockIdx.x % params.team;
    const unsigned first = team * params.team * params.tiles_of_block + member;
    panel_chunk = first / params.col_tiles, col_tile = first % params.col_tiles;
    left = min(params.tiles_of_block, (params.tiles - first + params.team - 1) / params.team);
  }
  // Goes on to the next tile. Returns whether there is one.
  __device__ bool advance(const Params& params) {
    unsigned next = panel_chunk + params.panel_chunks_apart;
    col_tile += params.col_tiles_apart;
    if (col_tile >= params.col_tiles) col_tile -= params.col_tiles, ++next;
    enters_panel_chunk = next != panel_chunk;
    panel_chunk = next;
    return --left > 0;
  }
  // The first row of the long operand, and how many there are.
  __device__ int64_t first_row(const Params& params) const {
    return (params.first_col_tile + col_tile) * kRows;
  }
  __device__ int rows(const Params& params) const {
    return static_cast<int>(min(params.long_count - first_row(params), int64_t{kRows}));
  }
};

// Where the sums of a tile go: those of a chunk to the workspace, and others to C. A lane's are of
// rows g and g + 8 of the long operand, and of rows 2 q and 2 q + 1 of the short one.
template <bool kLongIsA>
struct Destination {
  float* to;  // of the lane's first sum
  int64_t row_stride, col_stride;
  int rows, cols;  // that there are, from the lane's first ones on
  int64_t c_offset;

  __device__ Destination(const Params& params, const PanelChunk& panel_chunk, const Tiles& tile) {
    const Problem& p = params.p;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, col = lane % 4 * 2;
    cols = panel_chunk.rows - col;
    rows = tile.rows(params) - row;
    if (params.adds_chunks) {
      row_stride = 1, col_stride = params.sums_pitch();
      to = partial_sums(params, panel_chunk) + int64_t{tile.col_tile} * kRows;
    } else {
      const auto& c = p.c;
      row_stride = kLongIsA ? c.row_stride : c.col_stride;
      col_stride = kLongIsA ? c.col_stride : c.row_stride;
      c_offset = BatchOffsets(p, params.first_matrix + panel_chunk.matrix).c;
      to = static_cast<float*>(c.data) + c_offset + tile.first_row(params) * row_stride +
           panel_chunk.first_row * col_stride;
    }
    to += row * row_stride + col * col_stride;
  }

  __device__ void store(const Params& params, const PanelChunk& panel_chunk, const Tiles& tile,
                        const float (&sums)[4]) const {
    const bool plain = params.adds_chunks || params.p.epilogue.is_identity();
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const int down = i / 2 * 8, right = i % 2;
      if (down >= rows || right >= cols) continue;
      if (plain && (params.adds_chunks || !isnan(sums[i]))) {
        __stcg(to + down * row_stride + right * col_stride, sums[i]);
      } else {
        store_slowly(params, panel_chunk, tile, down, right, sums[i]);
      }
    }
  }
  // store() of a sum that is to be recomputed, or with an epilogue.
  __device__ void store_slowly(const Params& params, const PanelChunk& panel_chunk,
                               const Tiles& tile, int down, int right, float sum) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t along = tile.first_row(params) + lane / 4 + down;
    const int64_t across = panel_chunk.first_row + lane % 4 * 2 + right;
    const int64_t m = kLongIsA ? along : across, n = kLongIsA ? across : along;
    const int64_t matrix = params.first_matrix + panel_chunk.matrix;
    if (isnan(sum)) sum = recompute_by_thread(params.p, matrix, m, n, params.recomputed);
    store_noinline(params.p, c_offset, m, n, sum);
  }
};

// Named barriers: all slices of a tile have their ranges; the tile's fragments are in shared
// memory; they are multiplied.
enum { kRangesFound = 1, kFull, kEmpty };

// A warp loads and splits its part of the rows of a panel chunk's short operand.
template <bool kLongIsA, int kWarps>
__device__ void load_short(const Params& params, Smem<kWarps>& smem, unsigned index) {
  const PanelChunk panel_chunk(params, index);
  const BatchOffsets offsets(params.p, params.first_matrix + panel_chunk.matrix);
  const Matrix& matrix = params.short_operand;
  const int cols = panel_chunk.rows;
  NO_UNROLL
  for (int col = warp_id(); col < cols; col += kWarps) {
    Row<kWarps * 2> row;
    row.load(static_cast<const float*>(matrix.data) + (kLongIsA ? offsets.b : offsets.a) +
                 int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride +
                 (panel_chunk.first_row + col) * matrix.row_stride,
             matrix.col_stride, panel_chunk.length);
    const Range range = row.range();
    const float scale = fp16x3::scale(range.largest);
    row.split(scale, smem.short_operand + col * 64, cols * 64, 4, 8);
    const float inverse_scale = row.inverse_scale(range, scale);
    if (threadIdx.x % 32 == 0) smem.inverse_scales[kRows + col] = inverse_scale;
  }
}

// A warp loads and splits its part of the block's tiles.
template <bool kKMajor, bool kLongIsA, int kWarps>
__device__ void produce(const Params& params, Smem<kWarps>& smem) {
  const Matrix& matrix = params.long_operand;
  Tiles tile(params);
  do {
    if (tile.enters_panel_chunk) {
      const PanelChunk panel_chunk(params, tile.panel_chunk);
      const BatchOffsets offsets(params.p, params.first_matrix + panel_chunk.matrix);
      const float* first = static_cast<const float*>(matrix.data) +
                           (kLongIsA ? offsets.a : offsets.b) +
                           int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride +
                           params.first_col_tile * kRows * matrix.row_stride;
      __syncwarp();
      LongChunk& chunk = smem.long_chunk[warp_id()];
      if (lane_id() == 0) chunk.first = first, chunk.length = panel_chunk.length;
      __syncwarp();
    }
    const LongChunk chunk = smem.long_chunk[warp_id()];
    const int length = chunk.length;
    const float* from = chunk.first + int64_t{tile.col_tile} * kRows * matrix.row_stride;
    const int last_row = tile.rows(params) - 1;
    if constexpr (kKMajor) {
      constexpr int kRowsOfWarp = kRows / kWarps;
      const int first_row = warp_id() * kRowsOfWarp;
      Row<kWarps * 2> rows[kRowsOfWarp];
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) {
        const float* row_from = from + min(first_row + i, last_row) * matrix.row_stride;
        if (length >= kWarps * kSlice) {
          rows[i].load_full(row_from);
        } else {
          rows[i].load(row_from, 1, length);
        }
      }
      Range ranges[kRowsOfWarp];
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) ranges[i] = rows[i].range();
      ptx::named_barrier_sync(kEmpty, smem.kThreads);
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) {
        const int row = first_row + i;
        const float scale = fp16x3::scale(ranges[i].largest);
        rows[i].split(scale, smem.long_operand[0] + row % 8 * 64 + row / 8 * 4, smem.kStepBytes, 8,
                      512);
        const float inverse_scale = rows[i].inverse_scale(ranges[i], scale);
        if (lane_id() == 0) smem.inverse_scales[row] = inverse_scale;
      }
    } else {
      Slice slice;
      const int warp = warp_id();
      from += int64_t{warp} * kSlice * matrix.col_stride;
      UNROLL
      for (int down = 0; down < 2; ++down) {
        slice.load(down, from + min(lane_id() / 4 + down * 8, last_row) * matrix.row_stride,
                   matrix.col_stride, length - warp * kSlice);
      }
      slice.find_ranges(smem.ranges[warp]);
      ptx::named_barrier_sync(kRangesFound, kWarps * 32);
      const int lane = lane_id();
      Range range;
      NO_UNROLL for (int w = 0; w < kWarps; ++w) { range.add(smem.ranges[w][lane % kRows]); }
      const float scale = fp16x3::scale(range.largest);
      const bool wide = range.is_wide(scale), any_wide = __any_sync(~0u, wide);
      const float of_row = __shfl_sync(~0u, scale, lane / 4);
      const float of_row_8 = __shfl_sync(~0u, scale, lane / 4 + 8);
      if (any_wide) slice.count_small(of_row, of_row_8, smem.small_numbers[warp]);
      ptx::named_barrier_sync(kEmpty, smem.kThreads);
      uint32_t small_numbers = 0;
      if (any_wide) {
        for (int w = 0; w < kWarps; ++w) small_numbers += smem.small_numbers[w][lane % kRows];
      }
      if (lane < kRows) {  // by all warps
        smem.inverse_scales[lane] = fp16x3::inverse_scale(range.largest, small_numbers);
      }
      slice.split(of_row, of_row_8, smem.long_operand[warp_id() * kSteps], smem.kStepBytes);
    }
    if (tile.enters_panel_chunk) load_short<kLongIsA>(params, smem, tile.panel_chunk);
    ptx::named_barrier_arrive(kFull, smem.kThreads);
  } while (tile.advance(params));
}

// A warp multiplies the block's tiles and stores their sums.
template <bool kLongIsA, bool kPromote16, int kWarps>
__device__ void consume(const Params& params, Smem<kWarps>& smem) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Tiles tile(params);
  if (lane < 4) reinterpret_cast<float*>(smem.zeros)[lane] = 0;
  __syncwarp();
  ptx::named_barrier_arrive(kEmpty, smem.kThreads);
  for (bool more = true; more;) {
    const PanelChunk panel_chunk(params, tile.panel_chunk);
    const Destination<kLongIsA> destination(params, panel_chunk, tile);
    ptx::named_barrier_sync(kFull, smem.kThreads);
    Sums sums = multiply<kLongIsA, kPromote16>(smem, panel_chunk.rows, panel_chunk.length);
    const float* scales = smem.inverse_scales;
    const float row_scales[2] = {scales[lane / 4], scales[lane / 4 + 8]};
    const float2 col_scales = reinterpret_cast<const float2*>(scales + kRows)[lane % 4];
    Tiles next = tile;
    more = next.advance(params);
    if (more) ptx::named_barrier_arrive(kEmpty, smem.kThreads);
    descale_chunk<4>(sums.total, sums.low, row_scales, {col_scales}, kPromote16 ? 16 : 32);
    destination.store(params, panel_chunk, tile, sums.total);
    tile = next;
  }
}

// Sums of less than 512 have less than 8 slices.
template <bool kKMajor, bool kLongIsA, int kWarps>
__global__ void __launch_bounds__(Smem<kWarps>::kThreads, fp16x3_thin_blocks_by_registers(kWarps))
    fp16x3_thin_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  ptx::pdl_launch_dependents();
  auto& smem = *reinterpret_cast<Smem<kWarps>*>(smem_bytes);
  ptx::pdl_wait();
  if (warp_id() < kWarps) {
    produce<kKMajor, kLongIsA>(params, smem);
  } else {
    consume<kLongIsA, kWarps != 8>(params, smem);
  }
}

namespace {

template <bool kKMajor, bool kLongIsA, int kWarps>
void launch(Params& params, const Context& context) {
  const auto kernel = fp16x3_thin_kernel<kKMajor, kLongIsA, kWarps>;
  const int cols = static_cast<int>(std::min<int64_t>(params.short_count, kCols));
  static_assert(Smem<kWarps>::bytes(1) == fp16x3_thin_smem(kWarps, 1));
  static_assert(Smem<kWarps>::bytes(kCols) == fp16x3_thin_smem(kWarps, kCols));
  const auto smem_bytes = static_cast<size_t>(Smem<kWarps>::bytes(cols));
  allow_shared_memory(kernel, static_cast<size_t>(Smem<kWarps>::bytes(kCols)));
  params.tiles = params.panel_chunks() * params.col_tiles;
  const int resident = context.sms * fp16x3_thin_blocks(kWarps, cols);
  params.tiles_of_block = ceil_div(params.tiles, static_cast<unsigned>(resident));
  params.team = fp16x3_thin_team(kKMajor);
  const unsigned tiles_of_team = params.team * params.tiles_of_block;
  const unsigned blocks = params.tiles / tiles_of_team * params.team +
                          std::min(params.tiles % tiles_of_team, params.team);
  params.panel_chunks_apart = params.team / params.col_tiles;
  params.col_tiles_apart = params.team % params.col_tiles;
  launch_pdl(kernel, blocks, Smem<kWarps>::kThreads, smem_bytes, context, params);
}
template <bool kKMajor, bool kLongIsA>
void launch(Params& params, const Context& context) {
  static_assert(fp16x3::promotion(511) == 16 && fp16x3::promotion(512) == 32);
  switch (fp16x3_thin_warps(params.p.k)) {
    case 2: return launch<kKMajor, kLongIsA, 2>(params, context);
    case 4: return launch<kKMajor, kLongIsA, 4>(params, context);
    default: return launch<kKMajor, kLongIsA, 8>(params, context);
  }
}

}  // namespace
}  // namespace fp16x3_thin

// Where memory is short, sub-problems share a smaller workspace for their sums.
bool launch_fp16x3_thin(const Problem& p, const Plan&, const Context& context) {
  using namespace fp16x3_thin;
  const RecomputedCounter counter(context);
  if (counter.lacks_memory()) return false;
  const auto params_of = [](const Problem& part) {
    return on_the_fly_params(part, kRows, kCols, kMaxSumsBytes);
  };
  const auto bytes = [&](const Problem& part) { return partial_sums_bytes(params_of(part)); };
  const auto run = [&](const Problem& part, void* workspace) {
    Params params{};
    static_cast<OnTheFlyParams&>(params) = params_of(part);
    params.partial_sums = static_cast<float*>(workspace);
    params.recomputed = counter.on_gpu();
    params.adds_chunks = params.chunks > 1;
    const bool k_major = params.long_operand.col_stride == 1;
    run_on_the_fly(params, 1, context, [&](unsigned) {
      if (k_major) {
        params.long_is_a ? launch<true, true>(params, context)
                         : launch<true, false>(params, context);
      } else {
        params.long_is_a ? launch<false, true>(params, context)
                         : launch<false, false>(params, context);
      }
    });
  };
  if (p.k <= kChunk) {
    run(p, nullptr);
  } else if (!run_sub_problems(p, context, kLeastSumsBytes, bytes, run)) {
    return false;
  }
  counter.read();
  return true;
}

}  // namespace tiled::cuda
