#pragma once
// fp16x3_skinny: its tile, its shared memory, and its loads.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda::fp16x3_skinny {

// --- The tile and its shared memory --------------------------------------------------------------

// Each warpgroup of a block has work tiles and stages of its own.
struct Tile {
  static constexpr int kMaxRows = 32;  // of a panel
  static constexpr int kCols = 32;     // of a work tile
  static constexpr int kWarpgroups = 4, kWarpgroup = 128, kThreads = kWarpgroups * kWarpgroup;
};

// A stage of the long operand in shared memory, K-major or MN-major as in global memory. Vectors of
// 16 bytes are permuted so that no two lanes of load_fragment() share a bank. Element: float, Half
// or BFloat16, or else float2, a number of a complex operand, which stands for two columns and two
// of K (core/complex.h).
template <bool kKMajor_, class Element_>
struct LongStage {
  using Element = Element_;
  static constexpr bool kKMajor = kKMajor_, kComplex = std::is_same_v<Element, float2>;
  static constexpr bool kNarrow = sizeof(Element) == 2;
  static constexpr int kParts = kComplex ? 2 : 1, kVector = 16 / int{sizeof(Element)};
  static constexpr int kCols = Tile::kCols / kParts, kK = kStageK / kParts;  // in elements
  static constexpr int kBytes = kCols * kK * int{sizeof(Element)};

  // The offset of an element, in bytes.
  static __device__ constexpr int offset(int col, int k) {
    if (kComplex) return (kKMajor ? col * kK + k : k * kCols + (col ^ k / 2 % 4 * 4)) * 8;
    if (kNarrow) {
      return (kKMajor ? col * kStageK + (k / 8 ^ col % 4 * 2) * 8 + k % 8
                      : k * kCols + (col / 8 ^ k / 4 % 4) * 8 + col % 8) *
             2;
    }
    return kKMajor ? (col * kStageK + (k / 4 ^ col % 2 * 4) * 4 + k % 4) * 4
                   : (k * kCols + (col / 4 ^ k / 4 % 4 * 2) * 4 + col % 4) * 4;
  }
};

// 16 rows by 16 of K of the short operand. It holds the elements, row by row, until it is split in
// place; then the hi parts, 16 bytes a lane as mma.sync takes them, and after them the lo parts.
struct ShortFragment {
  uint8_t bytes[1024];

  // The offset of an element of a panel, in bytes from the fragment of rows 0 to 15. Vectors of
  // four float32 are permuted so that copies along rows have no bank conflicts.
  template <class Element>
  static __device__ constexpr int offset(int row, int k) {
    const int vector = sizeof(Element) == 4 ? k / 4 ^ row / 2 % 4 : k / 4;
    return row / 16 * 1024 + (row % 16 * 16 + vector * 4 + k % 4) * int{sizeof(Element)};
  }
};

// A panel has kRowTiles times 16 rows.
template <int kRowTiles>
struct Smem {
  static constexpr int kStages = kRowTiles == 1 ? 4 : 3;  // of float32 elements
  alignas(1024) ShortFragment short_operand[kChunk / 16][kRowTiles];
  uint8_t long_operand[Tile::kWarpgroups][kStages * LongStage<true, float>::kBytes];
  // Range of the panel's rows; `bits` has the last 16 bits of `largest`.
  uint32_t largest[Tile::kMaxRows], smallest[Tile::kMaxRows], bits[Tile::kMaxRows];
  float inverse_scale[Tile::kMaxRows];
};
static_assert(sizeof(Smem<1>) <= kMaxSharedMemory && sizeof(Smem<2>) <= kMaxSharedMemory);

// --- Loading -------------------------------------------------------------------------------------

// Loads a thread's part of the work tiles of its warpgroup, stage by stage, with zeros beyond the
// operand's end. The caller commits each stage.
template <bool kKMajor, class Element>
class LongLoader {
  using Stage = LongStage<kKMajor, Element>;
  static constexpr int kCols = Stage::kCols, kK = Stage::kK, kThreads = Tile::kWarpgroup;

