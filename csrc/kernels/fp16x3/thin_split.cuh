#pragma once
// fp16x3_thin: its tiles and their order, its shared memory, and how its rows are split.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/max_nan.cuh"
#include "ptx/pack.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::fp16x3_thin {

// --- Tiles, their order, and shared memory -------------------------------------------------------

// A tile has kRows rows of the long operand and kCols of the short one. Each row of a complex short
// operand is two of them, so that sums of real numbers are both parts of the elements of C.
inline constexpr int kRows = kFp16x3ThinRows, kCols = kFp16x3ThinCols;
inline constexpr int kSteps = 8;  // of 16 along K, for each warp that loads
inline constexpr int kSlice = kSteps * 16;

// A chunk of the long operand, which warps keep in shared memory: they have no registers for it.
struct LongChunk {
  const void* first;  // of the launch's first row
  int length;
};

// The shared memory of a block. kWarps of its warps load.
template <int kWarps>
struct Smem {
  static constexpr int kThreads = (kWarps + 1) * 32;  // one warp multiplies
  // Fragments of the long operand: for each step hi, then lo, of each lane row g and row g + 8.
  static constexpr int kStepBytes = 2 * 32 * 16 + 64;  // fewer bank conflicts
  uint8_t long_operand[kWarps * kSteps][kStepBytes];
  uint8_t zeros[16];
  float inverse_scales[kRows + kCols];
  union {
    Range ranges[kWarps][kRows];                       // of the long operand's slices
    BasicRange</*kHasBits=*/false> row_ranges[kRows];  // of its whole rows
  };
  uint8_t small_numbers[kWarps][kRows];  // in slices of wide rows
  LongChunk long_chunk[kWarps];
  // Fragments of the short operand, which has `cols` rows: for each step, row and q hi, then lo.
  uint8_t short_operand[];

  // The fragments of one step more are loaded, and not used.
  static constexpr int bytes(int cols) {
    return static_cast<int>(sizeof(Smem)) + (kWarps * kSteps + 1) * cols * 64;
  }
};

// The warp, read anew each time, as ptx::lane_id() is.
__device__ inline int warp_id() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return ptx::warp_uniform(static_cast<unsigned>(thread) / 32);
}

// The long operand's rows are columns of the sums, as in all kernels that split on the fly.
struct Params : OnTheFlyParams {
  SignsOfB short_signs;                          // of a complex short operand
  int64_t long_rows;                             // of the long operand
  unsigned tiles, tiles_of_block;                // in all, and at most
  unsigned group;                                // blocks that take tiles in turn
  unsigned panel_chunks_apart, col_tiles_apart;  // a block's tile and its next one
};

// The tiles of a block. A group of blocks has adjacent tiles, so that each block seldom enters
// another panel chunk and loads its rows of the short operand.
struct Tiles {
  unsigned panel_chunk, col_tile;  // of this tile
  unsigned left;                   // with this one
  bool enters_panel_chunk = true;

  __device__ explicit Tiles(const Params& params) {
    const unsigned group = blockIdx.x / params.group, member = blockIdx.x % params.group;
    const unsigned first = group * params.group * params.tiles_of_block + member;
    panel_chunk = first / params.col_tiles, col_tile = first % params.col_tiles;
    left = min(params.tiles_of_block, (params.tiles - first + params.group - 1) / params.group);
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
    if (params.diagonal != 0) return panel_chunk % params.panels * params.diagonal;
    return (params.first_col_tile + col_tile) * kRows;
  }
  __device__ int rows(const Params& params) const {
    const int rows = params.diagonal != 0 ? params.diagonal : kRows;
    return static_cast<int>(min(params.long_rows - first_row(params), int64_t{rows}));
  }
};

// --- Loading and splitting -----------------------------------------------------------------------

