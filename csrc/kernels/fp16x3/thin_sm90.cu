// fp16x3_thin: matrix x vector, or up to eight of them. Warps load, and one of them multiplies.
//
// Idea:  There is little to compute for what is read, but a chunk's sum is a chain of 128 dependent
//        products. So one warp of a block multiplies a tile, 16 rows of the long operand in a
//        chunk, while the others load the next one to their registers and find its ranges. Each
//        element is loaded once and split in registers, and goes to shared memory as mma.sync takes
//        it. Chunks are tiles of their own, so that all SMs are busy whatever the sides; a second
//        kernel adds them.
//        Complex operands are read in place (core/complex.h). A row of the long one is a row of
//        parts, and a row of the short one is two, for the real and the imaginary parts of C:
//
//          long A:  (u v) of A  by  (x -y) and (y x) of B
//          long B:  (x y) of B  by  (u -v) and (v u) of A, the same products in another order,
//                                                          on which no sum of 16 depends
//
//        Many products of two vectors share a tile: eight, or four complex ones, are the diagonal
//        of a tile's sums, and the other sums are dropped.
// Limit: The chain, 92 cycles for 16 of K, and splitting a tile, which waits for it: if K fills a
//        chunk, an SM has registers and shared memory for two blocks.
// Next:  fp16x3_skinny, which loads aligned rows by 16 bytes, and multiplies up to 32 rows.
//
//   warps that load   load a tile, find its ranges (of a K-major operand, a warp has whole rows)
//                     kEmpty: the tile before is multiplied
//                     split, store fragments -> smem;  kFull
//   last warp         kFull;  multiply;  kEmpty;  descale;  store the sums

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/complex.h"
#include "core/element.h"
#include "core/order_fp16x3.h"
#include "core/problem.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/thin_split.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace fp16x3_thin {

// --- Multiplying ---------------------------------------------------------------------------------

// The sums of a tile in a chunk, not descaled.
struct Sums {
  float total[4], low[4];
};

// A lane's fragments of 16 along K.
struct Fragments {
  uint32_t long_hi[4], long_lo[4], short_hi[2], short_lo[2];

  __device__ void load(const uint8_t* long_operand, const uint8_t* short_operand) {
    const auto read = [](const uint8_t* from) { return *reinterpret_cast<const uint4*>(from); };
    const uint4 hi = read(long_operand), lo = read(long_operand + 512), x = read(short_operand);
    long_hi[0] = hi.x, long_hi[1] = hi.y, long_hi[2] = hi.z, long_hi[3] = hi.w;
    long_lo[0] = lo.x, long_lo[1] = lo.y, long_lo[2] = lo.z, long_lo[3] = lo.w;
    short_hi[0] = x.x, short_hi[1] = x.y, short_lo[0] = x.z, short_lo[1] = x.w;
  }
};

// Multiplies a tile in a chunk of `length`, with `cols` rows of the short operand. All of its
// products are one chain for each element, so a warp loads the fragments of a step while it
// multiplies those before. Lo parts that an operand does not have are 0.
template <bool kLongIsA, bool kPromote16, bool kLongHasLo, bool kShortHasLo, int kWarps>
__device__ Sums multiply(const Smem<kWarps>& smem, int cols, int length) {
  const int lane = ptx::lane_id();
  const uint8_t* long_operand = smem.long_operand[0] + lane * 16;
  const bool has_short = lane / 4 < cols;
  const uint8_t* short_operand = has_short ? smem.short_operand + lane * 16 : smem.zeros;
  const int short_step = has_short ? cols * 64 : 0;
  Sums sums{};
  float part[4];
  Fragments fragments[2];
  const auto load = [&](Fragments& x) {
    x.load(long_operand, short_operand);
    long_operand += smem.kStepBytes, short_operand += short_step;
  };
  const auto step = [&](const Fragments& x, bool begins, bool ends) {
    // The order has lo_a hi_b first, whichever operand A is.
    if (kLongIsA ? kLongHasLo : kShortHasLo) {
      ptx::mma_m16n8k16(sums.low, kLongIsA ? x.long_lo : x.long_hi,
                        kLongIsA ? x.short_hi : x.short_lo);
    }
    if (begins) {
      ptx::mma_m16n8k16_from_0(part, x.long_hi, x.short_hi);
    } else {
      ptx::mma_m16n8k16(part, x.long_hi, x.short_hi);
    }
    if (kLongIsA ? kShortHasLo : kLongHasLo) {
      ptx::mma_m16n8k16(sums.low, kLongIsA ? x.long_hi : x.long_lo,
                        kLongIsA ? x.short_lo : x.short_hi);
    }
    if (!ends) return;
    UNROLL
    for (int i = 0; i < 4; ++i) sums.total[i] += part[i];
  };
  // Two steps at a time; if their number is odd, zeros follow, which add nothing.
  load(fragments[0]);
  _Pragma("unroll 2") for (int left = length; left > 0; left -= 32) {
    load(fragments[1]);
    step(fragments[0], true, kPromote16);
    load(fragments[0]);  // after the last step nobody needs it
    step(fragments[1], kPromote16, true);
  }
  return sums;
}

