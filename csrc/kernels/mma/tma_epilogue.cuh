#pragma once
// The epilogue of mma_tma, in registers, and its stores: 16-bit rows by stmatrix, by TMA, and all
// else. tf32_tma shares the steps in registers and store_rows().

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/tma_kernel.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda {

// --- Epilogues applied to a warp's accumulators in registers -------------------------------------

// Accumulators are as wgmma leaves them (ptx/wgmma.cuh): 16 rows of a tile, and a thread has
// kElements elements. Results replace the accumulators, so stores do not depend on the epilogue.

// The columns of a warp's rows that are in shared memory at a time. The padding lets lanes write
// eight rows without bank conflicts.
constexpr int kStagedCols = 32;
using RowStaging = float[16][kStagedCols + 8];

// The functions below that an epilogue calls.
struct EpilogueSteps {
  bool bias_relu = false;  // apply_bias_relu()
  bool more = false;       // apply_epilogue()
  bool combines = false;   // combine(), within apply_epilogue(): alpha, bias and beta

  static EpilogueSteps of(const Epilogue& epilogue) {
    const bool combines = epilogue.alpha != 1 || epilogue.beta != 0;
    const bool relu = epilogue.activation == Activation::kRelu;
    return {.bias_relu = !combines && (epilogue.bias != nullptr || relu),
            .more = !epilogue.is_bias_relu_at_most(),
            .combines = combines};
  }
};

// Below, (row, col) is the first element of the warp's rows, and C's type is T or float. `biases`
// has the biases of the tile's columns, if the problem has a bias. column_in_tile(i) is the column
// in the tile of accumulators i to i + 31 of a row.

// Adds the bias, if there is one, and applies ReLU, if that is the activation.
template <int kElements, class ColumnInTile>
__device__ void apply_bias_relu(const Epilogue& epilogue, const float (&biases)[kElements * 2],
                                const ColumnInTile& column_in_tile, float (&acc)[kElements]) {
  if (epilogue.bias != nullptr) {
    UNROLL
    for (int i = 0; i < kElements; i += 4) {
      const float* of_cols = &biases[column_in_tile(i / 16 * 32) + i % 16 * 2];
      const float2 bias = *reinterpret_cast<const float2*>(&of_cols[threadIdx.x % 4 * 2]);
      acc[i] += bias.x, acc[i + 1] += bias.y, acc[i + 2] += bias.x, acc[i + 3] += bias.y;
    }
  }
  if (epilogue.activation == Activation::kRelu) {
    UNROLL  // by index: a reference to each would put acc into local memory
    for (int i = 0; i < kElements; ++i) acc[i] = activate(Activation::kRelu, acc[i]);
  }
}

// Loads kStagedCols columns of C, widened to float. Elements outside the matrix get the values of
// its last row and column.
template <class Out>
__device__ void stage_c(const Problem& p, const Out* c, int64_t row, int64_t col,
                        RowStaging& staging) {
  static_assert(kStagedCols == 32, "a lane loads a column");
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  c += min(row, p.m - 1) * p.c.row_stride + min(col + lane, p.n - 1) * p.c.col_stride;
  Out old[16];
  UNROLL
  for (int i = 0; i < 16; ++i) {
    old[i] = *c;
    if (i + 1 < rows) c += p.c.row_stride;
  }
  UNROLL
  for (int i = 0; i < 16; ++i) staging[i][lane] = widen(old[i]);
}

// Applies any epilogue, after apply_bias_relu() if that is one of its steps. The loop is not
// unrolled, so that each activation is compiled once: an iteration takes the first kAtOnce
// accumulators, enough to hide the latency of an activation, and moves the others down. If
// kKeepsNan and the epilogue reads C, an accumulator that is NaN becomes C's old value.
template <bool kKeepsNan, class T, int kElements, class ColumnInTile>
__device__ void apply_epilogue(const Problem& p, bool combines, int64_t c_offset, int64_t row,
                               int64_t col, const float (&biases)[kElements * 2],
                               RowStaging& staging, const ColumnInTile& column_in_tile,
                               float (&acc)[kElements]) {
  constexpr int kAtOnce = kElements < 16 ? kElements : 16;
  static_assert(kElements % kAtOnce == 0 && 2 * kAtOnce <= kStagedCols);
  const Epilogue& epilogue = p.epilogue;
  const bool reads_c = epilogue.beta != 0;
  const int lane = threadIdx.x % 32;
  NO_UNROLL
  for (int first = 0; first < 2 * kElements; first += 2 * kAtOnce) {
    float x[kAtOnce], old[kAtOnce] = {};
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) x[i] = acc[i];
    if (combines) {
      const int in_tile = column_in_tile(first);
      if (reads_c) {
        __syncwarp();  // all lanes have read what was staged before
        if (p.out_dtype == DType::kFloat32) {
          const auto* c = static_cast<const float*>(p.c.data) + c_offset;
          stage_c(p, c, row, col + in_tile, staging);
        } else {
          const auto* c = static_cast<const T*>(p.c.data) + c_offset;
          stage_c(p, c, row, col + in_tile, staging);
        }
        __syncwarp();
        UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          old[i] = staging[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        }
      }
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const float* bias = &biases[in_tile + i / 4 * 8 + lane % 4 * 2 + i % 2];
        x[i] = combine(epilogue, x[i], epilogue.bias == nullptr ? 0 : *bias, old[i]);
      }
    }
    activate_each(epilogue.activation, x);
    if (kKeepsNan && reads_c) {
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (isnan(acc[i])) x[i] = old[i];
      }
    }
    UNROLL
    for (int i = 0; i + kAtOnce < kElements; ++i) acc[i] = acc[i + kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) acc[kElements - kAtOnce + i] = x[i];
  }
  __syncwarp();  // what is stored next may take the same shared memory
}

