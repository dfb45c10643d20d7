// tf32_tma: float32 products with 11-bit significands, as one fp16 product.
//
// Idea:  TF32 and fp16 numbers both have significands of 11 bits. Tensor cores multiply fp16 at
//        twice the rate, but it has less range. So a first kernel scales rows of A and columns of B
//        by powers of two and rounds them to fp16, K-major (scale_sm90.cu). The main loop of
//        mma_tma multiplies those, and the epilogue descales each chunk. Elements for which
//        rounding may have lost too much become NaN; they are flagged, and fp16x3's kernel
//        recomputes them.
//
// Limit: that of mma_tma, after the scale kernel, which reads and rewrites both operands.
//
// Next:  a kernel for few rows that scales operands while it multiplies them.
//
//   scale kernel:      A, B  -> fp16 rows, inverse scales
//   mma_tma_kernel:    fp16 rows -> TMA -> wgmma -> acc (barriers: mma/tma_sm90.cu)
//                      a chunk ends:  acc * inverse scales, NaN if in doubt
//                      a tile ends:   NaNs -> recompute list; all else -> C
//   recompute kernel:  recompute list -> C

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "core/epilogue.h"
#include "core/order_mma.h"
#include "core/order_tf32.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/sub_problems.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/tma_epilogue.cuh"
#include "kernels/mma/tma_kernel.cuh"
#include "kernels/mma/tma_launch.cuh"
#include "kernels/tf32/plan.h"
#include "kernels/tf32/scale.h"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda {
namespace tf32_tma {

// The inverse scales of an operand, as ScaledOperand stores them.
struct InverseScales {
  const float* data;
  int64_t chunk_stride, matrix_stride;

  explicit InverseScales(const ScaledOperand& x)
      : data(x.inverse_scales), chunk_stride(x.padded_rows()), matrix_stride(x.matrix_groups()) {}
  InverseScales() = default;
};

struct EpilogueParams : mma_tma::MainloopParams {
  InverseScales inverse_a, inverse_b;
  RecomputeList recompute;
  EpilogueSteps steps;
  bool stores_from_registers;         // store_inside() for warp tiles that are inside C
  bool vectorized_x2, vectorized_x4;  // of store_inside(), of store_rows()
};

template <class Tile>
struct Epilogue {
  static constexpr int kAccRegisters = 128, kSharedTotal = mma_tma::kSharedTotalIn<RowStaging>;
  static constexpr int kReducedCols = Tile::kN;  // flags of a region are stored together

  using Params = EpilogueParams;
  struct Smem {
    RowStaging staging[Tile::kConsumers * 4];  // of each warp
    // For the columns of each warpgroup's tile:
    alignas(16) float inverse_scale[Tile::kConsumers][Tile::kN], bias[Tile::kConsumers][Tile::kN];
  };
  // The columns that a thread loads inverse scales of.
  static constexpr int kOwnCols = ceil_div(Tile::kN, Tile::kWarpgroup);
  static constexpr int kElements = Tile::kElements;

  const Params& params;
  Smem& smem;
  const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kWarpgroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ Epilogue(const Params& params, Smem& smem) : params(params), smem(smem) {}

  // The maps have one dimension for the batch, and p's batch strides count stored matrices.
  __device__ static TmaCoords batch_coords(const Problem& p, const Matrix& matrix, int64_t index) {
    return TmaCoords(static_cast<int>(batch_offset(p.batch, matrix, index)));
  }

  // The coordinates of the warp's 16 rows of a block's tile.
  __device__ static TileCoord warp_tile(TileCoord tile) {
    tile.row += static_cast<int>(threadIdx.x) / 32 * 16 - Tile::kWarpgroup / 32 * 16;
    return tile;
  }

  __device__ float4* shared_total() const {
    return reinterpret_cast<float4*>(&smem.staging[threadIdx.x / 32 - Tile::kWarpgroup / 32]) +
           lane;
  }
  __device__ void begin_tile(const TileCoord& tile) const {
    if (params.p.epilogue.bias == nullptr) return;
    load_bias<float>(params.p.epilogue, 0, params.p.n, tile.col, 1 + warpgroup,
                     smem.bias[warpgroup]);
  }

