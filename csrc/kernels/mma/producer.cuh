#pragma once
// The producers of mma_tma: threads that issue TMA loads of A and B.

#include <cstdint>

#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/pipeline.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda::mma_tma {

// Warps of which one thread issues loads; they alternate by stages. One thread takes about as long
// to issue a stage's loads as consumers take to multiply a stage of a small tile, and two threads
// as long as the smallest tiles take.
template <class Tile>
inline constexpr int kProducers = Tile::kN < 64 ? 4 : 2;

// An operand's part of a tile: kRows rows of A or columns of B, of which `left` are in the matrix.
// Where kCluster is 2, both blocks need it, and each loads half of it into both. Boxes that are
// outside the matrix are not loaded. The stage then holds what was there before, which is
// multiplied into rows or columns of C that are never stored. MN-major boxes have kBox rows, and
// the last one kNarrowBox, if that is not 0.
template <int kRows, bool kMnMajor, int kCluster, int kNarrowBox = 0>
struct OperandTile {
  static constexpr int kBox = 64;
  const TensorMaps& maps;
  int first, left;
  TmaCoords matrix;
  int rank;

  // Bytes that arrive in a block's stage with `depth` of K, whichever block issues the loads.
  __device__ int bytes(int depth) const {
    if (!kMnMajor) return min(left, kRows) * 128;
    int rows = 0;
    UNROLL
    for (int i = 0; i < kRows; i += kBox) {
      if (column_in_tile<kRows, kNarrowBox>(i, first) < left) {
        rows += i < kRows - kNarrowBox ? kBox : kNarrowBox;
      }
    }
    return rows * 2 * depth;
  }
  // Loads a stage from `k` on; is_k_tail: the last one of K.
  __device__ void load(uint8_t* to, int k, bool is_k_tail, uint64_t* full) const {
    if constexpr (kMnMajor) {
      const CUtensorMap& box = is_k_tail ? maps.box_k_tail : maps.box;
      const CUtensorMap& narrow = is_k_tail ? maps.edge_box_k_tail : maps.edge_box;
      UNROLL
      for (int i = 0; i < kRows; i += kBox) {
        const int row = column_in_tile<kRows, kNarrowBox>(i, first);
        if (i / kBox % kCluster == rank && row < left) {
          load_box(to + i * 128, i < kRows - kNarrowBox ? box : narrow, first + row, k, full);
        }
      }
    } else {
      constexpr int kOwn = kRows / kCluster;
      const int own = rank * kOwn;
      if (own >= left) return;
      load_box(to + own * 128, left - own >= kOwn ? maps.box : maps.edge_box, k, first + own, full);
    }
  }

 private:
  // inner: the coordinate along the contiguous side.
  __device__ void load_box(uint8_t* to, const CUtensorMap& map, int inner, int outer,
                           uint64_t* full) const {
    const int coords[] = {inner, outer, matrix.at[0], matrix.at[1], matrix.at[2]};
    if constexpr (kCluster == 2) {
      ptx::tma_load_multicast(0b11, to, &map, coords, full);
    } else {
      ptx::tma_load(to, &map, coords, full);
    }
  }
};

// The loop of producer `warp`, by its elected thread.
template <class Tile, class Epilogue>
__device__ void produce(const typename Epilogue::Params& params, Smem<Tile, Epilogue>& smem,
                        int warp) {
  const Problem& p = params.p;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t begin = blockIdx.x / kCluster;
  for (int64_t index = begin; index < params.tiles * params.k_splits;
       index += gridDim.x / kCluster) {
    const WorkTile work_tile = locate_work_tile<Tile>(params, index);
    const TileCoord& tile = work_tile.tile;
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
    };
    const OperandTile<Tile::kM, Tile::kAMnMajor, 1> a{
        params.a, tile.row, left(p.m, tile.row), Epilogue::batch_coords(p, p.a, tile.batch), 0};
    const OperandTile<Tile::kN, Tile::kBMnMajor, Tile::kCluster, Tile::kNarrowBox> b{
        params.b, tile.col, left(p.n, tile.col), Epilogue::batch_coords(p, p.b, tile.batch),
        rank<Tile>()};
    const int bytes = a.bytes(Tile::kK) + b.bytes(Tile::kK);
    if (index == begin) ptx::pdl_wait();
    for (int64_t k = work_tile.k_begin; k < work_tile.k_end; k += Tile::kK, pipe.advance()) {
      if (pipe.stage % kProducers<Tile> != warp) continue;
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      const bool is_k_tail = kHasKTail<Tile> && p.k - k <= Tile::kK;
      const int depth = is_k_tail ? stage_depth(p.k - k) : Tile::kK;
      ptx::arrive_expect_tx(full, is_k_tail ? a.bytes(depth) + b.bytes(depth) : bytes);
      a.load(smem.a[pipe.stage], static_cast<int>(k), is_k_tail, full);
      b.load(smem.b[pipe.stage], static_cast<int>(k), is_k_tail, full);
    }
  }
  drain<kProducers<Tile>, Tile>(smem, pipe, warp);
}

}  // namespace tiled::cuda::mma_tma
