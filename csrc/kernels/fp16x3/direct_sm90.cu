// fp16x3_direct: operand rows are split in registers, for many tiles of short K.
//
// Idea:  In a batch of small products the blocks of an SM hide each other's latency, and the
//        instructions for each element bound the time. So a warp loads whole operand rows into
//        registers, finds their range there, splits them, and stores the parts to shared memory as
//        ldmatrix reads them: each element is loaded and stored once. Elements not adjacent
//        along K are loaded twice instead, by threads that have a part of a row each. A block
//        computes several tiles, one after another, and keeps the rows that they share.
// Limit: The instructions that load, measure, split and store an element of an operand row: 12 to
//        15. A tile of 64 x 64 has too few products for each of them.
// Next:  fp16x3_wgmma, which splits each operand once.
//
//   the block   load, find the range, split -> smem.rows
//   a warp      multiplies its warp tile -> registers
//               descales it -> smem, as C's tile
//   the block   stores C, adjacent elements by adjacent threads
//   the block   goes on to its next tile: loads the rows that it does not share

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/complex.h"
#include "core/order_fp16x3.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/direct_rows.cuh"
#include "kernels/fp16x3/grouped.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace fp16x3_direct {

// --- Multiplying ---------------------------------------------------------------------------------

struct Params {
  OperandParams operands[2];       // A, B
  bool identity_epilogue;          // C is the sums unchanged
  unsigned long long* recomputed;  // counts recomputed elements, or null
  int64_t matrix, row, col;        // of this launch's first tile
  bool keeps_a;                    // A's rows are split once for all tiles of a block; else B's
  int tiles;                       // of a block
  Problem p;
  const GroupTile* group_tiles;  // of a grouped product: `row` is an index of these
};

// Multiplies a warp tile that begins at `row` and `col`, and adds its chunk sums, not descaled, to
// `total` and `low`.
template <class Tile>
__device__ void multiply(const uint8_t* rows, int row, int col, int k,
                         float (&total)[Tile::kWarpM / 16][Tile::kWarpN / 2],
                         float (&low)[Tile::kWarpM / 16][Tile::kWarpN / 2]) {
  constexpr int kRowTiles = Tile::kWarpM / 16, kColTiles = Tile::kWarpN / 8;
  static_assert(fp16x3::promotion(h200::kFp16x3DirectMostK) == 16);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int bytes = fp16x3_direct_pitch(k), to_lo = padded_k(k) * 2;
  const uint8_t* a = rows + (row + lane % 16) * bytes + lane / 16 * 16;
  const uint8_t* b =
      rows + (Tile::kM + col + lane % 8) * bytes + lane / 8 % 2 * 16 + lane / 16 * to_lo;
  _Pragma("unroll 2") for (int left = k; left > 0; left -= 16, a += 32, b += 32) {
    uint32_t a_hi[kRowTiles][4], a_lo[kRowTiles][4];
    uint32_t b_parts[kColTiles][4];  // of eight columns, two registers of hi, then two of lo
    UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      ptx::ldmatrix_x4(a_hi[i], a + i * 16 * bytes);
      ptx::ldmatrix_x4(a_lo[i], a + i * 16 * bytes + to_lo);
    }
    UNROLL
    for (int j = 0; j < kColTiles; ++j) ptx::ldmatrix_x4(b_parts[j], b + j * 8 * bytes);
    const auto each = [&](auto&& f) {
      UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        UNROLL
        for (int j = 0; j < kColTiles; ++j) f(i, j, *reinterpret_cast<float(*)[4]>(&low[i][j * 4]));
      }
    };
    float part[kRowTiles][kColTiles][4];
    each([&](int i, int j, float(&sums)[4]) {
      ptx::mma_m16n8k16(sums, a_lo[i], {b_parts[j][0], b_parts[j][1]});
    });
    each([&](int i, int j, float(&)[4]) {
      ptx::mma_m16n8k16_from_0(part[i][j], a_hi[i], {b_parts[j][0], b_parts[j][1]});
    });
    each([&](int i, int j, float(&sums)[4]) {
      ptx::mma_m16n8k16(sums, a_hi[i], {b_parts[j][2], b_parts[j][3]});
    });
    UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      UNROLL
      for (int e = 0; e < kColTiles * 4; ++e) total[i][e] += part[i][e / 4][e % 4];
    }
  }
}