// Operands are split to fragments of mma.sync: with g = lane / 4 and q = lane % 4, of each 16 along
// K a lane takes the four adjacent ones from 4 q on, of rows g and g + 8 of the long operand and of
// row g of the short one. mma.sync has two and two instead: a tensor-core sum of 16 products does
// not depend on their order, and both operands have the same one.

template <class Range, int kCount>
__device__ Range range_of(const float (&x)[kCount]) {
  float largest = 0, least = float_of(0x7f800000);
  uint32_t bits = 0;
  UNROLL
  for (const float each : x) {
    largest = ptx::max_nan(largest, fabsf(each)), least = fminf(least, fabsf(each));
    bits |= bits_of(each);
  }
  Range range{bits_of(largest) | (bits & Range::kBits), bits_of(least) - 1};
  if (__any_sync(~0u, least == 0)) {  // zeros are no small numbers
    range = {};
    range.add_all(x);
  }
  return range;
}

// A complex operand has elements of type float2, and its strides count them. Along K each of them
// is two numbers, its parts.
template <class Element>
inline constexpr bool kIsComplex = std::is_same_v<Element, float2>;
template <class Element>
inline constexpr int kParts = kIsComplex<Element> ? 2 : 1;

// The first element of a chunk in a matrix, which begins `offset` numbers after the first one.
template <class Element>
__device__ const Element* first_of_chunk(const Matrix& matrix, int64_t offset, unsigned chunk) {
  constexpr int kOfChunk = static_cast<int>(kChunk) / kParts<Element>;
  return static_cast<const Element*>(matrix.data) + offset / kParts<Element> +
         int64_t{chunk} * kOfChunk * matrix.col_stride;
}

// Loads the numbers of an element that no kernel writes meanwhile.
template <class Element>
__device__ void load_element(const Element* from, float* x) {
  if constexpr (kIsComplex<Element>) {
    const float2 z = __ldg(from);
    x[0] = z.x, x[1] = z.y;
  } else if constexpr (sizeof(Element) == 2) {
    x[0] = widen(Element{__ldg(reinterpret_cast<const uint16_t*>(from))});
  } else {
    x[0] = __ldg(from);
  }
}

// --- Rows with elements adjacent along K, or not many of them: a warp has whole rows -------------

// A lane has two adjacent numbers of every 64 of a row.
template <int kPairs>
struct Row {
  float x[kPairs * 2];

  template <class Element>
  __device__ void load(const Element* from, int64_t k_stride, int length) {
    constexpr int kEach = kParts<Element>;
    const int first_k = ptx::lane_id() * 2;
    from += first_k / kEach * k_stride;
    UNROLL
    for (int i = 0; i < kPairs; ++i, from += 64 / kEach * k_stride) {
      asm("" : "+l"(from));  // the compiler would keep all offsets in registers
      x[i * 2] = x[i * 2 + 1] = 0;
      UNROLL
      for (int j = 0; j < 2; j += kEach) {
        if (i * 64 + j < length - first_k) load_element(from + j * k_stride, &x[i * 2 + j]);
      }
    }
  }
  // load() of adjacent elements of a full row.
  template <class Element>
  __device__ void load_full(const Element* from) {
    constexpr int kEach = kParts<Element>;
    from += ptx::lane_id() * (2 / kEach);
    asm("" : "+l"(from));
    UNROLL
    for (int i = 0; i < kPairs * 2; i += kEach) {
      load_element(from + (i / 2 * 64 + i % 2) / kEach, &x[i]);
    }
  }
  using Range = BasicRange</*kHasBits=*/false>;  // there is no register for bits