// --- Producers and consumer ----------------------------------------------------------------------

// The output of a tile: the workspace for the sums of a chunk, or else C. A lane has the sums of
// rows g and g + 8 of the long operand, and of rows 2 q and 2 q + 1 of the short one.
template <bool kLongIsA, Stored kStored>
struct Output {
  float* to;  // of the lane's first sum
  int64_t row_stride, col_stride;
  unsigned exist = 0;  // a bit for each of the lane's sums
  int64_t c_offset;

  __device__ Output(const Params& params, const PanelChunk& panel_chunk, const Tiles& tile) {
    const Problem& p = params.p;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, col = lane % 4 * 2;
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const int along = row + i / 2 * 8, across = col + i % 2;
      const bool kept = params.diagonal == 0 || params.diagonal_col(across) == along;
      if (along < tile.rows(params) && across < panel_chunk.rows && kept) exist |= 1u << i;
    }
    if (params.adds_chunks) {
      row_stride = 1, col_stride = params.sums_pitch();
      to = partial_sums(params, panel_chunk) + int64_t{tile.col_tile} * kRows + row;
      to += col * col_stride;
    } else {
      const auto& c = p.c;
      constexpr bool kComplex = kStored == Stored::kComplex;
      row_stride = kLongIsA ? c.row_stride : c.col_stride * (kComplex ? 2 : 1);
      col_stride = kLongIsA || kComplex ? c.col_stride : c.row_stride;
      c_offset = BatchOffsets(p, params.first_matrix + panel_chunk.matrix).c;
      const auto first = params.element(panel_chunk.first_row + col, tile.first_row(params) + row);
      to = static_cast<float*>(c.data) + c_offset + first.row * c.row_stride;
      to += first.col * c.col_stride;
    }
  }

  __device__ void store(const Params& params, const PanelChunk& panel_chunk, const Tiles& tile,
                        const float (&sums)[4]) const {
    const bool plain = params.adds_chunks || params.p.epilogue.is_identity();
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const int down = i / 2 * 8, right = i % 2;
      if ((exist >> i & 1) == 0) continue;
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
    const auto [m, n] = params.element(across, along);
    const int64_t matrix = params.first_matrix + panel_chunk.matrix;
    if (isnan(sum)) {
      if constexpr (kStored == Stored::kMixed) {
        sum = recompute_mixed(params.p, params.narrow, matrix, m, n, params.recomputed);
      } else if constexpr (kStored == Stored::kComplex) {
        sum = recompute_complex(params.p, params.signs_of_b, matrix, m, n, params.recomputed);
      } else {
        sum = recompute_by_thread(params.p, matrix, m, n, params.recomputed);
      }
    }
    store_noinline(params.p, c_offset, m, n, sum);
  }
};

// Named barriers: all slices of a tile have their ranges; the tile's fragments are in shared
// memory; they are multiplied.
enum { kRangesFound = 1, kFull, kEmpty };