// Stores an element of a group, with the group's bias.
inline __device__ __noinline__ void store_grouped(const Problem& p, int64_t group, int64_t row,
                                                  int64_t col, float sum) {
  const Epilogue& epilogue = p.epilogue;
  if (epilogue.bias != nullptr) {
    sum += static_cast<const float*>(
        epilogue.bias)[group * epilogue.bias_batch_stride + col * epilogue.bias_stride];
  }
  static_cast<float*>(p.c.data)[row * p.c.row_stride + col * p.c.col_stride] = sum;
}

// Stores zeros to some columns of the rows that no group has. All threads of the block call it.
inline __device__ __noinline__ void store_zeros(const Problem& p, const GroupTile& tile,
                                                int64_t first_col, int64_t end_col) {
  const int64_t cols = end_col - first_col;
  for (int64_t i = threadIdx.x; i < tile.count * cols; i += blockDim.x) {
    const int64_t row = tile.first + i / cols, col = first_col + i % cols;
    static_cast<float*>(p.c.data)[row * p.c.row_stride + col * p.c.col_stride] = 0;
  }
}

// C's tile in shared memory, in the order of C: row-major if kAlongCols, or else column-major. So
// adjacent threads store elements that are adjacent in C. A warp writes its accumulators
// without bank conflicts, as float2 along columns and as float along rows.
template <class Tile, bool kAlongCols>
struct Staged {
  static constexpr int kInner = kAlongCols ? Tile::kN : Tile::kM;
  static constexpr int kPitch = kInner + (kAlongCols ? 8 : 4);

  // Writes accumulators e and e + 1 of a thread, which are adjacent in a row of C.
  __device__ static void write(float* sums, int row, int col, float x, float y) {
    if constexpr (kAlongCols) {
      *reinterpret_cast<float2*>(sums + row * kPitch + col) = {x, y};
    } else {
      sums[col * kPitch + row] = x, sums[(col + 1) * kPitch + row] = y;
    }
  }

  __device__ static void store(const Params& params, const float* sums, int64_t c_offset,
                               int64_t batch, int64_t first_row, int64_t first_col, int rows,
                               int cols) {
    const Problem& p = params.p;
    const int inner = static_cast<int>(threadIdx.x) % kInner;
    const int first = static_cast<int>(threadIdx.x) / kInner;
    constexpr int kStep = Tile::kThreads / kInner, kOuter = kAlongCols ? Tile::kM : Tile::kN;
    static_assert(Tile::kThreads % kInner == 0);
    const int inner_count = kAlongCols ? cols : rows, outer_count = kAlongCols ? rows : cols;
    if (inner >= inner_count) return;
    const int64_t inner_stride = kAlongCols ? p.c.col_stride : p.c.row_stride;
    const int64_t outer_stride = kAlongCols ? p.c.row_stride : p.c.col_stride;
    sums += inner;
    uint32_t largest = 0;
    if (params.identity_epilogue) {
      float* c = static_cast<float*>(p.c.data) + c_offset + first_row * p.c.row_stride +
                 first_col * p.c.col_stride + inner * inner_stride + first * outer_stride;
      UNROLL
      for (int i = 0; i < kOuter; i += kStep) {
        if (first + i < outer_count) {
          const float sum = sums[(first + i) * kPitch];
          largest = max(largest, fp16x3::magnitude_bits(sum));
          *c = sum;
        }
        c += kStep * outer_stride;
      }
    }
    if (params.identity_epilogue && largest <= 0x7f800000u) return;  // none is NaN
    NO_UNROLL
    for (int outer = first; outer < outer_count; outer += kStep) {
      const int64_t row = first_row + (kAlongCols ? outer : inner);
      const int64_t col = first_col + (kAlongCols ? inner : outer);
      float sum = sums[outer * kPitch];
      if (isnan(sum)) {
        sum = recompute_element<Tile::kComplex>(p, params.operands[1].signs, batch, row, col,
                                                params.recomputed);
      } else if (params.identity_epilogue) {
        continue;
      }
      if constexpr (Tile::kGrouped) {
        store_grouped(p, batch, row, col, sum);
      } else {
        store_noinline(p, c_offset, row, col, sum);
      }
    }
  }
};