  __device__ Range range() const {
    auto range = range_of<Range>(x);
    UNROLL
    for (int lanes = 1; lanes < 32; lanes *= 2) range.add_lane(lanes);
    return range;
  }
  __device__ float inverse_scale(const Range& range, float scale) const {
    uint32_t small_numbers = 0;
    if (range.is_wide(scale)) {
      small_numbers = __reduce_add_sync(~0u, count_small_numbers(x, scale));
    }
    uint32_t bits = 0;
    if (range.is_coarse(scale, bits)) {
      UNROLL
      for (const float each : x) bits |= bits_of(each);
      bits = __reduce_or_sync(~0u, bits);
    }
    return fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale, bits));
  }
  // Splits the row and stores hi and lo parts: of 16 along K `step_bytes` apart, of four
  // along K 16 bytes apart, and the second two of these `odd_bytes` after the first two.
  template <class Store>
  __device__ void split(float scale, uint8_t* to, int step_bytes, int odd_bytes, int to_lo,
                        const Store& store) const {
    const int lane = ptx::lane_id();
    to += lane / 8 * step_bytes + lane % 8 / 2 * 16 + lane % 2 * odd_bytes;
    UNROLL
    for (int i = 0; i < kPairs; ++i, to += 4 * step_bytes) {
      uint32_t hi, lo;
      ptx::split_x2(x[i * 2] * scale, x[i * 2 + 1] * scale, hi, lo);
      store(to, hi), store(to + to_lo, lo);
    }
  }
};

// --- Rows of the long operand with any strides: a warp has a slice of all ------------------------

// A lane has the elements of its fragments.
struct Slice {
  float x[2][kSteps * 4];  // of row g, and of row g + 8

  template <class Element>
  __device__ void load(int down, const Element* from, int64_t k_stride, int length) {
    constexpr int kEach = kParts<Element>;
    const int first_k = static_cast<int>(threadIdx.x) % 4 * 4;
    from += first_k / kEach * k_stride;
    UNROLL
    for (int i = 0; i < kSteps * 4; i += kEach) {
      const int k = i / 4 * 16 + i % 4;
      x[down][i] = x[down][i + kEach - 1] = 0;
      if (k < length - first_k) load_element(from, &x[down][i]);
      from += i % 4 + kEach == 4 ? (12 / kEach + 1) * k_stride : k_stride;
      asm("" : "+l"(from));  // the compiler would keep the offsets of all elements in registers
    }
  }
  // Stores the ranges of the slice.
  __device__ void find_ranges(Range* ranges) const {
    const int lane = ptx::lane_id();
    UNROLL
    for (int down = 0; down < 2; ++down) {
      auto range = range_of<Range>(x[down]);
      range.add_lane(1), range.add_lane(2);
      if (lane % 4 == 0) ranges[lane / 4 + down * 8] = range;
    }
  }
  // Stores how many small numbers of rows g and g + 8 the slice has.
  __device__ void count_small(float scale, float scale_8, uint8_t* counts) const {
    const int lane = ptx::lane_id();
    UNROLL
    for (int down = 0; down < 2; ++down) {
      uint32_t count = count_small_numbers(x[down], down == 0 ? scale : scale_8);
      count += __shfl_xor_sync(~0u, count, 1);
      count += __shfl_xor_sync(~0u, count, 2);
      if (lane % 4 == 0) counts[lane / 4 + down * 8] = static_cast<uint8_t>(count);
    }
  }
  __device__ void split(float scale, float scale_8, uint8_t* to, int step_bytes) const {
    to += ptx::lane_id() * 16;
    UNROLL
    for (int s = 0; s < kSteps; ++s, to += step_bytes) {
      UNROLL
      for (int i = 0; i < 4; i += 2) {  // two of four along K
        uint2 hi, lo;
        const float *pair = &x[0][s * 4 + i], *pair_8 = &x[1][s * 4 + i];
        ptx::split_x2(pair[0] * scale, pair[1] * scale, hi.x, lo.x);
        ptx::split_x2(pair_8[0] * scale_8, pair_8[1] * scale_8, hi.y, lo.y);
        *reinterpret_cast<uint2*>(to + i * 4) = hi;
        *reinterpret_cast<uint2*>(to + 512 + i * 4) = lo;
      }
    }
  }
};

}  // namespace tiled::cuda::fp16x3_thin
