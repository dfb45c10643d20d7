// fp16x3_small: one launch that loads, splits and multiplies.
//
// Idea: a small product takes less time than the launches around it, and not much more than its
// instructions take to come from memory. So a block does everything for its tile, in few
// instructions, for any K up to one chunk. Its rows of A and columns of B come to shared memory by
// cp.async as they are; as they come, each warp finds their largest magnitudes; then it splits them
// in place, and the block multiplies the parts by mma.sync.
//
// Limit: every block of a row of tiles splits the same rows of A, and every block of a column of
// tiles the same columns of B. The latency of the low sum: two dependent products every 16 of K.
//
// Next: a cluster whose blocks share what one of them has split.
//
//   a warp      cp.async -> its own range -> smem.ranges
//   the block   __syncthreads: all ranges are there     a warp splits what it loaded
//               __syncthreads: all parts are there      a warp multiplies warp tiles -> smem.sums
//               __syncthreads: all sums are there       a thread descales and stores elements

#include <algorithm>
#include <iterator>

#include "core/complex.h"
#include "core/order_fp16x3.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_b.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_complex.cuh"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/recomputed_counter.h"
#include "kernels/fp16x3/small_load.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"

namespace tiled::cuda {
namespace fp16x3_small {

struct Params {
  OperandParams operands[2];       // A, B
  int64_t batch, row, col;         // of this launch's first tile
  bool identity_epilogue;          // C is the sums unchanged
  unsigned long long* recomputed;  // counts recomputed elements, or null
  Problem p;
};

// Multiplies a warp tile. Operands of the next 16 of K are read before the products of these.
template <class Tile>
__device__ void multiply(Smem<Tile>& smem, int k, int warp_tile) {
  constexpr int kColTiles = Tile::kWarpCols / 8;
  const int lane = threadIdx.x % 32;
  const int row = warp_tile % Tile::kPanelsOfA * 16;
  const int col = warp_tile / Tile::kPanelsOfA * Tile::kWarpCols;
  const uint8_t* a = smem.fragments[row / 16].bytes + lane * 16;
  const uint8_t* b = smem.fragments[Tile::kPanelsOfA + col / 16].bytes +
                     lane / 16 * Fragment::kLoOffset +
                     (lane / 8 % 2 * 16 + col % 16 + lane % 8) * 16;
  struct Operands {
    uint32_t a_hi[4], a_lo[4];
    uint32_t b[kColTiles][4];  // of eight columns, two registers of hi, then two of lo
  };
  Operands next;
  auto read = [&] {
    ptx::ldmatrix_x4(next.a_hi, a);
    ptx::ldmatrix_x4(next.a_lo, a + Fragment::kLoOffset);
    UNROLL
    for (int t = 0; t < kColTiles; ++t) ptx::ldmatrix_x4(next.b[t], b + t * 128);
  };
  const int promotion = fp16x3::promotion(k);
  float total[kColTiles][4] = {}, low[kColTiles][4] = {}, part[kColTiles][4] = {};
  read();
  NO_UNROLL
  for (int end = 16; end - 16 < k; end += 16) {
    const Operands own = next;
    // After the last step the same operands are read once more, and not used.
    const int step = end < k ? Tile::kPanels * Fragment::kBytes : 0;
    a += step, b += step;
    read();
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(low[t], own.a_lo, {own.b[t][0], own.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(part[t], own.a_hi, {own.b[t][0], own.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(low[t], own.a_hi, {own.b[t][2], own.b[t][3]});
    }
    if (end % promotion == 0 || end >= k) {
      UNROLL
      for (int t = 0; t < kColTiles; ++t) {
        UNROLL
        for (int i = 0; i < 4; ++i) total[t][i] += part[t][i], part[t][i] = 0;
      }
    }
  }
  UNROLL
  for (int t = 0; t < kColTiles; ++t) {
    UNROLL
    for (int i = 0; i < 4; i += 2) {
      float2* to = &smem.sums[row + lane / 4 + i * 4][col + t * 8 + lane % 4 * 2];
      *reinterpret_cast<float4*>(to) = {total[t][i], low[t][i], total[t][i + 1], low[t][i + 1]};
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    fp16x3_small_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  const Problem& p = params.p;
  const TileIndex tile{.batch = params.batch + blockIdx.z,
                       .row = params.row + static_cast<int64_t>(blockIdx.y) * Tile::kM,
                       .col = params.col + static_cast<int64_t>(blockIdx.x) * Tile::kN};
  const int k = static_cast<int>(p.k);
  {
    const int warp = threadIdx.x / 32, panel = warp % Tile::kPanels, rank = warp / Tile::kPanels;
    const bool is_b = panel >= Tile::kPanelsOfA, is_complex_b = Tile::kComplex && is_b;
    const OperandParams& operand = params.operands[is_b];
    const int row = panel * 16 + threadIdx.x % 16, first_k = rank * 16;
    const int64_t first_row =
        is_b ? tile.col + (panel - Tile::kPanelsOfA) * 16 : tile.row + panel * 16;
    Fragment* fragment = &smem.fragments[warp];
    const auto load = [&]<bool kComplex>() {
      return load_panel<Tile, kComplex>(operand, p.batch, tile.batch, first_row, first_k, k,
                                        fragment);
    };
    Range range = is_complex_b ? load.template operator()<Tile::kComplex>()
                               : load.template operator()<false>();
    smem.ranges[rank][row] = range;  // both lanes of a row write the same
    if (rank == 0) smem.inverse_scale[row] = 0;
    __syncthreads();
    UNROLL
    for (int i = 0; i < Tile::kWarpsPerPanel; ++i) range.add(smem.ranges[i][row]);
    const float scale = fp16x3::scale(range.largest);
    if (rank == 0) store_inverse_scale(&smem.inverse_scale[row], range.largest);
    const auto split = [&]<bool kComplex>() {
      return split_panel<Tile, kComplex>(operand, scale, range.is_wide(scale), first_k, k,
                                         fragment);
    };
    const uint32_t small_numbers = is_complex_b ? split.template operator()<Tile::kComplex>()
                                                : split.template operator()<false>();
    add_small_numbers(&smem.inverse_scale[row], small_numbers);
  }
  __syncthreads();
  NO_UNROLL
  for (int i = threadIdx.x / 32; i < Tile::kWarpTiles; i += Tile::kWarps) multiply(smem, k, i);
  __syncthreads();

  const int col = threadIdx.x % Tile::kN;
  const int64_t c_col = tile.col + col;
  if (c_col >= p.n) return;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  float* c = static_cast<float*>(p.c.data) + c_offset + c_col * p.c.col_stride;
  const float col_scale = smem.inverse_scale[Tile::kM + col];
  const int promotion = fp16x3::promotion(k);
  static_assert(Tile::kThreads % Tile::kN == 0);
  NO_UNROLL
  for (int first = threadIdx.x / Tile::kN; first < Tile::kM / 2;
       first += Tile::kThreads / Tile::kN) {
    float sums[2];  // of rows first and first + kM / 2
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int row = first + j * (Tile::kM / 2);
      const float2 sum = smem.sums[row][col];
      sums[j] = fp16x3::chunk_sum(sum.x, sum.y, smem.inverse_scale[row], col_scale, promotion);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int64_t c_row = tile.row + first + j * (Tile::kM / 2);
      if (c_row >= p.m) continue;
      float sum = sums[j];
      if (isnan(sum)) {
        sum = recompute_element<Tile::kComplex>(p, params.operands[1].signs, tile.batch, c_row,
                                                c_col, params.recomputed);
      }
      if (params.identity_epilogue) {
        c[c_row * p.c.row_stride] = sum;
      } else {
        store_noinline(p, c_offset, c_row, c_col, sum);
      }
    }
  }
}

namespace {

template <class Tile>
void launch(Params& params, const Context& context) {
  const Problem& p = params.p;
  const auto kernel = fp16x3_small_kernel<Tile>;
  static_assert(sizeof(Smem<Tile>) <= Tile::kM * Tile::kN * 8 + 4096, "as fp16x3_small_smem()");
  const size_t bytes = Smem<Tile>::bytes(p.k);
  allow_shared_memory(kernel, kMaxSharedMemory);
  for_tile_grids(p, Tile::kM, Tile::kN, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    params.batch = batch, params.row = row, params.col = col;
    kernel<<<grid, Tile::kThreads, bytes, static_cast<cudaStream_t>(context.stream)>>>(params);
    check(cudaGetLastError());
  });
}

OperandParams operand_params(const Batch& batch, const Matrix& matrix, int64_t count,
                             const SignsOfB& signs) {
  const bool k_major = matrix.col_stride < matrix.row_stride;
  const auto [inner, outer] = std::minmax(matrix.row_stride, matrix.col_stride);
  return {matrix, count, k_major, is_vector_aligned<float4>(batch, matrix, inner, outer), signs};
}

template <bool kComplex>
bool run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  const RecomputedCounter counter(context);
  if (counter.lacks_memory()) return false;
  Params params{};
  params.operands[0] = operand_params(p.batch, p.a, p.m, {});
  params.operands[1] = operand_params(p.batch, transposed(p.b), p.n, signs_of_b);
  params.identity_epilogue = p.epilogue.is_identity();
  params.recomputed = counter.on_gpu();
  params.p = p;

  with_tile<std::size(h200::kFp16x3SmallTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr h200::Fp16x3SmallTile kTile = h200::kFp16x3SmallTiles[kIndex];
    launch<Tile<kTile.m, kTile.n, kTile.warp_cols, kTile.warps, kComplex>>(params, context);
    return true;
  });
  counter.read();
  return true;
}

}  // namespace
}  // namespace fp16x3_small

bool launch_fp16x3_small(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_small::run<false>(p, plan, {}, context);
}

bool launch_fp16x3_small_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                 const Context& context) {
  return fp16x3_small::run<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