 public:
  __device__ LongLoader(const OnTheFlyParams& params, const uint8_t* stages)
      : stages_(ptx::shared_address(stages)) {
    const int width = params.long_vectorized ? Stage::kVector : 1;  // elements of a copy
    constexpr int kInner = kKMajor ? kK : kCols;
    const int thread = threadIdx.x % kThreads;
    const int inner = thread * width % kInner, outer = thread * width / kInner;
    col_ = kKMajor ? outer : inner, k_ = kKMajor ? inner : outer;
    stages_ += Stage::offset(col_, k_);
    // With several panels, the long operand is read once more for the next one.
    policy_ = params.panels == 1 ? ptx::policy_evict_first() : ptx::policy_evict_normal();
    step_ = (kKMajor ? params.long_operand.row_stride : params.long_operand.col_stride) *
            (kThreads * width / kInner);
  }

  // Begins with a work tile; load() goes on to every kWarpgroups-th one after it, up to `end`.
  __device__ void begin(const OnTheFlyParams& params, unsigned tile, unsigned end) {
    tile_ = tile, left_ = 0;
    if (tile >= end) return;
    const PanelChunk panel_chunk(params, tile / params.col_tiles);
    const int64_t first_col = (params.first_col_tile + tile % params.col_tiles) * Tile::kCols;
    const Matrix& matrix = params.long_operand;
    using Stored = std::conditional_t<Stage::kComplex, float, Element>;  // which strides count
    const Stored* first =
        static_cast<const Stored*>(matrix.data) +
        batch_offset(params.p.batch, matrix, params.first_matrix + panel_chunk.matrix) +
        first_col * matrix.row_stride + int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride;
    from_ =
        reinterpret_cast<const Element*>(first) + col_ * matrix.row_stride + k_ * matrix.col_stride;
    cols_ =
        static_cast<int>(min(params.long_count - first_col, int64_t{Tile::kCols})) / Stage::kParts;
    left_ = panel_chunk.length / Stage::kParts;
  }

  // Loads the next stage, if there is one left.
  __device__ void load(const OnTheFlyParams& params, unsigned end, int stage) {
    if (left_ <= 0) return;
    const uint32_t to = stages_ + stage * Stage::kBytes;
    if (!params.long_vectorized) {
      if constexpr (!Stage::kNarrow) copy<1, false>(to);
    } else if (cols_ == kCols && left_ >= kK) {
      copy<Stage::kVector, true>(to);
    } else {
      copy<Stage::kVector, false>(to);
    }
    from_ += kK * params.long_operand.col_stride;
    left_ -= kK;
    if (left_ <= 0) begin(params, tile_ + Tile::kWarpgroups, end);
  }

 private:
  // Copies the thread's part of a stage, by kWidth elements at a time. `to` is its first element.
  // kFull: the stage has no zeros, and kWidth elements are 16 bytes.
  template <int kWidth, bool kFull>
  __device__ void copy(uint32_t to) const {
    constexpr int kWidthBytes = kWidth * int{sizeof(Element)};
    constexpr int kCopies = Stage::kBytes / kWidthBytes / kThreads;
    constexpr int kApart = (kKMajor ? kCols : kK) / kCopies;
    const int inner_left = kKMajor ? left_ - k_ : cols_ - col_;
    const int outer_left = kKMajor ? cols_ - col_ : left_ - k_;
    const int bytes = max(min(inner_left, kWidth), 0) * int{sizeof(Element)};
    const Element* from = from_;
    UNROLL
    for (int i = 0; i < kCopies; ++i, from += step_) {
      // The bits that a copy's distance from the first one shares with `to` are permuted.
      constexpr int kPermuted = 512;
      const int apart = Stage::offset(kKMajor ? i * kApart : 0, kKMajor ? 0 : i * kApart);
      const uint32_t at = (to ^ apart % kPermuted) + apart / kPermuted * kPermuted;
      const int bytes_of_copy = i * kApart < outer_left ? bytes : 0;
      if constexpr (kFull) {
        ptx::cp_async_16(at, from, policy_);
      } else if constexpr (kWidthBytes < 16) {
        ptx::cp_async_zfill<kWidthBytes>(at, from, bytes_of_copy);
      } else if constexpr (Stage::kNarrow) {  // the operand ends with a vector
        ptx::cp_async_16_zfill(at, from, bytes_of_copy);
      } else {
        ptx::cp_async_x4_zfill(at, reinterpret_cast<const float*>(from), bytes_of_copy);
      }
    }
  }