// --- Stores through shared memory: any output dtype and strides ----------------------------------

// Where the rows and columns of C end, or those of a tile's group within C.
struct StoreEnds {
  int64_t row, col;
};

// Stores a warp's 16 rows of a tile, from (row, col) on, kStagedCols columns at a time, as T or
// float: a lane four adjacent floats if vectorized_x4, or else one column. The loop is not
// unrolled: it takes the first accumulators and moves the others down. column_in_tile(i) is the
// column in the tile of accumulators i to i + 31 of a row.
template <class T, int kElements, class ColumnInTile>
__device__ void store_rows(const Problem& p, const StoreEnds& ends, bool vectorized_x4,
                           int64_t c_offset, int64_t row, int64_t col, RowStaging& staging,
                           const ColumnInTile& column_in_tile, float (&acc)[kElements]) {
  // Accumulators that a thread stages at a time.
  constexpr int kStaged = kElements < kStagedCols / 2 ? kElements : kStagedCols / 2;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(ends.row - row, int64_t{16}));
  const int64_t end = min(ends.col, col + kElements * 2);
  const int64_t offset = c_offset + row * p.c.row_stride;
  NO_UNROLL
  for (int first = 0; first < kElements * 2; first += kStagedCols) {
    const int64_t own = col + column_in_tile(first) + (vectorized_x4 ? lane % 8 * 4 : lane);
    const int64_t at = offset + own * p.c.col_stride;
    UNROLL
    for (int i = 0; i < kStaged; i += 2) {
      *reinterpret_cast<float2*>(&staging[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
          acc[i], acc[i + 1]};
    }
    __syncwarp();
    const auto store_column = [&]<class Out>(Out* c) {
      UNROLL
      for (int down = 0; down < 16; ++down, c += p.c.row_stride) {
        const float x = staging[down][lane];
        if (down < rows) *c = narrow<Out>(x);
      }
    };
    if (own < end && vectorized_x4) {
      float* c = static_cast<float*>(p.c.data) + at;
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8;
        const float4 x4 = *reinterpret_cast<const float4*>(&staging[down][lane % 8 * 4]);
        if (down < rows) __stcg(reinterpret_cast<float4*>(c + down * p.c.row_stride), x4);
      }
    } else if (own < end && p.out_dtype == DType::kFloat32) {
      store_column(static_cast<float*>(p.c.data) + at);
    } else if (own < end) {
      store_column(static_cast<T*>(p.c.data) + at);
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i + kStaged < kElements; ++i) acc[i] = acc[i + kStaged];
  }
}

}  // namespace tiled::cuda

