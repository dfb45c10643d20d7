// 07 tensor_core: a warpgroup multiplies tiles by wgmma, which TMA loads.
//
// Idea:  A tensor core multiplies a (64, 16) by a (16, 128) tile of 16-bit floats in one
//        instruction of a warpgroup, wgmma. It reads both from shared memory, so that no thread
//        loads fragments; the sums are in registers. TMA copies a box of a matrix: one thread names
//        its coordinates, and elements outside the matrix become zeros. It fills a ring of stages,
//        each with an mbarrier that counts the bytes. A block is one warpgroup and computes one
//        tile of C; two blocks share an SM, so that one multiplies while the other stores C.
// Limit: Threads of the block that multiplies also load, and nothing overlaps a block's first loads
//        but the other block. A tile of 128 x 128 reads more from L2 than larger ones.
// Next:  ../mma/tma_sm90.cu: warps that only load, larger tiles, blocks that take several tiles. It
//        also takes K beyond a chunk, and operands that TMA cannot read.
//
//   thread 0      tma_load A and B of the first kStages steps -> stages
//   all threads   wait full[stage]
//                 8 wgmma of the stage, asynchronous
//                 wait for the wgmmas of the step before, __syncthreads(): its stage is free
//   thread 0      tma_load of kStages steps later -> the free stage
//   all threads   next stage; after the last one, sums -> shared memory -> C by whole rows

#include <cuda.h>

#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = 128, kN = 128, kK = 64;  // rows and columns of C; of K in a step
  static constexpr int kThreads = 128;               // a warpgroup
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kStages = 3;
  static constexpr int kPitch = kN + 8;  // of sums in shared memory, against bank conflicts
};
constexpr int kBox = 64;  // rows and elements along K of a box: 128 bytes, all of them swizzled

// An operand's part of a stage: two boxes. K-major, a stored row has 64 elements along K; MN-major,
// it has one k of 64 rows of A or columns of B.
struct alignas(1024) Operand {
  uint16_t box[2][kBox * kBox];
};
struct Smem {
  union {
    struct {
      Operand a, b;
    } stage[Tile::kStages];
    float sums[Tile::kM][Tile::kPitch];
  };
  uint64_t full[Tile::kStages];
};
static_assert(Tile::kM == 2 * kBox && Tile::kN == 2 * kBox && Tile::kK == kBox);

struct Params {
  Problem p;
  CUtensorMap a, b;
};

// Loads an operand's boxes from (mn, k) on; `mn` counts rows of A or columns of B.
template <bool kMnMajor>
__device__ void load(Operand& to, const CUtensorMap& map, int mn, int k, const TmaCoords& batch,
                     uint64_t* full) {
  UNROLL
  for (int i = 0; i < 2; ++i, mn += kBox) {
    const int coords[5] = {kMnMajor ? mn : k, kMnMajor ? k : mn, batch.at[0], batch.at[1],
                           batch.at[2]};
    ptx::tma_load(to.box[i], &map, coords, full);
  }
}