// Multiplies, descales, stages and stores a tile. Its operand rows are in shared memory.
template <class Tile, bool kAlongCols>
__device__ void finish_tile(const Params& params, Smem<Tile>& smem, float* sums, int64_t c_offset,
                            int64_t matrix, int64_t row, int64_t col, int rows, int cols) {
  using Out = Staged<Tile, kAlongCols>;
  constexpr int kRowTiles = Tile::kWarpM / 16, kElements = Tile::kWarpN / 2;
  constexpr int kWarpsDown = Tile::kM / Tile::kWarpM;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = warp % kWarpsDown * Tile::kWarpM;
  const int warp_col = warp / kWarpsDown * Tile::kWarpN;
  const bool has_elements = warp_row < rows && warp_col < cols;
  float total[kRowTiles][kElements] = {}, low[kRowTiles][kElements] = {};
  if (has_elements) {
    multiply<Tile>(smem.rows, warp_row, warp_col, static_cast<int>(params.p.k), total, low);
  }
  __syncthreads();
  if (has_elements) {
    const float* row_scales = smem.inverse_scale + warp_row + lane / 4;
    const float* col_scales = smem.inverse_scale + Tile::kM + warp_col + lane % 4 * 2;
    float2 col_scale[kElements / 4];
    UNROLL
    for (int j = 0; j < kElements / 4; ++j) {
      col_scale[j] = *reinterpret_cast<const float2*>(col_scales + j * 8);
    }
    UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      descale_chunk(total[i], low[i], {row_scales[i * 16], row_scales[i * 16 + 8]}, col_scale,
                    fp16x3::promotion(h200::kFp16x3DirectMostK));
      UNROLL
      for (int e = 0; e < kElements; e += 2) {
        Out::write(sums, warp_row + i * 16 + lane / 4 + e / 2 % 2 * 8,
                   warp_col + e / 4 * 8 + lane % 4 * 2, total[i][e], total[i][e + 1]);
      }
    }
  }
  __syncthreads();
  Out::store(params, sums, c_offset, matrix, row, col, rows, cols);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    fp16x3_direct_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const bool keeps_a = Tile::kGrouped || params.keeps_a;
  const int tiles = params.tiles;
  int64_t matrix = params.matrix + blockIdx.z;
  int group_rows = 0;
  int64_t row = params.row + int64_t{blockIdx.y} * (keeps_a ? 1 : tiles) * Tile::kM;
  int64_t col = params.col + int64_t{blockIdx.x} * (keeps_a ? tiles : 1) * Tile::kN;
  if constexpr (Tile::kGrouped) {
    ptx::pdl_wait();
    const GroupTile tile = params.group_tiles[params.row + blockIdx.y];
    if (tile.count == 0) return;
    matrix = tile.group, row = tile.first, group_rows = tile.count;
    if (tile.group == GroupTile::kNoGroup) {
      store_zeros(p, tile, col, min(col + int64_t{tiles} * Tile::kN, p.n));
      return;
    }
  }
  const BatchOffsets offsets(p, matrix);
  const int64_t c_offset = Tile::kGrouped ? 0 : offsets.c;  // groups share one C
  const int k = static_cast<int>(p.k);
  const auto& [a, b] = params.operands;
  const float* a_from = a.data + offsets.a + row * a.row_stride;
  const float* b_from = b.data + offsets.b + col * b.row_stride;
  // C's tile takes the place of the rows that are not kept.
  auto* sums =
      reinterpret_cast<float*>(smem.rows + (keeps_a ? Tile::kM * fp16x3_direct_pitch(k) : 0));
  ptx::pdl_wait();
  NO_UNROLL
  for (int i = 0; i < tiles && (Tile::kGrouped || row < p.m) && col < p.n; ++i) {
    const int rows =
        Tile::kGrouped ? group_rows : static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    const int cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
    if (i > 0) __syncthreads();  // C's tile is stored
    load_and_split<Tile>(params.operands, {a_from, rows, i == 0 || !keeps_a},
                         {b_from, cols, i == 0 || keeps_a}, k, smem);
    if (p.c.row_stride >= p.c.col_stride) {
      finish_tile<Tile, true>(params, smem, sums, c_offset, matrix, row, col, rows, cols);
    } else {
      finish_tile<Tile, false>(params, smem, sums, c_offset, matrix, row, col, rows, cols);
    }
    if (keeps_a) {
      col += Tile::kN, b_from += Tile::kN * b.row_stride;
    } else {
      row += Tile::kM, a_from += Tile::kM * a.row_stride;
    }
  }
}