namespace tiled::cuda::mma_tma {

// --- Stores of 16-bit floats to rows of unit stride, by stmatrix ---------------------------------

// A warp's 16 rows by the columns that it stores at a time, padded against bank conflicts.
constexpr int kStagedCols16Bit = 64;
using RowStaging16Bit = uint16_t[16][kStagedCols16Bit + 8];

// Packs a thread's elements of 16 columns, from accumulator column `col` on, for stmatrix_x4():
// for each eight columns an 8 x 8 matrix of rows 0 to 7, then one of rows 8 to 15.
template <class Tile>
__device__ void pack_16bit(int col, const float (&acc)[Tile::kElements], uint32_t (&packed)[4]) {
  UNROLL
  for (int i = 0; i < 4; ++i) {
    packed[i] = ptx::pack_x2<std::is_same_v<typename Tile::T, BFloat16>>(acc[col / 2 + i * 2],
                                                                         acc[col / 2 + i * 2 + 1]);
  }
}

// Stores a warp's 16 rows of a tile, from (row, col) on, by eight elements of a row at a time if
// kVectorizedX8, or else one by one.
template <class Tile, bool kVectorizedX8>
__device__ void store_16bit(const Problem& p, const StoreEnds& ends, typename Tile::T* c,
                            int64_t row, int64_t col, RowStaging16Bit& staging,
                            const float (&acc)[Tile::kElements]) {
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(ends.row - row, int64_t{16}));
  const auto cols = static_cast<int>(min(ends.col - col, int64_t{Tile::kN}));
  c += row * p.c.row_stride + col;
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStagedCols16Bit) {
    const int begin = column_in_tile<Tile::kN, Tile::kNarrowBox>(first, col);
    const int width = min(kStagedCols16Bit, Tile::kN - first), inside = min(width, cols - begin);
    UNROLL
    for (int right = 0; right < width; right += 16) {
      uint32_t packed[4];
      pack_16bit<Tile>(first + right, acc, packed);
      ptx::stmatrix_x4(&staging[lane % 16][right + lane / 16 * 8], packed);
    }
    __syncwarp();
    if constexpr (kVectorizedX8) {
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8, right = lane % 8 * 8;
        if (down < rows && right < inside) {
          __stcg(reinterpret_cast<uint4*>(c + down * p.c.row_stride + begin + right),
                 *reinterpret_cast<const uint4*>(&staging[down][right]));
        }
      }
    } else {
      // Several rows are read before any is stored, which hides the latency of the reads. The reads
      // are volatile, or ptxas would move each one down to its store.
      constexpr int kAtOnce = 8;
      auto* to = reinterpret_cast<uint16_t*>(c + begin + lane);
      const bool first_inside = lane < inside, second_inside = 32 + lane < inside;
      UNROLL
      for (int i = 0; i < 16; i += kAtOnce) {
        uint16_t first_of[kAtOnce], second_of[kAtOnce];
        UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const volatile uint16_t* from = &staging[i + j][lane];
          first_of[j] = from[0], second_of[j] = from[32];
        }
        UNROLL
        for (int j = 0; j < kAtOnce; ++j, to += p.c.row_stride) {
          if (i + j < rows && first_inside) to[0] = first_of[j];
          if (i + j < rows && second_inside) to[32] = second_of[j];
        }
      }
    }
    __syncwarp();
  }
}

// --- Stores by TMA, while the warp goes on to the next tile --------------------------------------

