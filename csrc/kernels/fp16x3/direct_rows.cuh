#pragma once
// fp16x3_direct: its tile, and how a block loads and splits operand rows.

#include <cstdint>

#include "core/complex.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/pack.cuh"

namespace tiled::cuda {
namespace fp16x3_direct {

// --- The tile and its shared memory --------------------------------------------------------------

// Operand rows are A's rows and B's columns. In shared memory an operand row is its hi parts, then
// its lo parts, along K; K is padded with zeros to a multiple of 16. A column of a complex B is
// loaded and split once, as a row of numbers' parts x, y, ..., and stored as two operand rows.

template <int kIndex, bool kComplex_, bool kGrouped_ = false>
struct Tile {
  static constexpr bool kComplex = kComplex_;  // B is stored as in_place_b() describes it
  static constexpr bool kGrouped = kGrouped_;  // A's rows come from a list of groups' tiles
  static constexpr h200::Fp16x3DirectTile kTile = h200::kFp16x3DirectTiles[kIndex];
  static constexpr int kM = kTile.m, kN = kTile.n, kOperandRows = kM + kN;
  static constexpr int kWarpM = kTile.warp_m, kWarpN = kTile.warp_n;
  static constexpr int kWarps = kTile.warps(), kThreads = kWarps * 32;
  static constexpr int kBlocksPerSm = kTile.blocks;  // by registers
};

struct OperandParams {
  const float* data;
  int64_t row_stride;  // in elements, as is k_stride
  int k_stride;
  SignsOfB signs;  // of a complex operand
};

template <class Tile>
struct Smem {
  float inverse_scale[Tile::kOperandRows];
  Range parts[2][Tile::kThreads];  // of what a thread loaded of a row, for A and for B
  uint8_t rows[];                  // (kOperandRows, fp16x3_direct_pitch(k)); then C's tile
};

HOST_DEVICE inline int padded_k(int k) { return (k + 15) / 16 * 16; }

// --- Loading and splitting -----------------------------------------------------------------------

// Loads and splits the rows of an operand with elements that are adjacent along K. A warp has whole
// rows, so that their elements are loaded once and stay in registers. kLanes lanes have a row; a
// lane has two adjacent elements of every 2 kLanes, for at least kLeast and at most kMost of these
// steps, and a rest. A column of a complex B is stored as two operand rows.
template <class Tile, bool kComplex, int kLanes, int kLeast, int kMost>
__device__ void split_k_major(const float* from, int64_t row_stride, int count, int k,
                              const SignsOfB& signs, float* inverse_scales, uint8_t* to) {
  constexpr int kStored = kComplex ? 2 : 1;     // operand rows for each one that is loaded
  constexpr int kRows = 32 / kLanes * kStored;  // of a group
  constexpr int kStep = kLanes * 2;             // its elements along K
  const int lane = static_cast<int>(threadIdx.x) % 32, first_k = lane % kLanes * 2;
  const int to_lo = padded_k(k) * 2;
  const int steps = k / kStep, tail = steps * kStep;  // steps that all lanes take, and the rest
  const int tail_k = tail + first_k;
  from += first_k;
  to += first_k * 2;
  NO_UNROLL
  for (int group = static_cast<int>(threadIdx.x) / 32 * kRows; group < count;
       group += Tile::kWarps * kRows) {
    struct Pair {
      float x, y;
    };
    const auto load = [](const float* at) {
      if constexpr (Tile::kComplex) {  // both operands have numbers of 8 aligned bytes
        const float2 pair = __ldg(reinterpret_cast<const float2*>(at));
        return Pair{pair.x, pair.y};
      } else {
        return Pair{__ldg(at), __ldg(at + 1)};
      }
    };
    Pair pairs[kMost], last{0, 0};
    // The last row is split repeatedly if the group has fewer rows.
    const int row = min(group + lane / kLanes * kStored, count - kStored);
    const float* at = from + row * row_stride;
    asm("" : "+l"(at));  // the compiler would compute it for each load
    UNROLL
    for (int s = 0; s < kMost; ++s) {
      pairs[s] = {0, 0};
      if (s < kLeast || s < steps) pairs[s] = load(at + s * kStep);
    }
    if constexpr (Tile::kComplex) {
      if (tail_k < k) last = load(at + tail);
    } else {
      if (tail_k < k) last.x = __ldg(at + tail);
      if (tail_k + 1 < k) last.y = __ldg(at + tail + 1);
    }
    float numbers[kMost * 2 + 2] = {last.x, last.y};
    UNROLL
    for (int s = 0; s < kMost; ++s) {
      numbers[s * 2 + 2] = pairs[s].x, numbers[s * 2 + 3] = pairs[s].y;
    }
    Range range;
    range.add_all(numbers);
    UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) range.add_lane(lanes);
    const float scale = fp16x3::scale(range.largest);
    uint32_t small_numbers = 0;
    if (__any_sync(~0u, range.is_wide(scale))) {
      const auto is_small = [&](float x) { return fp16x3::is_small(x, x * scale); };
      UNROLL
      for (const Pair& pair : pairs) small_numbers += is_small(pair.x) + is_small(pair.y);
      small_numbers += is_small(last.x) + is_small(last.y);
      UNROLL
      for (int lanes = 1; lanes < kLanes; lanes *= 2) {
        small_numbers += __shfl_xor_sync(~0u, small_numbers, lanes);
      }
    }
    if (lane % kLanes == 0) {
      const float inverse_scale =
          fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale));
      UNROLL
      for (int i = 0; i < kStored; ++i) inverse_scales[row + i] = inverse_scale;
    }
    uint8_t* row_to = to + row * fp16x3_direct_pitch(k);
    const PairStore<kComplex> store(signs, fp16x3_direct_pitch(k), /*swapped=*/false);
    const auto split = [&](const Pair& pair, int at_k) {
      uint32_t hi, lo;
      ptx::split_x2(pair.x * scale, pair.y * scale, hi, lo);
      store(row_to + at_k * 2, hi);
      store(row_to + to_lo + at_k * 2, lo);
    };
    UNROLL
    for (int s = 0; s < kMost; ++s) {
      if (s < kLeast || s < steps) split(pairs[s], s * kStep);
    }
    if (tail_k < padded_k(k)) split(last, tail);
  }
}