  // Multiplies a chunk's sums by the inverse scales of their rows and columns. `chunk` is the k at
  // which it begins.
  __device__ void end_chunk(const TileCoord& block_tile, int64_t chunk,
                            float (&acc)[kElements]) const {
    const Problem& p = params.p;
    const TileCoord tile = warp_tile(block_tile);
    const auto chunk_scales = [&](const InverseScales& inverse, const Matrix& matrix) {
      return inverse.data + batch_offset(p.batch, matrix, tile.batch) * inverse.matrix_stride +
             chunk / mma_order::kChunk * inverse.chunk_stride;
    };
    const float* scales_a = chunk_scales(params.inverse_a, p.a);
    const float* scales_b = chunk_scales(params.inverse_b, p.b);
    float inverse_a[2], inverse_b[kOwnCols];  // of the thread's rows; of columns that it shares
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = tile.row + lane / 4 + i * 8;
      inverse_a[i] = row < p.m ? __ldg(scales_a + row) : 1.0f;
    }
    UNROLL
    for (int i = 0; i < kOwnCols; ++i) {
      const int in_tile = thread + i * Tile::kWarpgroup, col = tile.col + in_tile;
      inverse_b[i] = in_tile < Tile::kN && col < p.n ? __ldg(scales_b + col) : 1.0f;
    }
    // If rows' scales are moderate or 0 and no group is wide, tf32::chunk_sum() is two
    // multiplications, and the first is exact.
    bool plain = true;
    UNROLL
    for (const float each : inverse_a) {
      plain &= each == 0 || (each >= 0x1p-60f && each <= 0x1p60f);
    }
    UNROLL
    for (const float each : inverse_b) plain &= each >= 0;
    float(&shared)[Tile::kN] = smem.inverse_scale[warpgroup];
    ptx::named_barrier_sync(1 + warpgroup, Tile::kWarpgroup);  // all have read the last chunk's
    UNROLL
    for (int i = 0; i < kOwnCols; ++i) {
      const int in_tile = thread + i * Tile::kWarpgroup;
      if (in_tile < Tile::kN) shared[in_tile] = inverse_b[i];
    }
    const bool any = ptx::named_barrier_sync_or(1 + warpgroup, Tile::kWarpgroup, !plain);
    const auto of_columns = [&](int i) {
      return *reinterpret_cast<const float2*>(&shared[lane % 4 * 2 + i * 2]);
    };
    if (!any) {
      UNROLL
      for (int i = 0; i < kElements; i += 4) {
        const float2 inverse_x2 = of_columns(i);
        UNROLL
        for (int j = 0; j < 4; ++j) {
          acc[i + j] = acc[i + j] * inverse_a[j / 2] * (j % 2 == 0 ? inverse_x2.x : inverse_x2.y);
        }
      }
    } else {
      // Accumulators rotate through the first registers, so that the loop is not unrolled.
      constexpr int kAtOnce = 16;
      NO_UNROLL
      for (int first = 0; first < kElements; first += kAtOnce) {
        float descaled[kAtOnce];
        UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const float of_col = shared[lane % 4 * 2 + (first + i) / 4 * 8 + i % 2];
          descaled[i] = tf32::chunk_sum(acc[i], inverse_a[i / 2 % 2], of_col);
        }
        UNROLL
        for (int i = 0; i < kElements; ++i) {
          acc[i] = i + kAtOnce < kElements ? acc[(i + kAtOnce) % kElements]
                                           : descaled[(i + kAtOnce) % kElements % kAtOnce];
        }
      }
    }
  }

  // Stores a warp's rows from registers. All elements must be inside the matrix.
  template <bool kVectorizedX2>
  __device__ void store_inside(const TileCoord& tile, const float (&acc)[kElements]) const {
    const Problem& p = params.p;
    const int64_t row = tile.row + lane / 4, col = tile.col + lane % 4 * 2;
    float* data = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, tile.batch) +
                  row * p.c.row_stride + col;
    UNROLL
    for (int i = 0; i < kElements; i += 2) {
      float* to = data + i / 2 % 2 * 8 * p.c.row_stride + i / 4 * 8;
      if constexpr (kVectorizedX2) {
        *reinterpret_cast<float2*>(to) = {acc[i], acc[i + 1]};
      } else {
        to[0] = acc[i], to[1] = acc[i + 1];
      }
    }
  }

  // Appends the warp's elements that are NaN to the recompute list.
  __device__ void flag(const TileCoord& tile, const float (&acc)[kElements]) const {
    constexpr int kListed = RecomputeList::kCols / 2;  // elements of a thread in a warp tile
    UNROLL
    for (int first = 0; first < kElements; first += kListed) {
      uint64_t flags = 0;
      UNROLL
      for (int i = first; i < min(first + kListed, kElements); ++i) {
        const int row = tile.row + lane / 4 + i / 2 % 2 * 8;
        const int col = tile.col + lane % 4 * 2 + i / 4 * 8 + i % 2;
        const bool exists = row < params.p.m && col < params.p.n;
        if (exists && isnan(acc[i])) flags |= uint64_t{1} << (i - first);
      }
      append_flagged(params.recompute, tile.batch, tile.row, tile.col + first * 2, flags);
    }
  }

  __device__ void end_tile(const TileCoord& block_tile, float (&acc)[kElements]) const {
    const Problem& p = params.p;
    const TileCoord tile = warp_tile(block_tile);
    bool inside =
        params.stores_from_registers && tile.row + 16 <= p.m && tile.col + Tile::kN <= p.n;
    UNROLL
    for (const float each : acc) inside &= !isnan(each);
    inside = __all_sync(~0u, inside);
    if (!inside) flag(tile, acc);
    const auto column_in_tile = [](int i) { return i; };
    const auto& bias = smem.bias[warpgroup];
    if (params.steps.bias_relu) apply_bias_relu(p.epilogue, bias, column_in_tile, acc);
    if (inside) {
      params.vectorized_x2 ? store_inside<true>(tile, acc) : store_inside<false>(tile, acc);
      return;
    }
    // If the epilogue reads C, flagged elements keep their old values for the recompute kernel.
    RowStaging& staging = smem.staging[threadIdx.x / 32 - Tile::kWarpgroup / 32];
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    if (params.steps.more) {
      apply_epilogue<true, float>(p, params.steps.combines, c_offset, tile.row, tile.col, bias,
                                  staging, column_in_tile, acc);
    }
    store_rows<float>(p, {p.m, p.n}, params.vectorized_x4, c_offset, tile.row, tile.col, staging,
                      column_in_tile, acc);
  }
  __device__ void finish() const {}
};

}  // namespace tf32_tma