// Shared memory has room for two boxes of each warp beside the stages of the widest tiles. A box
// has 128 bytes of each of the warp's 16 rows, and is swizzled by 128 bytes.
template <class Tile>
constexpr bool kStoresByTma = Tile::kN == 256;
using StoreBox = uint8_t[16 * kStagedCols16Bit * 2];

// Stores the rows of warp `warp` of the consumers. One box is filled while TMA reads the other.
template <class Tile>
__device__ void store_by_tma(const Problem& p, const StoreEnds& ends, const CUtensorMap& map,
                             const TileCoord& tile, int warp, StoreBox (&staging)[2],
                             const float (&acc)[Tile::kElements]) {
  const int lane = threadIdx.x % 32, row = tile.row + warp * 16;
  const TmaCoords matrix(p.batch, p.c, tile.batch);
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStagedCols16Bit) {
    StoreBox& box = staging[first / kStagedCols16Bit % 2];
    if (lane == 0) ptx::tma_store_wait_group_read<1>();
    __syncwarp();
    UNROLL
    for (int right = 0; right < kStagedCols16Bit; right += 16) {
      uint32_t packed[4];
      pack_16bit<Tile>(first + right, acc, packed);
      const int row_byte = (lane % 16) * kStagedCols16Bit * 2;
      const int byte_in_row = (right + lane / 16 * 8) * 2;
      ptx::stmatrix_x4(&box[row_byte + (byte_in_row ^ lane % 8 * 16)], packed);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      const int coords[] = {tile.col + first, row, matrix.at[0], matrix.at[1], matrix.at[2]};
      if (row < ends.row && coords[0] < ends.col) ptx::tma_store(&map, coords, box);
      ptx::tma_store_commit_group();
    }
  }
}

// --- The epilogue, and the choice among its stores -----------------------------------------------

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
  static constexpr int kReducedCols = Tile::kN % 32 == 0 ? 32 : 16;

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
    load_bias<typename Tile::T>(params.p.epilogue, 0, params.p.n, tile.col, 1 + warpgroup,
                                smem.bias[warpgroup]);
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
    const auto column = columns_of(tile);
    if (params.steps.bias_relu) apply_bias_relu(p.epilogue, bias, column, acc);
    if (params.steps.more) {
      apply_epilogue<false, T>(p, params.steps.combines, c_offset, row, tile.col, bias,
                               staging.rows, column, acc);
    }
    store_tile({p.m, p.n}, c_offset, tile, params.by_tma, acc);
  }
  // Stores what the tile has of the rows and columns before `ends`.
  __device__ void store_tile(const StoreEnds& ends, int64_t c_offset, const TileCoord& tile,
                             bool by_tma, float (&acc)[Tile::kElements]) const {
    using T = typename Tile::T;
    const Problem& p = params.p;
    const int warp = threadIdx.x / 32 - 4;
    const int64_t row = tile.row + warp * 16;
    Staging& staging = smem.staging[warp];
    const auto column = columns_of(tile);
    if constexpr (kStoresByTma<Tile>) {
      if (by_tma) return store_by_tma<Tile>(p, ends, params.c, tile, warp, staging.boxes, acc);
    }
    T* c = static_cast<T*>(p.c.data) + c_offset;
    if (params.is_16bit && params.vectorized_x8) {
      store_16bit<Tile, true>(p, ends, c, row, tile.col, staging.rows_16bit, acc);
    } else if (params.is_16bit) {
      store_16bit<Tile, false>(p, ends, c, row, tile.col, staging.rows_16bit, acc);
    } else {
      store_rows<T>(p, ends, params.vectorized_x4, c_offset, row, tile.col, staging.rows, column,
                    acc);
    }
  }
  // Returns column_in_tile() of the tile.
  __device__ static auto columns_of(const TileCoord& tile) {
    return
        [first = tile.col](int i) { return column_in_tile<Tile::kN, Tile::kNarrowBox>(i, first); };
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

// The epilogue's parameters for a problem and this tile. The caller sets the main loop's.
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
