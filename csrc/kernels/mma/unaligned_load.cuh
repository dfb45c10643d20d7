#pragma once
// mma_unaligned's producers. Threads copy A by cp.async in aligned pieces of 16 bytes, which may
// begin and end outside of the tile's elements; TMA loads B.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/unaligned_layout.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::mma_unaligned {

// Copies a work tile's part of A, by a producer warpgroup. `rows` of the tile's rows are in the
// matrix, and its range of K has `k` elements.
template <class Tile>
class UnalignedLoader {
  static constexpr bool kMnMajor = Tile::kAMnMajor;
  using Stage = typename Tile::MnMajorStage;

 public:
  __device__ UnalignedLoader(const StoredRows<kMnMajor>& from, const BankLayout<Tile>& layout,
                             int rows, int k)
      : end_(from.end), pitch_(from.pitch), layout_(layout), rows_(rows), k_(k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    copies_any_ = lane < kRowsByWarp * kCopies;
    first_ = warp * kRowsByWarp + lane / kCopies, byte_ = lane % kCopies * kCopyBytes;
    from_ = from.data + first_ * pitch_;
  }
  // Stages of a work tile. Where A is K-major there is one more, in which the last step ends.
  __device__ static int count_stages(int k) { return ceil_div(k, 64) + (kMnMajor ? 0 : 1); }
  // Copies the work tile's stage `i`. Elements beyond the end of K become zeros. Rows beyond the
  // matrix are undefined, since their products are never stored.
  __device__ void copy(uint8_t (*stages)[Tile::kABytes], int stage, int i) const {
    const int left = k_ - i * 64;
    // Copies inside the matrix need no test. A whole K-major stage ends within its rows. Copies of
    // an MN-major stage read up to 32 bytes beyond its last stored row, so others must follow it.
    if (kMnMajor ? (left - 64) * pitch_ >= 2 * kCopyBytes : left >= 64) {
      copy_each<true>(stages, stage, i, left);
    } else {
      copy_each<false>(stages, stage, i, left);
    }
  }

 private:
  static constexpr int kCopies = kMnMajor ? Stage::kCopies : kCacheLine / kCopyBytes;  // a row
  // Stored rows that a warp and a warpgroup copy at once.
  static constexpr int kRowsByWarp = 32 / kCopies, kRowsAtOnce = kWarpgroup / 32 * kRowsByWarp;

  // kWhole: every copy reads memory of the matrix alone.
  template <bool kWhole>
  __device__ void copy_each(uint8_t (*stages)[Tile::kABytes], int stage, int i, int left) const {
    constexpr int kUnrolled = kWhole ? 32 : 2;
    const int64_t next = kRowsAtOnce * pitch_;
    if constexpr (kMnMajor) {
      const uint32_t to = ptx::shared_address(stages[stage]) + first_ * Stage::kPitch;
      UNROLL
      for (int segment = 0; segment < Stage::kSegments; ++segment) {
        const int bytes = (rows_ - segment * 64) * 2;  // in the matrix
        if (!copies_any_ || byte_ - kCopyBytes + 2 >= bytes) break;
        // The last copy of a segment is the first one of the next.
        if (segment + 1 < Stage::kSegments && byte_ == 128 && bytes > 128) continue;
        const int further = segment * 128 + byte_;
        const uint8_t* from = from_ + i * 64 * pitch_;
        _Pragma("unroll kUnrolled") for (int row = 0; row < 64; row += kRowsAtOnce) {
          if (row + first_ < 64) {
            const uint8_t* aligned = align_down<kCopyBytes>(from);
            const int at = row * Stage::kPitch + layout_.offset(aligned, row + first_) + further;
            copy_16<kWhole>(to + at, aligned + further, row + first_ < left,
                            bytes - byte_ + misalignment<kCopyBytes>(from));
          }
          from += next;
        }
      }
    } else {
      const int to_pitch = Tile::kRowBytes + layout_.padding;
      uint32_t to = ptx::shared_address(stages[0]) + first_ * to_pitch + stage * kCacheLine + byte_;
      const uint8_t* from = from_ + int64_t{i} * kCacheLine;
      _Pragma("unroll kUnrolled") for (int row = 0; row < Tile::kM; row += kRowsAtOnce) {
        if (row + first_ < rows_) {
          copy_16<kWhole>(to, align_down<kCacheLine>(from) + byte_, true,
                          left * 2 - byte_ + misalignment<kCacheLine>(from));
        }
        from += next, to += kRowsAtOnce * to_pitch;
      }
    }
  }
  // Copies 16 bytes, of which the first `inside` belong to the stored row, if there is such a row.
  // Where the matrix ends within them, elements are copied one by one, and the thread waits: a
  // cp.async of fewer bytes may read all 16.
  template <bool kWhole>
  __device__ void copy_16(uint32_t to, const uint8_t* from, bool has_row, int inside) const {
    if (kWhole) return ptx::cp_async_16(to, from);
    inside = has_row ? max(min(inside, kCopyBytes), 0) : 0;
    if (inside > 0 && from + kCopyBytes > end_) {
      ptx::copy_x8_16bit_zfill(to, from, inside / 2);
    } else {
      ptx::cp_async_16_zfill(to, from, inside);
    }
  }
  const uint8_t *from_, *end_;
  int64_t pitch_;
  BankLayout<Tile> layout_;
  int rows_, k_;
  int first_, byte_;  // the thread's first stored row, and where its 16 bytes are in each
  bool copies_any_;   // false for the last lanes of a warp whose rows take 27 lanes
};

