#pragma once
// simt_skinny's main loop: a warp that produces stages, and warps that multiply them.

#include <type_traits>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/simt/complex_number.cuh"
#include "kernels/simt/lane_layout.cuh"
#include "kernels/simt/skinny_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::simt_skinny {

// --- producer ------------------------------------------------------------------------------------

// A warp loads the short operand's part of a stage by cp.async: `rows` rows from `from` on, k_left
// elements along K, and zeros beyond.
template <class Tile>
__device__ void load_short(const Params& params, float (&to)[Tile::kRows][Tile::kPitch],
                           const float* from, int rows, int k_left) {
  const int lane = threadIdx.x % 32;
  if (params.short_vectorized) {
    constexpr int kVectors = Tile::kK / 4, kRowsAtOnce = 32 / kVectors;
    const int k = lane % kVectors * 4, inside = max(min(k_left - k, 4), 0) * 4;
    UNROLL
    for (int i = 0; i < Tile::kRows; i += kRowsAtOnce) {
      const int row = i + lane / kVectors;
      if (row >= Tile::kRows) break;
      const bool exists = row < rows && inside > 0;
      const float* at = from + row * params.short_operand.row_stride + k;
      ptx::cp_async_16_zfill(&to[row][k], exists ? at : from, exists ? inside : 0);
    }
  } else {
    static_assert(Tile::kK == 32, "each lane copies one element of a row");
    UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      const bool exists = row < rows && lane < k_left;
      const float* at =
          from + row * params.short_operand.row_stride + lane * params.short_operand.col_stride;
      ptx::cp_async_4_zfill(&to[row][lane], exists ? at : from, exists ? 4 : 0);
    }
  }
}

// Fills stages, as the producer warp. Where there is one row tile, the long operand is read once,
// and L2 evicts it first.
template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  const bool is_read_once = params.row_tiles.by == 1;
  const uint64_t policy = ptx::policy_evict_first();
  ptx::PipelineState pipe{.stages = Tile::kStages};
  for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    const TmaCoords matrix(params.p.batch, params.long_operand, work.matrix);
    const auto first_k = static_cast<int>(work.chunk * kChunk);
    const float* from = static_cast<const float*>(params.short_operand.data) +
                        batch_offset(params.p.batch, params.short_operand, work.matrix) +
                        work.row * params.short_operand.row_stride +
                        first_k * params.short_operand.col_stride;
    const int rows = static_cast<int>(min(params.short_count - work.row, int64_t{Tile::kRows}));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int k = 0; k < work.length; k += Tile::kK, pipe.advance()) {
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity ^ 1);
      if (ptx::elect_one()) {
        const int inner = Tile::kKMajor ? first_k + k : work.col;
        const int outer = (Tile::kKMajor ? work.col : first_k + k) / Tile::kParts;
        ptx::arrive_expect_tx(full, sizeof smem.long_smem[0]);
        ptx::tma_load_policy_if(is_read_once, smem.long_smem[pipe.stage], &params.long_map,
                                {inner, outer, matrix.at[0], matrix.at[1], matrix.at[2]}, full,
                                policy);
      }
      load_short<Tile>(params, smem.short_smem[pipe.stage], from, rows, work.length - k);
      ptx::cp_async_mbarrier_arrive_noinc(full);
      from += Tile::kK * params.short_operand.col_stride;
    }
  }
}

// --- consumers -----------------------------------------------------------------------------------

// The rows and columns, in its work tile, of a thread's accumulators.
template <class Tile>
struct AccCoord {
  // Adjacent columns, which one vector load of an MN-major operand brings.
  static constexpr int kAdjacent = Tile::kKMajor           ? Tile::kParts
                                   : Tile::kThreadCols < 4 ? Tile::kThreadCols
                                                           : 4;
  int row, col;  // of acc[0][0]
  __device__ AccCoord() {
    const int lane = threadIdx.x % 32;
    const int first = threadIdx.x / 32 * (Tile::kLaneCols * Tile::kThreadCols);
    const LaneCoord<Tile::kLaneRows, Tile::kLaneCols> at(lane);
    row = at.row;
    col = first + at.col * kAdjacent;
  }
  __device__ int row_of(int i) const { return row + i * Tile::kLaneRows; }
  __device__ int col_of(int j) const {
    return col + j / kAdjacent * (kAdjacent * Tile::kLaneCols) + j % kAdjacent;
  }
};

// A thread's elements of both operands for four adjacent k; of a complex B, the parts of its
// numbers.
template <class Tile>
struct FragmentsK4 {
  static constexpr int kRows = Tile::kThreadRows, kCols = Tile::kThreadCols;
  static constexpr int kParts = Tile::kParts, kLongK = 4 / kParts;
  float long_frag[kLongK][kCols], short_frag[kRows][4];

