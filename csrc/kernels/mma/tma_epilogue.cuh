#pragma once
// The epilogue of mma_tma, and which path of it a problem takes.

#include <cstdint>

#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/chunk_totals.cuh"
#include "kernels/mma/store.cuh"
#include "kernels/mma/store_16bit.cuh"
#include "kernels/mma/store_by_tma.cuh"
#include "kernels/mma/work_tile.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda::mma_tma {

struct EpilogueParams : MainloopParams {
  bool vectorized_x4, vectorized_x8;  // rows of C are whole vectors of so many elements
  bool bias_relu_at_most;             // Epilogue::is_bias_relu_at_most()
  bool applies_in_registers;          // apply_in_registers(), after which nothing is left to apply
  bool is_16bit, has_bias_relu;       // store_16bit(), and its kBiasRelu
  bool by_tma;                        // store_by_tma()
  CUtensorMap c;                      // its map
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
    if (params.applies_in_registers) apply_in_registers<Tile>(p.epilogue, tile.col, bias, acc);
    auto store = [&]<class Out>(Out* c) {
      store_rows<false>(p, params.vectorized_x4, params.bias_relu_at_most, c + c_offset, row,
                        tile.col, acc, staging.rows, bias, [&](int i) {
                          return column_in_tile<Tile::kN, Tile::kNarrowBox>(i, tile.col);
                        });
    };
    auto store_as = [&]<bool kBiasRelu, bool kVectorizedX8>() {
      store_16bit<Tile, kBiasRelu, kVectorizedX8>(p, static_cast<T*>(p.c.data) + c_offset, row,
                                                  tile.col, acc, staging.rows_16bit, bias);
    };
    if constexpr (kStoresByTma<Tile>) {
      if (params.by_tma && params.has_bias_relu) {
        return store_by_tma<Tile, true>(p, params.c, tile, warp, acc, staging.boxes, bias);
      }
      if (params.by_tma) {
        return store_by_tma<Tile, false>(p, params.c, tile, warp, acc, staging.boxes, bias);
      }
    }
    if (params.is_16bit && params.vectorized_x8 && !params.has_bias_relu) {
      store_as.template operator()<false, true>();
    } else if (params.is_16bit && params.vectorized_x8) {
      store_as.template operator()<true, true>();
    } else if (params.is_16bit && !params.has_bias_relu) {
      store_as.template operator()<false, false>();
    } else if (params.is_16bit) {
      store_as.template operator()<true, false>();
    } else if (p.out_dtype == DType::kFloat32) {
      store(static_cast<float*>(p.c.data));
    } else {
      store(static_cast<T*>(p.c.data));
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

// Parameters for a problem and this tile, but for those of the main loop.
template <class Tile>
EpilogueParams epilogue_params(const Problem& p, int64_t sms) {
  const auto vectorized = [&](int64_t count) {
    return p.n % count == 0 && is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride,
                                                 count, size_of(p.out_dtype));
  };
  EpilogueParams params{};
  params.p = p;
  params.vectorized_x4 = vectorized(4), params.vectorized_x8 = vectorized(8);
  params.bias_relu_at_most = p.epilogue.is_bias_relu_at_most();
  params.is_16bit = p.epilogue.beta == 0 && p.out_dtype == p.dtype && p.c.col_stride == 1;
  params.applies_in_registers = params.is_16bit && !params.bias_relu_at_most;
  params.has_bias_relu = !params.applies_in_registers && !p.epilogue.is_identity();
  const bool has_next_tile = count_tiles(p, Tile::kM, Tile::kN) > sms;
  // TMA stores whole 16 bytes: where a row ended within them, it would write what follows, too.
  params.by_tma = kStoresByTma<Tile> && has_next_tile && params.is_16bit && params.vectorized_x8 &&
                  p.c.row_stride > p.c.col_stride && fits_tma_rank(p.batch, p.c);
  if (params.by_tma) {
    params.c = tensor_map(p.batch, as_operand(p.c), p.m, p.n, 16, kStagedCols16Bit,
                          CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat16);
  }
  return params;
}

}  // namespace tiled::cuda::mma_tma