// Loads and splits the rows of an operand with any strides. Adjacent threads have adjacent rows,
// and eight adjacent elements of K at a time. The elements are loaded once for their range, and
// once more, from L1 or L2, to be split. A column of a complex B is stored as two operand rows.
template <class Tile, bool kComplex, int kRows>
struct StridedRows {
  static constexpr int kStored = kComplex ? 2 : 1;  // operand rows for each one that is loaded
  static constexpr int kLoaded = kRows / kStored;
  static constexpr int kSlices = Tile::kThreads / kLoaded;  // threads of a row
  static_assert(Tile::kThreads % kLoaded == 0);

  const float* from;  // the thread's row
  int k_stride, k, row, slice;

  __device__ StridedRows(const float* first, const OperandParams& operand, int count, int k_)
      : k_stride(operand.k_stride), k(k_) {
    row = static_cast<int>(threadIdx.x) % kLoaded * kStored;
    slice = static_cast<int>(threadIdx.x) / kLoaded;
    from = first + min(row, count - kStored) * operand.row_stride;
  }
  // Loads eight elements of the row, or those that there are and zeros.
  template <bool kAll>
  __device__ void load(float (&x)[8], int first_k) const {
    const float* at = from + int64_t{first_k} * k_stride;
    UNROLL
    for (int i = 0; i < 8; i += kStored) {
      const float* at_i = at + int64_t{i} * k_stride;
      const bool exists = kAll || first_k + i < k;
      if constexpr (kComplex) {
        const float2 z = exists ? __ldg(reinterpret_cast<const float2*>(at_i)) : float2{0, 0};
        x[i] = z.x, x[i + 1] = z.y;
      } else {
        x[i] = exists ? __ldg(at_i) : 0;
      }
    }
  }
  // Stores the range of what the thread has, and 0 for the row's inverse scale.
  __device__ void find_range(Range* parts, float* inverse_scales) const {
    Range range;
    int first_k = slice * 8;
    float x[2][8];
    NO_UNROLL
    for (; first_k + (kSlices + 1) * 8 <= k; first_k += kSlices * 16) {
      load<true>(x[0], first_k);
      load<true>(x[1], first_k + kSlices * 8);
      range.add_all(x[0]);
      range.add_all(x[1]);
    }
    NO_UNROLL
    for (; first_k + 8 <= k; first_k += kSlices * 8) {
      load<true>(x[0], first_k);
      range.add_all(x[0]);
    }
    if (first_k < k) {
      load<false>(x[0], first_k);
      range.add_all(x[0]);
    }
    parts[threadIdx.x] = range;
    if (slice != 0) return;
    UNROLL
    for (int i = 0; i < kStored; ++i) inverse_scales[row + i] = 0;
  }
  __device__ void split(const Range* parts, const SignsOfB& signs, float* inverse_scales,
                        uint8_t* to) const {
    Range range;
    UNROLL
    for (int i = 0; i < kSlices; ++i) range.add(parts[i * kLoaded + row / kStored]);
    const float scale = fp16x3::scale(range.largest);
    if (slice == 0) {
      UNROLL
      for (int i = 0; i < kStored; ++i) {
        store_inverse_scale(&inverse_scales[row + i], range.largest, range.is_coarse(scale));
      }
    }
    const bool wide = range.is_wide(scale);
    const int pitch = fp16x3_direct_pitch(k);
    to += row * pitch;
    // Four of eight adjacent complex columns are stored odd row first, which avoids bank conflicts.
    const PairStore<kComplex> store(signs, pitch, /*swapped=*/row / 8 % 2 != 0);
    const auto split_x8 = [&](const float(&x)[8], int first_k) {
      if (wide) {
        const uint32_t small_numbers = count_small_numbers(x, scale);
        UNROLL
        for (int i = 0; i < kStored; ++i) {
          add_small_numbers(&inverse_scales[row + i], small_numbers);
        }
      }
      uint4 hi, lo;
      ptx::split_x8(x, scale, hi, lo);
      store(to + first_k * 2, hi);
      store(to + padded_k(k) * 2 + first_k * 2, lo);
    };
    int first_k = slice * 8;
    float x[8];
    NO_UNROLL
    for (; first_k + 8 <= k; first_k += kSlices * 8) {
      load<true>(x, first_k);
      split_x8(x, first_k);
    }
    static_assert(kSlices > 1);  // of at most two vectors that are not full, a thread has one
    if (first_k < padded_k(k)) {
      load<false>(x, first_k);
      split_x8(x, first_k);
    }
  }
};

