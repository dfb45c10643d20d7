#pragma once
// The epilogue of mma_tma, and the choice among its stores.

#include <cstdint>

#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/apply_epilogue.cuh"
#include "kernels/mma/chunk_totals.cuh"
#include "kernels/mma/store_16bit.cuh"
#include "kernels/mma/store_by_tma.cuh"
#include "kernels/mma/store_rows.cuh"
#include "kernels/mma/work_tile.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda::mma_tma {

struct EpilogueParams : MainloopParams {
  EpilogueSteps steps;
  bool is_16bit, vectorized_x8;  // store_16bit(), or else store_rows()
  bool vectorized_x4;            // of store_rows()
  bool by_tma;                   // store_by_tma(), instead of store_16bit()
  CUtensorMap c;                 // the tensor map of C, if by_tma
};

template <class Tile>
struct Epilogue {
  static constexpr int kAccRegisters = 176;

  using Params = EpilogueParams;
  union Staging {
    RowStaging rows;
    alignas(16) RowStaging16Bit rows_16bit;
    alignas(kStoresByTma<Tile> ? 1024 : 16) StoreBox boxes[kStoresByTma<Tile> ? 2 : 1];
  };
  struct Smem {
    Staging staging[Tile::kConsumers * 4];               // of each warp
    alignas(16) float bias[Tile::kConsumers][Tile::kN];  // of each warpgroup
  };

  static constexpr int kSharedTotal = kSharedTotalIn<Staging>;

  const Params& params;
  Smem& smem;

  __device__ static TmaCoords batch_coords(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const TileCoord& tile) const {
    if (params.p.epilogue.bias == nullptr) return;
    const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1;
    load_bias<typename Tile::T>(params.p, tile.col, 1 + warpgroup, smem.bias[warpgroup]);
  }
  __device__ void end_chunk(const TileCoord&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const TileCoord& tile, float (&acc)[Tile::kElements]) const {
    using T = typename Tile::T;
    const Problem& p = params.p;
    const int warp = threadIdx.x / 32 - 4;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const int64_t row = tile.row + warp * 16;
    Staging& staging = smem.staging[warp];
    const auto& bias = smem.bias[warp / 4];
    const auto column = [&](int i) {
      return column_in_tile<Tile::kN, Tile::kNarrowBox>(i, tile.col);
    };
    if (params.steps.bias_relu) apply_bias_relu(p.epilogue, bias, column, acc);
    if (params.steps.more) {
      apply_epilogue<false, T>(p, params.steps.combines, c_offset, row, tile.col, bias,
                               staging.rows, column, acc);
    }
    if constexpr (kStoresByTma<Tile>) {
      if (params.by_tma) {
        return store_by_tma<Tile>(p, params.c, tile, warp, staging.boxes, acc);
      }
    }
    T* c = static_cast<T*>(p.c.data) + c_offset;
    if (params.is_16bit && params.vectorized_x8) {
      store_16bit<Tile, true>(p, c, row, tile.col, staging.rows_16bit, acc);
    } else if (params.is_16bit) {
      store_16bit<Tile, false>(p, c, row, tile.col, staging.rows_16bit, acc);
    } else {
      store_rows<T>(p, params.vectorized_x4, c_offset, row, tile.col, staging.rows, column, acc);
    }
  }
  __device__ float4* shared_total() const {
    const int lane = threadIdx.x % 32;
    if constexpr (kStoresByTma<Tile>) {  // TMA may still read the previous tile's boxes there
      if (lane == 0) ptx::tma_store_wait_group_read<0>();
      __syncwarp();
    }
    return reinterpret_cast<float4*>(&smem.staging[threadIdx.x / 32 - 4]) + lane;
  }
  __device__ void finish() const {
    if (kStoresByTma<Tile> && params.by_tma && threadIdx.x % 32 == 0) {
      ptx::tma_store_wait_group_read<0>();
    }
  }
};

// The epilogue's parameters for a problem and this tile. The caller sets those of the main loop.
template <class Tile>
EpilogueParams epilogue_params(const Problem& p, int64_t sms) {
  const auto vectorized = [&](int64_t count) {
    return p.n % count == 0 && is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride,
                                                 count, size_of(p.out_dtype));
  };
  EpilogueParams params{};
  params.p = p;
  params.steps = EpilogueSteps::of(p.epilogue);
  params.is_16bit = p.out_dtype == p.dtype && p.c.col_stride == 1;
  params.vectorized_x8 = vectorized(8), params.vectorized_x4 = vectorized(4);
  const bool has_next_tile = count_tiles(p, Tile::kM, Tile::kN) > sms;
  // TMA stores multiples of 16 bytes. If a row ended within one, the store would overwrite what
  // follows the row.
  params.by_tma = kStoresByTma<Tile> && has_next_tile && params.is_16bit && params.vectorized_x8 &&
                  p.epilogue.beta == 0 && p.c.row_stride > p.c.col_stride &&
                  fits_tma_rank(p.batch, p.c);
  if (params.by_tma) {
    params.c = tensor_map(p.batch, as_operand(p.c), p.m, p.n, 16, kStagedCols16Bit,
                          CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat16);
  }
  return params;
}

}  // namespace tiled::cuda::mma_tma