namespace {

template <class Tile>
void launch(Params& params, const Context& context) {
  const Problem& p = params.p;
  const auto kernel = fp16x3_direct_kernel<Tile>;
  static_assert(sizeof(Smem<Tile>) == Tile::kThreads * 16 + Tile::kOperandRows * 4,
                "as fp16x3_direct_smem()");
  const auto bytes = static_cast<size_t>(fp16x3_direct_smem(p, Tile::kTile));
  allow_shared_memory(kernel, kMaxSharedMemory);
  const int m = Tile::kM * (params.keeps_a ? 1 : params.tiles);
  const int n = Tile::kN * (params.keeps_a ? params.tiles : 1);
  for_tile_grids(p, m, n, [&](int64_t matrix, int64_t row, int64_t col, dim3 grid) {
    params.matrix = matrix, params.row = row, params.col = col;
    launch_pdl(kernel, grid, Tile::kThreads, bytes, context, params);
  });
}

OperandParams operand_params(const Matrix& matrix, const SignsOfB& signs) {
  return {static_cast<const float*>(matrix.data), matrix.row_stride,
          static_cast<int>(matrix.col_stride), signs};
}

template <bool kComplex>
bool run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  params.operands[0] = operand_params(p.a, {});
  params.operands[1] = operand_params(transposed(p.b), signs_of_b);
  params.identity_epilogue = p.epilogue.is_identity();
  params.p = p;
  params.keeps_a = fp16x3_direct_keeps_a(p);
  params.tiles = plan.tiles_per_block;
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    params.recomputed = recomputed;
    return with_tile<std::size(h200::kFp16x3DirectTiles)>(plan.tile, [&]<int kIndex>() {
      launch<Tile<kIndex, kComplex>>(params, context);
      return true;
    });
  });
}

// The list says which rows of A a block has: it keeps the rows of one tile for tiles along N.
template <class Tile>
void launch_grouped_tiles(Params& params, const GroupTiles& list, const Context& context) {
  Problem rows = params.p;
  rows.m = list.most, rows.batch = {};
  const auto kernel = fp16x3_direct_kernel<Tile>;
  Problem wide = params.p;
  wide.m = 0;  // for which A is kept
  const auto bytes = static_cast<size_t>(fp16x3_direct_smem(wide, Tile::kTile));
  allow_shared_memory(kernel, kMaxSharedMemory);
  for_tile_grids(rows, 1, Tile::kN * params.tiles,
                 [&](int64_t, int64_t tile, int64_t col, dim3 grid) {
                   params.row = tile, params.col = col;
                   launch_pdl(kernel, grid, Tile::kThreads, bytes, context, params);
                 });
}

// The columns' tiles of a block: as many as leave enough blocks for all SMs, since the block splits
// its rows once for them.
int grouped_tiles_per_block(const Problem& p, const Plan& plan, int64_t row_tiles,
                            const Context& context) {
  const int64_t at_once = h200::kFp16x3DirectTiles[plan.tile].blocks * context.sms;
  int tiles = 1;
  while (tiles < h200::kFp16x3DirectMostTiles && tiles * plan.n < p.n &&
         row_tiles * ceil_div(p.n, plan.n * tiles * 2) >= at_once) {
    tiles *= 2;
  }
  return tiles;
}

}  // namespace
}  // namespace fp16x3_direct

bool launch_fp16x3_direct(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_direct::run<false>(p, plan, {}, context);
}

bool launch_grouped_fp16x3_direct(const Problem& p, const Plan& plan, const Context& context) {
  using namespace fp16x3_direct;
  Params params{};
  params.operands[0] = operand_params(p.a, {});
  params.operands[1] = operand_params(transposed(p.b), {});
  params.identity_epilogue = p.epilogue.is_identity();
  params.p = p;
  void* memory = context.allocate(
      workspace_bytes([&](Workspace& each) { GroupTiles::take(p, plan.m, each); }));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const GroupTiles list = GroupTiles::take(p, plan.m, workspace);
  launch_group_tiles(p, plan.m, 1, list, context);
  params.group_tiles = list.tiles;
  params.tiles = grouped_tiles_per_block(p, plan, list.most, context);
  return with_tile<std::size(h200::kFp16x3DirectTiles)>(plan.tile, [&]<int kIndex>() {
    launch_grouped_tiles<Tile<kIndex, false, true>>(params, list, context);
    return true;
  });
}

bool launch_fp16x3_direct_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                  const Context& context) {
  return fp16x3_direct::run<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