// An operand's rows of a tile: the first row's first element, how many there are, and whether they
// are to be loaded.
struct Rows {
  const float* from;
  int count;
  bool load;
};

// The block loads and splits rows of A and of B for its tile. All threads call it. At its end the
// parts and the inverse scales are there.
template <class Tile>
__device__ void load_and_split(const OperandParams (&operands)[2], const Rows& a, const Rows& b,
                               int k, Smem<Tile>& smem) {
  const int b_offset = Tile::kM * fp16x3_direct_pitch(k);
  // In a complex product A's rows are always adjacent along K.
  const bool a_strided = !Tile::kComplex && a.load && operands[0].k_stride != 1;
  const bool b_strided = b.load && operands[1].k_stride != 1;
  const StridedRows<Tile, false, Tile::kM> a_rows(a.from, operands[0], a.count, k);
  const StridedRows<Tile, Tile::kComplex, Tile::kN> b_rows(b.from, operands[1], b.count, k);
  float *a_scales = smem.inverse_scale, *b_scales = smem.inverse_scale + Tile::kM;
  if (a_strided) a_rows.find_range(smem.parts[0], a_scales);
  if (b_strided) b_rows.find_range(smem.parts[1], b_scales);
  const auto split_rows = [&]<bool kComplex>(bool is_b) {
    const auto split = [&]<int kLanes, int kLeast, int kMost>() {
      split_k_major<Tile, kComplex, kLanes, kLeast, kMost>(
          is_b ? b.from : a.from, is_b ? operands[1].row_stride : operands[0].row_stride,
          is_b ? b.count : a.count, k, operands[1].signs, is_b ? b_scales : a_scales,
          smem.rows + (is_b ? b_offset : 0));
    };
    static_assert(fp16x3::kMinK == 128 && h200::kFp16x3DirectMostK < 512);
    if (k < 192) {
      split.template operator()<8, 8, 11>();
    } else if (k < 256) {
      split.template operator()<8, 12, 15>();
    } else if (k < 384) {
      split.template operator()<16, 8, 11>();
    } else {
      split.template operator()<16, 12, 15>();
    }
  };
  if constexpr (Tile::kComplex) {
    if (a.load) split_rows.template operator()<false>(false);
    if (b.load && !b_strided) split_rows.template operator()<true>(true);
  } else {
    NO_UNROLL
    for (int is_b = 0; is_b < 2; ++is_b) {
      if (is_b ? !b.load || b_strided : !a.load || a_strided) continue;
      split_rows.template operator()<false>(is_b != 0);
    }
  }
  if (a_strided || b_strided) {
    __syncthreads();
    if (a_strided) a_rows.split(smem.parts[0], {}, a_scales, smem.rows);
    if (b_strided) {
      b_rows.split(smem.parts[1], operands[1].signs, b_scales, smem.rows + b_offset);
    }
  }
  __syncthreads();
}

}  // namespace fp16x3_direct
}  // namespace tiled::cuda
