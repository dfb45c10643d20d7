// wgmma_minimal: the smallest kernel on Hopper's tensor cores. Copy this file to begin your own. A
// name that ends in _sm90.cu has it compiled for Hopper alone, which wgmma needs.
//
// Idea:  a block is one warpgroup. In each step its threads copy 64 of K of both operands to shared
//        memory, by any strides, in the order in which wgmma reads them. Four wgmma instructions
//        then multiply the two tiles from there, into accumulators in registers.
// Limit: the tensor cores wait for every load: one stage of shared memory, and one element a load.
// Next:  csrc/kernels/basics/07_tensor_core_sm90.cu: TMA and a ring of stages. csrc/kernels/mma has
//        warpgroups that only load.
//
//   all threads   load A and B of a step -> shared memory, zeros beyond the matrix
//                 fence_proxy_async()   wgmma, which reads by another proxy, sees the stores
//                 __syncthreads()       both tiles are complete
//                 4 wgmma, wait         for all of them
//                 __syncthreads()       no wgmma reads the tiles any more; next step

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

namespace tiled {

namespace {

struct Tile {
  static constexpr int kM = 64, kN = 64, kK = 64;  // rows and columns of C; of K in a step
  static constexpr int kThreads = 128;             // a warpgroup
};

}  // namespace

// The cost model: cycles of the busiest SM. Without measured costs, the row is by_name_only, so
// that "auto" never picks the kernel.
Plan wgmma_minimal_plan(const Problem& p, int64_t sms) {
  constexpr double kLaunch = 1e5, kStep = 4000;
  const int64_t tiles = count_tiles(p, Tile::kM, Tile::kN);
  const auto steps = static_cast<double>(ceil_div(p.k, Tile::kK));
  return {.m = Tile::kM,
          .n = Tile::kN,
          .blocks = tiles,
          .cycles = kLaunch + kStep * steps * static_cast<double>(ceil_div(tiles, sms))};
}

namespace cuda {
namespace {

// A tile of 64 rows of A, or of 64 columns of B, K-major: a row has 64 elements, 128 bytes. Its
// eight 16-byte units are permuted by the row's number (128-byte swizzle), so that eight rows of a
// unit are in different banks: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout".
struct alignas(1024) SharedTile {
  uint16_t data[64 * Tile::kK];

  __device__ uint16_t& at(int row, int k) {
    return data[row * Tile::kK + (k / 8 ^ row % 8) * 8 + k % 8];
  }
};

// Copies a tile. Element (row, k) of the matrix is at data[row * row_stride + k * k_stride]. Those
// from rows_left or k_left on are zero. Adjacent threads read along the smaller stride.
__device__ void load(SharedTile& tile, const uint16_t* data, int64_t row_stride, int64_t k_stride,
                     int64_t rows_left, int64_t k_left) {
  const bool k_major = k_stride <= row_stride;
  for (int i = static_cast<int>(threadIdx.x); i < 64 * Tile::kK; i += Tile::kThreads) {
    const int row = k_major ? i / Tile::kK : i % 64, k = k_major ? i % Tile::kK : i / 64;
    const bool inside = row < rows_left && k < k_left;
    tile.at(row, k) = inside ? data[row * row_stride + k * k_stride] : uint16_t{0};
  }
}

template <class T>
__global__ void __launch_bounds__(Tile::kThreads)
    wgmma_minimal_kernel(const __grid_constant__ Problem p, int64_t first_tile) {
  __shared__ SharedTile a_smem, b_smem;
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  const auto* a = static_cast<const uint16_t*>(p.a.data) + batch_offset(p.batch, p.a, tile.batch);
  const auto* b = static_cast<const uint16_t*>(p.b.data) + batch_offset(p.batch, p.b, tile.batch);
  a += tile.row * p.a.row_stride;
  b += tile.col * p.b.col_stride;

  constexpr int kElements = Tile::kM * Tile::kN / Tile::kThreads;
  float acc[kElements] = {}, total[kElements] = {};
  // The order of core/order_mma.h: chains of kChunk, each from +0, added in order.
  for (int64_t chunk = 0; chunk < p.k; chunk += mma_order::kChunk) {
    const int64_t end = min(p.k, chunk + mma_order::kChunk);
    for (int64_t k = chunk; k < end; k += Tile::kK) {
      load(a_smem, a + k * p.a.col_stride, p.a.row_stride, p.a.col_stride, p.m - tile.row, end - k);
      load(b_smem, b + k * p.b.row_stride, p.b.col_stride, p.b.row_stride, p.n - tile.col, end - k);
      ptx::fence_proxy_async();
      __syncthreads();  // both tiles are complete

      ptx::wgmma::fence_operand(acc);
      ptx::wgmma::fence();
      UNROLL
      for (int k16 = 0; k16 < Tile::kK / mma_order::kDepth; ++k16) {
        // A descriptor counts 16-byte units: 16 elements of a row are two.
        constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
        ptx::wgmma::mma<kBFloat16>(acc, ptx::wgmma::swizzled_descriptor<0>(&a_smem) + 2 * k16,
                                   ptx::wgmma::swizzled_descriptor<0>(&b_smem) + 2 * k16,
                                   /*accumulate=*/true);
      }
      ptx::wgmma::commit_group();
      ptx::wgmma::wait_group<0>();
      ptx::wgmma::fence_operand(acc);
      __syncthreads();  // no wgmma reads the tiles any more
    }
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] += acc[i], acc[i] = 0;
  }

  // Warp w has rows 16 w to 16 w + 15. ptx/wgmma.cuh says which element accumulator i is.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  UNROLL
  for (int i = 0; i < kElements; ++i) {
    const int64_t row = tile.row + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    const int64_t col = tile.col + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row < p.m && col < p.n) store<T>(p, c_offset, row, col, total[i]);
  }
}

}  // namespace

bool launch_wgmma_minimal(const Problem& p, const Plan&, const Context& context) {
  const bool bf16 = p.dtype == DType::kBFloat16;
  launch_tiles<Tile>(bf16 ? wgmma_minimal_kernel<BFloat16> : wgmma_minimal_kernel<Half>, p,
                     context);
  return true;
}

}  // namespace cuda
}  // namespace tiled