// A warp loads and splits its part of the rows of a panel chunk's short operand.
template <class Element, bool kLongIsA, int kWarps>
__device__ void load_short(const Params& params, Smem<kWarps>& smem, unsigned index) {
  const PanelChunk panel_chunk(params, index);
  const BatchOffsets offsets(params.p, params.first_matrix + panel_chunk.matrix);
  const Matrix& matrix = params.short_operand;
  const int cols = panel_chunk.rows;
  const Element* first =
      first_of_chunk<Element>(matrix, kLongIsA ? offsets.b : offsets.a, panel_chunk.chunk);
  constexpr int kEach = kParts<Element>;  // rows of the tile for a row of the operand
  const PairStore<kIsComplex<Element>> store(params.short_signs, 64, /*swapped=*/false);
  NO_UNROLL
  for (int col = warp_id() * kEach; col < cols; col += kWarps * kEach) {
    Row<kWarps * 2> row;
    row.load(first + (panel_chunk.first_row + col) / kEach * matrix.row_stride, matrix.col_stride,
             panel_chunk.length);
    const auto range = row.range();
    const float scale = fp16x3::scale(range.largest);
    row.split(scale, smem.short_operand + col * 64, cols * 64, 4, 8, store);
    const float inverse_scale = row.inverse_scale(range, scale);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kEach) smem.inverse_scales[kRows + col + lane] = inverse_scale;
  }
}

// A warp loads and splits its part of the block's tiles.
template <bool kKMajor, bool kLongIsA, class Long, class Short, int kWarps>
__device__ void produce(const Params& params, Smem<kWarps>& smem) {
  const Matrix& matrix = params.long_operand;
  Tiles tile(params);
  do {
    if (tile.enters_panel_chunk) {
      const PanelChunk panel_chunk(params, tile.panel_chunk);
      const BatchOffsets offsets(params.p, params.first_matrix + panel_chunk.matrix);
      const Long* first =
          first_of_chunk<Long>(matrix, kLongIsA ? offsets.a : offsets.b, panel_chunk.chunk) +
          (tile.first_row(params) - int64_t{tile.col_tile} * kRows) * matrix.row_stride;
      __syncwarp();
      LongChunk& chunk = smem.long_chunk[warp_id()];
      if (ptx::lane_id() == 0) chunk.first = first, chunk.length = panel_chunk.length;
      __syncwarp();
    }
    const LongChunk chunk = smem.long_chunk[warp_id()];
    const int length = chunk.length;
    const Long* from =
        static_cast<const Long*>(chunk.first) + int64_t{tile.col_tile} * kRows * matrix.row_stride;
    const int last_row = tile.rows(params) - 1;
    if constexpr (kKMajor) {
      constexpr int kRowsOfWarp = kRows / kWarps;
      const int first_row = warp_id() * kRowsOfWarp;
      Row<kWarps * 2> rows[kRowsOfWarp];
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) {
        const Long* row_from = from + min(first_row + i, last_row) * matrix.row_stride;
        if (length >= kWarps * kSlice) {
          rows[i].load_full(row_from);
        } else {
          rows[i].load(row_from, 1, length);
        }
      }
      using Range = typename Row<kWarps * 2>::Range;
      Range* ranges = smem.row_ranges + first_row;  // many rows leave no registers for theirs
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) {
        const Range range = rows[i].range();
        if (ptx::lane_id() == 0) ranges[i] = range;
      }
      __syncwarp();
      ptx::named_barrier_sync(kEmpty, smem.kThreads);
      UNROLL
      for (int i = 0; i < kRowsOfWarp; ++i) {
        const int row = first_row + i;
        const Range range = ranges[i];
        const float scale = fp16x3::scale(range.largest);
        rows[i].split(scale, smem.long_operand[0] + row % 8 * 64 + row / 8 * 4, smem.kStepBytes, 8,
                      512, PairStore<false>({}, 0, false));
        const float inverse_scale = rows[i].inverse_scale(range, scale);
        if (ptx::lane_id() == 0) smem.inverse_scales[row] = inverse_scale;
      }
    } else {
      Slice slice;
      const int warp = warp_id();
      from += int64_t{warp} * (kSlice / kParts<Long>)*matrix.col_stride;
      UNROLL
      for (int down = 0; down < 2; ++down) {
        slice.load(down, from + min(ptx::lane_id() / 4 + down * 8, last_row) * matrix.row_stride,
                   matrix.col_stride, length - warp * kSlice);
      }
      slice.find_ranges(smem.ranges[warp]);
      ptx::named_barrier_sync(kRangesFound, kWarps * 32);
      const int lane = ptx::lane_id();
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
        smem.inverse_scales[lane] =
            fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale));
      }
      slice.split(of_row, of_row_8, smem.long_operand[warp_id() * kSteps], smem.kStepBytes);
    }
    if (tile.enters_panel_chunk) load_short<Short, kLongIsA>(params, smem, tile.panel_chunk);
    ptx::named_barrier_arrive(kFull, smem.kThreads);
  } while (tile.advance(params));
}