namespace {

template <int kIndex, int kStages>
void run_tile(const Problem& p, const Tf32Buffers& buffers, int64_t k_splits,
              const Context& context) {
  const auto& [recompute, a, b, totals] = buffers;
  using Tile = mma_tma::Tile<Half, kIndex, kStages, false, false>;
  const auto tma_operand = [](const ScaledOperand& x) {
    mma_tma::TmaOperand operand;
    operand.batch = {.rank = 1, .count = x.batch.count, .size = {x.batch.count}};
    operand.matrix = {.data = x.fp16,
                      .row_stride = x.pitch(),
                      .col_stride = 1,
                      .batch_stride = {x.matrix_elements()}};
    return operand;
  };
  tf32_tma::EpilogueParams params{};
  params.p = p;
  params.p.a = a.index, params.p.b = b.index;
  params.inverse_a = tf32_tma::InverseScales(a), params.inverse_b = tf32_tma::InverseScales(b);
  params.recompute = recompute;
  params.workspace = reinterpret_cast<float4*>(totals);
  params.steps = EpilogueSteps::of(p.epilogue);
  params.stores_from_registers = p.c.col_stride == 1 && !params.steps.more;
  params.vectorized_x2 = is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  params.vectorized_x4 =
      p.n % 4 == 0 && is_vector_aligned<float4>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  mma_tma::launch<Tile, tf32_tma::Epilogue>(params, k_splits, tma_operand(a), tma_operand(b),
                                            context);
}

// The two parts of a problem with more rows or columns than TMA's coordinates reach, or nullopt.
std::optional<std::pair<Problem, Problem>> split_for_tma(const Problem& p) {
  return std::max(p.m, p.n) > tf32::kMaxK ? split_in_two(p) : std::nullopt;
}

int64_t buffer_bytes(const Problem& p, int tile_cols, const Context& context) {
  if (const auto parts = split_for_tma(p)) {
    return std::max(buffer_bytes(parts->first, tile_cols, context),
                    buffer_bytes(parts->second, tile_cols, context));
  }
  return tf32_buffer_bytes(p, tile_cols, context.sms);
}

void run(const Problem& p, const Plan& plan, uint8_t* workspace, const Context& context) {
  if (const auto parts = split_for_tma(p)) {  // they share the workspace, one after another
    run(parts->first, plan, workspace, context);
    return run(parts->second, plan, workspace, context);
  }
  Workspace memory(workspace);
  const Tf32Buffers buffers(p, plan.n, context.sms, memory);
  launch_scale(buffers.a, buffers.b, buffers.recompute.zeroed(p), context);
  with_tile<std::size(h200::kMmaTmaTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr int kStages = h200::kMmaTmaTiles[kIndex].tf32_stages;
    if constexpr (kStages == 0) {
      fail_no_tile("tf32_tma", kIndex);
    } else {
      run_tile<kIndex, kStages>(p, buffers, plan.k_splits, context);
    }
    return true;
  });
  launch_recompute(p, buffers.recompute, context);
}

}  // namespace

// If memory is short, sub-problems share a smaller workspace. All of it is allocated before
// anything is launched.
bool launch_tf32_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Problem unprepared = p;
  unprepared.b_presplit = {};  // this kernel does not read it; without it n may be split, too
  const auto bytes = [&](const Problem& part) { return buffer_bytes(part, plan.n, context); };
  return run_sub_problems(
      unprepared, context, 0, bytes,
      [&](const Problem& part, uint8_t* workspace) { run(part, plan, workspace, context); });
}

}  // namespace tiled::cuda