// Fills stages. If there are two producer warpgroups, they alternate.
template <class Tile, class Epilogue>
__device__ void produce(const typename Epilogue::Params& params,
                        mma_tma::Smem<Tile, Epilogue>& smem) {
  const Problem& p = params.p;
  constexpr int kWarps = kWarpgroup / 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32), warpgroup = warp < kWarps ? 0 : 1;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) pipe.advance();
  };
  skip(warpgroup);
  // Where the previous kernel does not write A, only the thread that loads B waits for it.
  bool waited = !params.a_is_ready;
  if (waited) ptx::pdl_wait();
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t work_tiles = params.tiles * params.k_splits;
  int stage = warpgroup;  // of the work tile
  for (int64_t index = blockIdx.x / kCluster; index < work_tiles; index += gridDim.x / kCluster) {
    const mma_tma::WorkTile work_tile = mma_tma::locate_work_tile<Tile>(params, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(min(all - first, int64_t{1} << 16));
    };
    const auto k = static_cast<int>(work_tile.k_end - work_tile.k_begin);
    const UnalignedLoader<Tile> a(StoredRows<Tile::kAMnMajor>(p, work_tile.tile, work_tile.k_begin),
                                  BankLayout<Tile>(p), left(p.m, work_tile.tile.row), k);
    const mma_tma::OperandTile<Tile::kN, Tile::kBMnMajor, Tile::kCluster> b{
        params.b, work_tile.tile.col, left(p.n, work_tile.tile.col),
        Epilogue::batch_coords(p, p.b, work_tile.tile.batch), mma_tma::rank<Tile>()};
    const int count = UnalignedLoader<Tile>::count_stages(k);
    for (; stage < count; stage += Tile::kProducerWarpgroups, skip(Tile::kProducerWarpgroups)) {
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      __syncwarp();
      // The warps alternate in loading B, so that none has more to do than the others.
      if (warp % kWarps == pipe.stage / Tile::kProducerWarpgroups % kWarps && ptx::elect_one()) {
        // A step with a K-major A ends in its second stage, with which its B is loaded.
        const int step = Tile::kAMnMajor ? stage : stage - 1;
        if (step < 0) {
          ptx::mbarrier_arrive(full);
        } else {
          if (!waited) ptx::pdl_wait();
          waited = true;
          ptx::arrive_expect_tx(full, b.bytes(Tile::kK));
          const int64_t at = work_tile.k_begin + step * Tile::kK;
          b.load(smem.b[pipe.stage], static_cast<int>(at), p.k - at <= Tile::kK, full);
        }
      }
      a.copy(smem.a, pipe.stage, stage);
      ptx::cp_async_mbarrier_arrive_noinc(full);
    }
    stage -= count;
  }
  // The warpgroup whose turn is next waits for the arrivals of the cluster's other block.
  if (stage == 0) mma_tma::drain<1, Tile>(smem, pipe, 0);
}

}  // namespace tiled::cuda::mma_unaligned