// Returns whether lo parts of a tile's 16-bit rows may not be 0: a row is wide. The whole warp
// calls it.
template <bool kLong, int kWarps>
__device__ bool has_lo(const Smem<kWarps>& smem, int cols) {
  const int lane = ptx::lane_id();
  const float* scales = smem.inverse_scales + (kLong ? 0 : kRows);
  return __any_sync(~0u, lane < (kLong ? kRows : cols) && fp16x3::small_numbers(scales[lane]) != 0);
}

// A warp multiplies the block's tiles and stores their sums.
template <bool kLongIsA, bool kPromote16, class Long, class Short, int kWarps>
__device__ void consume(const Params& params, Smem<kWarps>& smem) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Tiles tile(params);
  if (lane < 4) reinterpret_cast<float*>(smem.zeros)[lane] = 0;
  __syncwarp();
  ptx::named_barrier_arrive(kEmpty, smem.kThreads);
  for (bool more = true; more;) {
    const PanelChunk panel_chunk(params, tile.panel_chunk);
    constexpr Stored kStored = kIsComplex<Long>              ? Stored::kComplex
                               : std::is_same_v<Long, Short> ? Stored::kFloat32
                                                             : Stored::kMixed;
    const Output<kLongIsA, kStored> output(params, panel_chunk, tile);
    ptx::named_barrier_sync(kFull, smem.kThreads);
    Sums sums;
    constexpr bool kLongIsNarrow = sizeof(Long) == 2, kShortIsNarrow = sizeof(Short) == 2;
    if ((kLongIsNarrow || kShortIsNarrow) && !has_lo<kLongIsNarrow>(smem, panel_chunk.rows)) {
      sums = multiply<kLongIsA, kPromote16, !kLongIsNarrow, !kShortIsNarrow>(smem, panel_chunk.rows,
                                                                             panel_chunk.length);
    } else {
      sums = multiply<kLongIsA, kPromote16, true, true>(smem, panel_chunk.rows, panel_chunk.length);
    }
    const float* scales = smem.inverse_scales;
    const float row_scales[2] = {scales[lane / 4], scales[lane / 4 + 8]};
    const float2 col_scales = reinterpret_cast<const float2*>(scales + kRows)[lane % 4];
    Tiles next = tile;
    more = next.advance(params);
    if (more) ptx::named_barrier_arrive(kEmpty, smem.kThreads);
    descale_chunk<4>(sums.total, sums.low, row_scales, {col_scales}, kPromote16 ? 16 : 32);
    output.store(params, panel_chunk, tile, sums.total);
    tile = next;
  }
}

// K < 512 needs fewer than eight loader warps. Long and Short: the types of the operands' elements.
template <bool kKMajor, bool kLongIsA, int kWarps, class Long, class Short>
__global__ void __launch_bounds__(Smem<kWarps>::kThreads, fp16x3_thin_blocks_by_registers(kWarps))
    fp16x3_thin_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  ptx::pdl_launch_dependents();
  auto& smem = *reinterpret_cast<Smem<kWarps>*>(smem_bytes);
  ptx::pdl_wait();
  if (warp_id() < kWarps) {
    produce<kKMajor, kLongIsA, Long, Short>(params, smem);
  } else {
    consume<kLongIsA, kWarps != 8, Long, Short>(params, smem);
  }
}

