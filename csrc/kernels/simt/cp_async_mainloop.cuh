#pragma once
// simt_cp_async: the main loop, by which the recompute kernel of fp16x3 and tf32 sums regions, too.
//
//   producers   wait empty[stage]    cp.async A and B of a step -> full[stage]
//   consumers   wait full[stage]     load its first fragments while the ones before are multiplied
//               its last fragments are loaded -> empty[stage]

#include <algorithm>
#include <cstdint>

#include "core/order_chunked.h"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/launch.h"
#include "kernels/simt/register_tile.cuh"
#include "ptx/mbarrier.cuh"

namespace tiled::cuda::simt_cp_async {

template <class Tile>
struct Smem {
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  PaddedStage<Tile> stage[Tile::kStages];

  __device__ void init_barriers() {
    ptx::mbarrier_init_stages(Tile::kStages, full, Tile::kProducers, empty, Tile::kConsumers / 32);
  }
};

// Which operands are copied by 128-bit vectors along M or N.
struct Vectorized {
  bool a, b;
};

// Loads `length` of K from `first_k` on. `thread` is that among the producers. The pipe of a
// producer begins with parity 1.
template <class Tile>
__device__ void produce(const Problem& p, Vectorized vectorized, const TileIndex& tile,
                        int64_t first_k, int64_t length, int thread, Smem<Tile>& smem,
                        ptx::PipelineState& pipe) {
  using Stage = PaddedStage<Tile>;
  const auto* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                  tile.row * p.a.row_stride + first_k * p.a.col_stride;
  const auto* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                  tile.col * p.b.col_stride + first_k * p.b.row_stride;
  CpAsyncLoader<float, Tile::kM, Stage::kPitchA, Tile::kK, Tile::kProducers> load_a(
      a, p.a.row_stride, p.a.col_stride, vectorized.a, p.m - tile.row, thread);
  LoaderOfB<Tile, Tile::kProducers> load_b(p.b, b, vectorized.b, p.n - tile.col, thread);
  const bool whole = p.m - tile.row >= Tile::kM && p.n - tile.col >= Tile::kN;
  for (int64_t k_left = length; k_left > 0; k_left -= Tile::kK, pipe.advance()) {
    ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
    if (whole && k_left >= Tile::kK) {
      load_a.load_whole(smem.stage[pipe.stage].a);
      load_b.load_whole(smem.stage[pipe.stage]);
    } else {
      load_a.load(smem.stage[pipe.stage].a, k_left);
      load_b.load(smem.stage[pipe.stage], k_left);
    }
    ptx::cp_async_mbarrier_arrive_noinc(&smem.full[pipe.stage]);
  }
}

// Sums what the producers load, chunk by chunk: `end_chunk(acc)` gets the sums of each. `thread` is
// that among the consumers.
template <class Tile, class EndChunk>
__device__ void sum_chunks(int64_t length, int thread, Smem<Tile>& smem, ptx::PipelineState& pipe,
                           const EndChunk& end_chunk, const SignsOfB& signs_of_b = {}) {
  const QuadCoord<Tile> first(thread, 0);
  Fragments<Tile> fragments(signs_of_b);
  auto load = [&](int place, int kk) {
    const auto& stage = smem.stage[pipe.stage];
    fragments.load(place, stage.a_at(kk, first.row), stage.b_at(kk, first.col));
  };
  float acc[Tile::kThreadM][Tile::kThreadN];
  auto multiply = [&](int place) { fragments.multiply(place, acc); };
  int64_t stages_left = ceil_div(length, Tile::kK);
  auto next_stage = [&] {
    __syncwarp();  // all lanes have loaded the last fragments
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[pipe.stage]);
    pipe.advance();
    if (--stages_left > 0) {
      ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
      load(0, 0);
    }
  };

  ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
  load(0, 0);
  for (int64_t k_left = length; k_left > 0; k_left -= kChunk) {
    const int in_chunk = static_cast<int>(min(k_left, int64_t{kChunk}));
    UNROLL
    for (int i = 0; i < Tile::kThreadM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = 0;
    }
    NO_UNROLL
    for (int steps = in_chunk / Tile::kK; steps > 0; --steps) {
      UNROLL
      for (int kk = 0; kk < Tile::kK; ++kk) {
        if (kk + 1 < Tile::kK) {
          load(kk + 1, kk + 1);
        } else {
          next_stage();
        }
        multiply(kk);
      }
    }
    if (in_chunk % Tile::kK != 0) {
      NO_UNROLL
      for (int kk = 0; kk < in_chunk % Tile::kK; kk += Tile::kParts) {
        if constexpr (Tile::kComplex) load(1, kk + 1);
        multiply(0);
        if constexpr (Tile::kComplex) multiply(1);
        load(0, kk + Tile::kParts);
      }
      next_stage();
    }
    end_chunk(acc);
  }
}

}  // namespace tiled::cuda::simt_cp_async