template <class T, bool kAMnMajor, bool kBMnMajor>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    tensor_core_kernel(const __grid_constant__ Params params, int64_t first_tile) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem&>(dynamic_smem);
  const Problem& p = params.p;
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const TmaCoords a_batch(p.batch, p.a, tile.batch), b_batch(p.batch, p.b, tile.batch);
  const int steps = static_cast<int>(ceil_div(p.k, Tile::kK));
  const auto load_step = [&](int step) {
    auto& [a, b] = smem.stage[step % Tile::kStages];
    uint64_t* full = &smem.full[step % Tile::kStages];
    ptx::arrive_expect_tx(full, sizeof(a) + sizeof(b));
    load<kAMnMajor>(a, params.a, static_cast<int>(tile.row), step * Tile::kK, a_batch, full);
    load<kBMnMajor>(b, params.b, static_cast<int>(tile.col), step * Tile::kK, b_batch, full);
  };
  if (threadIdx.x == 0) {
    for (uint64_t& full : smem.full) ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();
    for (int step = 0; step < min(steps, Tile::kStages); ++step) load_step(step);
  }
  __syncthreads();  // the barriers are initialized

  float acc[2][kBox] = {};  // of the upper and the lower 64 rows, as wgmma.cuh numbers them
  ptx::PipelineState pipe{.stages = Tile::kStages};
  for (int step = 0; step < steps; ++step, pipe.advance()) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    const auto& [a, b] = smem.stage[pipe.stage];
    constexpr int kBoxBytes = sizeof(a.box[0]);
    ptx::wgmma::fence();
    UNROLL
    for (int k16 = 0; k16 < Tile::kK / mma_order::kDepth; ++k16) {
      // A descriptor counts 16-byte units: 16 elements along K, or 16 stored rows.
      const uint64_t b_at =
          ptx::wgmma::swizzled_descriptor<kBoxBytes>(b.box) + k16 * (kBMnMajor ? 2 * kBox : 2);
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint64_t a_at =
            ptx::wgmma::swizzled_descriptor<kBoxBytes>(a.box[i]) + k16 * (kAMnMajor ? 2 * kBox : 2);
        ptx::wgmma::mma<std::is_same_v<T, BFloat16>, kAMnMajor, kBMnMajor>(acc[i], a_at, b_at,
                                                                           /*accumulate=*/true);
      }
    }
    ptx::wgmma::commit_group();
    ptx::wgmma::wait_group<1>();
    __syncthreads();  // no wgmma reads the stage of the step before any more
    const int next = step - 1 + Tile::kStages;
    if (threadIdx.x == 0 && step > 0 && next < steps) load_step(next);
  }
  ptx::wgmma::wait_group<0>();
  UNROLL
  for (int i = 0; i < 2; ++i) ptx::wgmma::fence_operand(acc[i]);
  __syncthreads();  // no wgmma reads shared memory any more

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  UNROLL
  for (int i = 0; i < 2 * kBox; i += 2) {
    const int in_box = i % kBox, row = i / kBox * kBox + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    const float* pair = &acc[i / kBox][in_box];
    *reinterpret_cast<float2*>(&smem.sums[row][in_box / 4 * 8 + lane % 4 * 2]) =
        make_float2(0.0f + pair[0], 0.0f + pair[1]);  // the order's total begins with +0
  }
  __syncthreads();  // the sums are complete
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch), col = tile.col + threadIdx.x;
  const int rows = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  NO_UNROLL
  for (int row = 0; row < rows && col < p.n; ++row) {
    store<T>(p, c_offset, tile.row + row, col, smem.sums[row][threadIdx.x]);
  }
}

template <class T>
auto kernel_for(bool a_mn_major, bool b_mn_major) {
  if (a_mn_major) {
    return b_mn_major ? tensor_core_kernel<T, true, true> : tensor_core_kernel<T, true, false>;
  }
  return b_mn_major ? tensor_core_kernel<T, false, true> : tensor_core_kernel<T, false, false>;
}

}  // namespace

bool launch_tensor_core(const Problem& p, const Plan&, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  const auto map = [&](const Matrix& operand, int64_t rows) {
    return tensor_map(p.batch, operand, rows, p.k, kBox, kBox, CU_TENSOR_MAP_SWIZZLE_128B, p.dtype);
  };
  const Matrix b = transposed(p.b);
  const Params params{p, map(p.a, p.m), map(b, p.n)};
  const auto kernel = p.dtype == DType::kFloat16
                          ? kernel_for<Half>(is_mn_major(p.a), is_mn_major(b))
                          : kernel_for<BFloat16>(is_mn_major(p.a), is_mn_major(b));
  allow_shared_memory(kernel, sizeof(Smem));
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    const auto stream = static_cast<cudaStream_t>(context.stream);
    kernel<<<blocks, Tile::kThreads, sizeof(Smem), stream>>>(params, first);
  });
  return true;
}

}  // namespace tiled::cuda
