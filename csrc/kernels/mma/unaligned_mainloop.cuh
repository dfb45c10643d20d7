#pragma once
// mma_unaligned's kernel and its main loop. unaligned_sm90.cu draws its barriers.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/unaligned_fragment.cuh"
#include "kernels/mma/unaligned_layout.cuh"
#include "kernels/mma/unaligned_load.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::mma_unaligned {

namespace wgmma = ptx::wgmma;

// Sums a chunk, as mma_tma::multiply_chunk() does. `ends` is true for the work tile's last chunk,
// after which the last stage of a K-major A is released, too.
template <class Tile, class Epilogue>
__device__ int multiply_chunk(mma_tma::Smem<Tile, Epilogue>& smem,
                              const FragmentReader<Tile>& reader, bool ends,
                              ptx::PipelineState& pipe, int length, int lane,
                              float (&acc)[Tile::kElements]) {
  constexpr bool kMnMajor = Tile::kAMnMajor;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2;  // 16 k further, in a descriptor
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t first_b = wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.b[0]);
  UNROLL
  for (float& each : acc) each = 0;
  uint32_t a_frag[2][4][4];  // of this step and the next one
  int b_stage = 0, read_stage = 0;
  // Where A is K-major, a step's B arrives with the second of its two stages.
  const auto read = [&](uint32_t(&to)[4][4]) {
    read_stage = pipe.stage;
    if (!kMnMajor) pipe.advance();
    b_stage = pipe.stage;
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    reader.read(smem.a, read_stage, to);
    if (kMnMajor) pipe.advance();
  };
  if (!kMnMajor) ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
  read(a_frag[0]);
  NO_UNROLL
  for (int k = 0;; k += 2 * Tile::kK) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint64_t b = first_b + b_stage * (sizeof(smem.b[0]) / 16);
      wgmma::fence_operand(acc), wgmma::fence_operand(a_frag[i]);
      wgmma::fence();
      UNROLL
      for (int j = 0; j < 4; ++j) {
        wgmma::mma<kBFloat16, Tile::kBMnMajor>(acc, a_frag[i][j], b + j * kB16);
      }
      wgmma::commit_group();
      int stage = read_stage;
      if (k + (i + 1) * Tile::kK >= length) {
        if (kMnMajor || !ends) return stage;
        wgmma::wait_group<0>();
        mma_tma::release(smem, stage, lane);
        stage = pipe.stage;
        pipe.advance();
        return stage;
      }
      // ptxas serializes wgmma unless the next fragments are read here: after the products are
      // issued, and before they are waited for.
      read(a_frag[1 - i]);
      wgmma::wait_group<0>();
      mma_tma::release(smem, stage, lane);
    }
  }
}

// Registers of a consumer thread and of a producer thread.
template <class Tile>
constexpr int kConsumerRegisters = Tile::kConsumers == 1            ? 232
                                   : Tile::kProducerWarpgroups == 1 ? 224
                                   : Tile::kN == 64                 ? 168
                                                                    : 184;
template <class Tile>
constexpr int kProducerRegisters =
    Tile::kConsumers == 1            ? 88
    : Tile::kProducerWarpgroups == 1 ? 56
                                     : 256 - kConsumerRegisters<Tile>;
// True if the block starts with as many registers. Otherwise setmaxnreg.inc would wait forever.
template <class Tile>
constexpr bool kFitsRegisters = Tile::kConsumers * kConsumerRegisters<Tile> +
                                    Tile::kProducerWarpgroups * kProducerRegisters<Tile> <=
                                65536 / Tile::kThreads / 8 * 8 * (Tile::kThreads / kWarpgroup);

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_unaligned_kernel(const __grid_constant__ typename Epilogue::Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<mma_tma::Smem<Tile, Epilogue>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    // Each thread of a producer warpgroup arrives when its copies are complete, and one more with
    // the bytes of B.
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, kWarpgroup + 1, smem.empty,
                              Tile::kConsumerThreads / 32 * Tile::kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  ptx::pdl_launch_dependents();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup > 0 && warpgroup <= Tile::kConsumers) {
    ptx::setmaxnreg_inc<kConsumerRegisters<Tile>>();
    const int lane_row = fragment_row<Tile::kRows>(static_cast<int>(threadIdx.x) / 32 % 4,
                                                   static_cast<int>(threadIdx.x) % 32);
    const auto multiply = [&](const mma_tma::WorkTile& work_tile, bool ends,
                              ptx::PipelineState& pipe, int length, int consumer, int lane,
                              float(&acc)[Tile::kElements]) {
      const StoredRows<Tile::kAMnMajor> a(params.p, work_tile.tile, work_tile.k_begin);
      const FragmentReader<Tile> reader(a, BankLayout<Tile>(params.p),
                                        consumer * Tile::kRows + lane_row, lane);
      return multiply_chunk<Tile, Epilogue>(smem, reader, ends, pipe, length, lane, acc);
    };
    mma_tma::consume<Tile, Epilogue>(params, smem, multiply);
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters<Tile>>();
    produce<Tile, Epilogue>(params, smem);
  }
}

}  // namespace tiled::cuda::mma_unaligned
