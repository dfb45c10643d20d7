#pragma once
// The epilogue of mma_unaligned, and the definition of launch() of unaligned_launch.h for the
// translation units in unaligned_instances/.

#include <cstdint>
#include <iterator>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store_strided.cuh"
#include "kernels/mma/tma_kernel.cuh"
#include "kernels/mma/tma_launch.cuh"
#include "kernels/mma/unaligned_kernel.cuh"
#include "kernels/mma/unaligned_launch.h"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda::mma_unaligned {

// --- Epilogue ------------------------------------------------------------------------------------

// 32 columns of a tile at a time go through shared memory, so that adjacent threads store adjacent
// elements of C.

template <class Tile>
struct Epilogue {
  // Fragments of A take some of the registers that mma_tma has for totals of earlier chunks. The
  // constants are an enum, since nvcc warns of static ones that the split-K reduction does not use.
  enum {
    kAccRegisters = Tile::kN == 256                    ? 128
                    : Tile::kM * Tile::kN == 128 * 128 ? 80
                                                       : 112,
    kSharedTotal = 0,
    kReducedCols = 32
  };
  static constexpr int kColsAtOnce = 32;

  using Params = EpilogueParams;
  struct Smem {
    float staging[Tile::kM][kColsAtOnce + 1];
  };

  const Params& params;
  Smem& smem;

  __device__ static TmaCoords batch_coords(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const TileCoord&) const {}
  __device__ void end_chunk(const TileCoord&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const TileCoord& tile, float (&acc)[Tile::kElements]) const {
    const Problem& p = params.p;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const auto store_as = [&]<class Out>(Out* c) {
      params.swap_ab ? store<true>(c + c_offset, tile, acc) : store<false>(c + c_offset, tile, acc);
    };
    if (p.out_dtype == DType::kFloat32) {
      store_as(static_cast<float*>(p.c.data));
    } else {
      store_as(static_cast<typename Tile::T*>(p.c.data));
    }
  }
  __device__ void finish() const {}

 private:
  // Adjacent threads have adjacent columns or, if A and B are swapped, adjacent rows; the bias then
  // belongs to rows. The loop is not unrolled: it stores the first accumulators and moves the
  // others down.
  template <bool kSwapAb, class Out>
  __device__ void store(Out* c, const TileCoord& tile, float (&acc)[Tile::kElements]) const {
    using T = typename Tile::T;
    constexpr int kEach = kColsAtOnce / 2, kRows = Tile::kRows;  // accumulators of a thread
    constexpr int kThreads = Tile::kConsumerThreads;
    // The elements that a thread stores of those 32 columns, and the distance between them.
    constexpr int kStored = Tile::kM * kColsAtOnce / kThreads,
                  kApart = kThreads / (kSwapAb ? Tile::kM : kColsAtOnce);
    const Problem& p = params.p;
    const BankLayout<Tile> layout(p);
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, lane = thread % 32;
    const int first =
        thread / kWarpgroup * kRows + fragment_row<kRows>(thread % kWarpgroup / 32, lane);
    const int64_t row = tile.row, end = min(int64_t{tile.col} + Tile::kN, p.n);
    const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    const int down = kSwapAb ? thread % Tile::kM : thread / kColsAtOnce;
    const int right = kSwapAb ? thread / Tile::kM : lane;
    const float* from = &smem.staging[down][right];
    constexpr int kNext = kSwapAb ? kApart : kApart * (kColsAtOnce + 1);
    const int64_t stride = kApart * (kSwapAb ? p.c.col_stride : p.c.row_stride);
    const bool has_bias = p.epilogue.bias != nullptr;
    const bool relu = p.epilogue.activation == Activation::kRelu;
    NO_UNROLL
    for (int64_t col = tile.col; col < end; col += kColsAtOnce) {
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        const int below = i / 2 % 2 * 8;
        if (below >= kRows / 4) continue;
        smem.staging[layout.row(first + below)][i / 4 * 8 + lane % 4 * 2 + i % 2] = acc[i];
      }
      ptx::named_barrier_sync(1, kThreads);
      const auto cols = static_cast<int>(min(end - col, int64_t{kColsAtOnce}));
      const bool inside = down < rows && right < cols;
      const int left = !inside ? 0 : kSwapAb ? cols - right : rows - down;
      Out* to = c + (row + down) * p.c.row_stride + (col + right) * p.c.col_stride;
      float bias = 0;
      if (inside && has_bias) {
        const int64_t at = kSwapAb ? row + down : col + right;
        bias = widen(static_cast<const T*>(p.epilogue.bias)[at * p.epilogue.bias_stride]);
      }
      if (params.bias_relu_at_most) {
        UNROLL
        for (int i = 0; i < kStored; ++i, to += stride) {
          float x = from[i * kNext];
          if (has_bias) x += bias;
          if (relu) x = activate(Activation::kRelu, x);
          if (i * kApart < left) *to = narrow<Out>(x);
        }
      } else {
        store_strided<2>(p.epilogue, from, kNext, bias, to, stride, ceil_div(left, kApart));
      }
      ptx::named_barrier_sync(1, kThreads);
      UNROLL
      for (int i = 0; i + kEach < Tile::kElements; ++i) acc[i] = acc[i + kEach];
    }
  }
};

// --- Launch --------------------------------------------------------------------------------------

template <class Tile>
bool launch_tile(EpilogueParams params, int64_t k_splits, const Context& context) {
  static_assert(kFitsRegisters<Tile>, "consumers would wait forever for registers");
  const Problem& p = params.p;
  params.b = mma_tma::b_tensor_maps<Tile>({p.batch, transposed(p.b)}, p, Tile::kK);
  return mma_tma::launch_persistent<Tile, Epilogue>(mma_unaligned_kernel<Tile, Epilogue<Tile>>,
                                                    params, k_splits, context);
}

template <class T, bool kAMnMajor, bool kBMnMajor>
bool launch(const EpilogueParams& params, const Plan& plan, const Context& context) {
  return with_tile<std::size(h200::kMmaUnalignedTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr h200::MmaUnalignedTile kTile = h200::kMmaUnalignedTiles[kIndex];
    return launch_tile<Tile<T, kIndex, kTile.stages, kTile.stages_mn_major, kAMnMajor, kBMnMajor,
                            kTile.warpgroup_rows>>(params, plan.k_splits, context);
  });
}

}  // namespace tiled::cuda::mma_unaligned
