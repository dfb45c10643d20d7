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
    first_ = Stage::offset(col_, k_);
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
    const Element* from = from_;
    if (params.long_vectorized) {
      constexpr int kVectors = Stage::kBytes / 16 / kThreads;
      constexpr int kBytesApart = Stage::kBytes / kVectors;
      constexpr int kOuterApart = (kKMajor ? kCols : kK) / kVectors;
      // True if the permutation leaves a thread's vectors at equal distances.
      constexpr bool kEven =
          kBytesApart == Stage::offset(kKMajor ? kOuterApart : 0, kKMajor ? 0 : kOuterApart);
      auto to_vector = [&](int i) {
        return to + (kEven ? first_ + i * kBytesApart
                           : Stage::offset(col_ + (kKMajor ? i * kOuterApart : 0),
                                           k_ + (kKMajor ? 0 : i * kOuterApart)));
      };
      if (cols_ == kCols && left_ >= kK) {
        UNROLL
        for (int i = 0; i < kVectors; ++i, from += step_) {
          ptx::cp_async_16(to_vector(i), from, policy_);
        }
      } else {
        const int inner_left = kKMajor ? left_ - k_ : cols_ - col_;
        const int bytes = max(min(inner_left, Stage::kVector), 0) * int{sizeof(Element)};
        const int outer_left = kKMajor ? cols_ - col_ : left_ - k_;
        UNROLL
        for (int i = 0; i < kVectors; ++i, from += step_) {
          const int bytes_of_vector = i * kOuterApart < outer_left ? bytes : 0;
          if constexpr (Stage::kNarrow) {  // the operand ends with a vector
            ptx::cp_async_16_zfill(to_vector(i), from, bytes_of_vector);
          } else {
            ptx::cp_async_x4_zfill(to_vector(i), reinterpret_cast<const float*>(from),
                                   bytes_of_vector);
          }
        }
      }
    } else if constexpr (!Stage::kNarrow) {
      constexpr int kElementBytes = sizeof(Element);
      constexpr int kElements = Stage::kBytes / kElementBytes / kThreads;
      constexpr int kOuterApart = (kKMajor ? kCols : kK) / kElements;
      NO_UNROLL
      for (int i = 0; i < kElements; ++i, from += step_) {
        const int col = col_ + (kKMajor ? i * kOuterApart : 0);
        const int k = k_ + (kKMajor ? 0 : i * kOuterApart);
        ptx::cp_async_zfill<kElementBytes>(to + Stage::offset(col, k), from,
                                           col < cols_ && k < left_ ? kElementBytes : 0);
      }
    }
    from_ += kK * params.long_operand.col_stride;
    left_ -= kK;
    if (left_ <= 0) begin(params, tile_ + Tile::kWarpgroups, end);
  }

 private:
  uint32_t stages_;
  int col_, k_, first_;  // the thread's first element of a stage, and its offset
  int64_t step_;         // in global memory, from there to the thread's next element
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
  auto to = [&](int row, int k) {
    return smem.short_operand[k / 16][row / 16].bytes + (row % 16 * 16 + k % 16) * sizeof(Element);
  };
  auto from = [&](int row, int k) {
    return data + row * matrix.row_stride + k * matrix.col_stride;
  };
  constexpr int kRows = kRowTiles * 16;
  const bool k_major = params.short_vectorized || matrix.col_stride < matrix.row_stride;
  const int count = (k_major ? panel_chunk.rows : kRows) * kChunk;
  if (params.short_vectorized) {
    constexpr int kVector = 16 / int{sizeof(Element)};
    NO_UNROLL
    for (int i = threadIdx.x * kVector; i < count; i += Tile::kThreads * kVector) {
      const int row = i / kChunk, k = i % kChunk;
      ptx::cp_async_16_zfill(to(row, k), from(row, k), k < panel_chunk.length ? 16 : 0);
    }
  } else if constexpr (sizeof(Element) == 4) {
    NO_UNROLL
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
      const int row = k_major ? i / kChunk : i % kRows, k = k_major ? i % kChunk : i / kRows;
      if (row >= panel_chunk.rows) continue;
      ptx::cp_async_4_zfill(to(row, k), from(row, k), k < panel_chunk.length ? 4 : 0);
    }
  }
}

}  // namespace tiled::cuda::fp16x3_skinny