  __device__ void load(const float* long_smem, const float (&short_smem)[Tile::kRows][Tile::kPitch],
                       const AccCoord<Tile>& at, const ComplexSigns& signs, int k) {
    if constexpr (Tile::kKMajor) {
      UNROLL
      for (int j = 0; j < kCols; j += kParts) {
        // TMA swizzles rows of 128 bytes: 16-byte unit u of row r is stored at u ^ r % 8.
        const int row = at.col_of(j) / kParts;
        const auto x4 =
            *reinterpret_cast<const float4*>(long_smem + row * Tile::kK + (k ^ row % 8 * 4));
        const float x[] = {x4.x, x4.y, x4.z, x4.w};
        UNROLL
        for (int i = 0; i < 4; ++i) long_frag[i / kParts][j + i % kParts] = x[i];
      }
    } else {
      using Vector =
          std::conditional_t<kCols == 1, float, std::conditional_t<kCols == 2, float2, float4>>;
      constexpr int kAdjacent = sizeof(Vector) / sizeof(float);
      UNROLL
      for (int kk = 0; kk < kLongK; ++kk) {
        const float* row = long_smem + (k / kParts + kk) * Tile::kCols;
        UNROLL
        for (int j = 0; j < kCols; j += kAdjacent) {
          *reinterpret_cast<Vector*>(&long_frag[kk][j]) =
              *reinterpret_cast<const Vector*>(row + at.col_of(j));
        }
      }
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      *reinterpret_cast<float4*>(short_frag[i]) =
          *reinterpret_cast<const float4*>(&short_smem[at.row_of(i)][k]);
    }
    if constexpr (Tile::kComplex) {
      UNROLL
      for (int kk = 0; kk < kLongK; ++kk) signs.apply_to_b(long_frag[kk]);
      UNROLL
      for (int i = 0; i < kRows * 2; ++i) signs.apply_to_odd_a(short_frag[i / 2][i % 2 * 2 + 1]);
    }
  }

  __device__ float long_number(int kk, int col) const {
    if constexpr (Tile::kComplex) return complex_number(long_frag[kk / 2], kk % 2 != 0, col);
    return long_frag[kk % kLongK][col];
  }

  // Adds the products of the first `count` of the four. Odd rows go from right to left, so that the
  // first FMA of a row reuses the operand of the one before.
  __device__ void multiply(int count, float (&acc)[kRows][kCols]) const {
    UNROLL
    for (int kk = 0; kk < 4; ++kk) {
      if (kk >= count) break;
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        UNROLL
        for (int j = 0; j < kCols; ++j) {
          const int col = i % 2 == 0 ? j : kCols - 1 - j;
          acc[i][col] = fused_multiply_add(long_number(kk, col), short_frag[i][kk], acc[i][col]);
        }
      }
    }
  }
};

// Stores a work tile's sums: to the workspace, or, where K is one chunk, to C through the epilogue.
template <class Tile>
__device__ void store_acc(const Params& params, const WorkTile<Tile>& work,
                          const AccCoord<Tile>& at,
                          const float (&acc)[Tile::kThreadRows][Tile::kThreadCols]) {
  const int64_t c_offset =
      params.partial_sums == nullptr ? batch_offset(params.p.batch, params.p.c, work.matrix) : 0;
  float* to = params.partial_sums + (work.matrix * params.chunks.by + work.chunk) *
                                        params.short_count * params.partial_pitch();
  UNROLL
  for (int i = 0; i < Tile::kThreadRows; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kThreadCols; ++j) {
      const int64_t row = work.row + at.row_of(i), col = work.col + at.col_of(j);
      if (row >= params.short_count || col >= params.long_count) continue;
      if (params.partial_sums != nullptr) {
        to[row * params.partial_pitch() + col] = acc[i][j];
      } else {
        store<float>(params.p, c_offset, params.long_is_a ? col : row, params.long_is_a ? row : col,
                     kAddIdentity<float> + acc[i][j]);
      }
    }
  }
}

template <class Tile>
__device__ void consume(const Params& params, Smem<Tile>& smem) {
  const AccCoord<Tile> at;
  const ComplexSigns signs(params.signs_of_b);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    float acc[Tile::kThreadRows][Tile::kThreadCols] = {};
    for (int k_left = work.length; k_left > 0; k_left -= Tile::kK, pipe.advance()) {
      const float* long_smem = smem.long_smem[pipe.stage];
      const auto& short_smem = smem.short_smem[pipe.stage];
      ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
      if (k_left >= Tile::kK) {
        FragmentsK4<Tile> fragments[2];  // one is loaded while the other is multiplied
        fragments[0].load(long_smem, short_smem, at, signs, 0);
        UNROLL
        for (int k = 0; k < Tile::kK; k += 4) {
          if (k + 4 < Tile::kK) {
            fragments[(k / 4 + 1) % 2].load(long_smem, short_smem, at, signs, k + 4);
          }
          fragments[k / 4 % 2].multiply(4, acc);
        }
      } else {
        NO_UNROLL
        for (int k = 0; k < k_left; k += 4) {
          FragmentsK4<Tile> fragments;
          fragments.load(long_smem, short_smem, at, signs, k);
          fragments.multiply(k_left - k, acc);
        }
      }
      ptx::consumer_release(&smem.empty[pipe.stage]);
    }
    store_acc<Tile>(params, work, at, acc);
  }
}

}  // namespace tiled::cuda::simt_skinny