  uint32_t stages_;  // the thread's first element of the first stage
  int col_, k_;      // of the thread's first element of a stage
  int64_t step_;     // in global memory, from there to the thread's next element
  uint64_t policy_;
  const Element* from_ = nullptr;
  int cols_ = 0, left_ = 0;  // of the work tile; along K; in elements
  unsigned tile_ = 0;
};

// Loads a panel chunk of the short operand, which is short_vectorized if its elements are 16-bit
// ones. All threads of the block call it; none may still read the one before.
template <class Element, int kRowTiles>
__device__ void load_short(const OnTheFlyParams& params, Smem<kRowTiles>& smem,
                           const PanelChunk& panel_chunk) {
  if (threadIdx.x < Tile::kMaxRows) {
    smem.largest[threadIdx.x] = 0, smem.smallest[threadIdx.x] = ~0u, smem.bits[threadIdx.x] = 0;
    smem.inverse_scale[threadIdx.x] = 0;
  }
  const Matrix& matrix = params.short_operand;
  const Element* data =
      static_cast<const Element*>(matrix.data) +
      batch_offset(params.p.batch, matrix, params.first_matrix + panel_chunk.matrix) +
      panel_chunk.first_row * matrix.row_stride +
      int64_t{panel_chunk.chunk} * kChunk * matrix.col_stride;
  constexpr int kRows = kRowTiles * 16, kSize = sizeof(Element);
  const int thread = threadIdx.x;
  // Copies kWidth elements of each kStep-th row, from one on.
  auto copy_rows = [&]<int kWidth, int kStep>(int row, int k) {
    constexpr int kUnroll = kRows / kStep < 8 ? kRows / kStep : 8;
    uint32_t to = ptx::shared_address(smem.short_operand[k / 16][0].bytes) +
                  ShortFragment::offset<Element>(row, k % 16);
    const Element* from = data + row * matrix.row_stride + k * matrix.col_stride;
    const int bytes = k < panel_chunk.length ? kWidth * kSize : 0;
    NO_UNROLL
    for (; row < panel_chunk.rows; row += kUnroll * kStep) {
      UNROLL
      for (int i = 0; i < kUnroll; ++i, from += kStep * matrix.row_stride) {
        // The bits of the permutation are those below a row's.
        const int apart = ShortFragment::offset<Element>(i * kStep, 0);
        ptx::cp_async_zfill<kWidth * kSize>((to ^ apart % 64) + apart / 64 * 64, from,
                                            row + i * kStep < panel_chunk.rows ? bytes : 0);
      }
      to += ShortFragment::offset<Element>(kUnroll * kStep, 0);
    }
  };
  if (params.short_vectorized) {
    constexpr int kWidth = 16 / kSize, kThreadsOfRow = kChunk / kWidth;
    copy_rows.template operator()<kWidth, Tile::kThreads / kThreadsOfRow>(
        thread / kThreadsOfRow, thread % kThreadsOfRow * kWidth);
  } else if constexpr (kSize == 4) {
    if (matrix.col_stride < matrix.row_stride) {
      NO_UNROLL
      for (int k = thread; k < kChunk; k += Tile::kThreads) {
        copy_rows.template operator()<1, 1>(0, k);
      }
    } else {  // four of K at a time, along eight rows
      NO_UNROLL
      for (int k = thread / 8; k < kChunk; k += Tile::kThreads / 8) {
        copy_rows.template operator()<1, 8>(thread % 8, k);
      }
    }
  }
}

}  // namespace tiled::cuda::fp16x3_skinny