namespace {

template <bool kKMajor, bool kLongIsA, int kWarps, class Long, class Short>
void launch(Params& params, const Context& context) {
  const auto kernel = fp16x3_thin_kernel<kKMajor, kLongIsA, kWarps, Long, Short>;
  const int cols = static_cast<int>(std::min<int64_t>(params.short_count, kCols));
  static_assert(Smem<kWarps>::bytes(1) == fp16x3_thin_smem(kWarps, 1));
  static_assert(Smem<kWarps>::bytes(kCols) == fp16x3_thin_smem(kWarps, kCols));
  const auto smem_bytes = static_cast<size_t>(Smem<kWarps>::bytes(cols));
  allow_shared_memory(kernel, static_cast<size_t>(Smem<kWarps>::bytes(kCols)));
  params.tiles = params.panel_chunks() * params.col_tiles;
  const int resident = context.sms * fp16x3_thin_blocks(kWarps, cols);
  params.tiles_of_block = ceil_div(params.tiles, static_cast<unsigned>(resident));
  params.group = fp16x3_thin_team(kKMajor);
  const unsigned tiles_of_group = params.group * params.tiles_of_block;
  const unsigned blocks = params.tiles / tiles_of_group * params.group +
                          std::min(params.tiles % tiles_of_group, params.group);
  params.panel_chunks_apart = params.group / params.col_tiles;
  params.col_tiles_apart = params.group % params.col_tiles;
  launch_pdl(kernel, blocks, Smem<kWarps>::kThreads, smem_bytes, context, params);
}
template <bool kKMajor, bool kLongIsA, class Narrow16>
void launch_mixed(Params& params, const Context& context) {
  params.long_is_narrow() ? launch<kKMajor, kLongIsA, 8, Narrow16, float>(params, context)
                          : launch<kKMajor, kLongIsA, 8, float, Narrow16>(params, context);
}
template <bool kKMajor, bool kLongIsA, class Element>
void launch_for_k(Params& params, const Context& context) {
  static_assert(fp16x3::promotion(511) == 16 && fp16x3::promotion(512) == 32);
  switch (fp16x3_thin_warps(params.p.k)) {
    case 2: return launch<kKMajor, kLongIsA, 2, Element, Element>(params, context);
    case 4: return launch<kKMajor, kLongIsA, 4, Element, Element>(params, context);
    default: return launch<kKMajor, kLongIsA, 8, Element, Element>(params, context);
  }
}
template <bool kKMajor, bool kLongIsA>
void launch(Params& params, const Context& context) {
  if (params.is_mixed()) {
    return params.narrow.dtype == DType::kFloat16
               ? launch_mixed<kKMajor, kLongIsA, Half>(params, context)
               : launch_mixed<kKMajor, kLongIsA, BFloat16>(params, context);
  }
  return params.stored == Stored::kComplex
             ? launch_for_k<kKMajor, kLongIsA, float2>(params, context)
             : launch_for_k<kKMajor, kLongIsA, float>(params, context);
}

// `complex` is null for a real product, and `narrow` if no operand is a 16-bit one.
bool run(const Problem& p, const Plan& plan, const ComplexB* complex, const Narrow* narrow,
         const Context& context) {
  const auto run_part = [&](const Problem& part, float* sums, unsigned long long* recomputed) {
    Params params{};
    const Fp16x3ThinSides sides = fp16x3_thin_sides(part, plan.tile);
    static_cast<OnTheFlyParams&>(params) =
        on_the_fly_params(sides.p, sides.sides, kRows, kCols, narrow);
    params.diagonal = sides.diagonal;
    params.long_rows = sides.diagonal != 0 ? sides.p.m : params.long_count;
    if (complex != nullptr) {
      params.stored = Stored::kComplex, params.signs_of_b = params.short_signs = complex->signs;
      // Parts of A are swapped where those of B would be.
      if (!params.long_is_a) std::swap(params.short_signs.y_even, params.short_signs.x_odd);
    }
    params.partial_sums = sums, params.recomputed = recomputed;
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
  return run_with_sums(p, plan, narrow, context, fp16x3_thin_workspace, run_part);
}

}  // namespace
}  // namespace fp16x3_thin

bool launch_fp16x3_thin(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_thin::run(p, plan, nullptr, nullptr, context);
}

bool launch_fp16x3_thin_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                const Context& context) {
  return fp16x3_thin::run(p, plan, &b, nullptr, context);
}

bool launch_fp16x3_thin_mixed(const Problem& p, const Plan& plan, const Narrow& narrow,
                              const Context& context) {
  return fp16x3_thin::run(p, plan, nullptr, &narrow, context);
}

}  // namespace tiled::cuda
