// fp16x3_rows: rows are split in registers and multiplied from there, for short K and long rows.
//
// Idea:  If K is short, a product of many rows and a small weight is bound by memory and by the
//        instructions for each element. So each element of a long row passes through registers
//        once: a warpgroup loads 64 rows in the layout of wgmma's A fragment, finds their ranges,
//        splits them in place, and multiplies them by all columns of the block. The short operand
//        is split beforehand (split_sm90.cu), and a block keeps its parts for all of K in shared
//        memory. Warpgroups of an SM take row tiles independently of each other, so that one loads
//        and splits while another one multiplies; L2 is asked for the next row tile beforehand.
// Limit: A row tile waits for its loads, its split and its products, and there are registers for
//        only two or three warpgroups on an SM.
// Next:  Loads of the next row tile that need no registers, by TMA.
//
//   one thread    bulk copies of the short operand's parts               -> full
//   a warpgroup   loads 64 rows, finds their ranges, splits them         -> registers
//                 waits for full
//                 for 64 columns at a time: part = hi hi; low += lo hi, hi lo; total += part
//                                           descales the total, stores C

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "core/epilogue.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/stored_batch.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/grouped.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/rows_split.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/ld_global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace fp16x3_rows {

namespace wgmma = ptx::wgmma;

// --- The short operand ---------------------------------------------------------------------------

// Loads the parts and the inverse scales of a block's columns. All threads call it; at its end the
// inverse scales are there, and smem.full says when the parts are.
template <class Tile>
__device__ void load_short(const Params& params, int64_t matrix, unsigned first_tile,
                           Smem<Tile>& smem) {
  const Presplit& presplit = params.presplit;
  const int64_t first_col = int64_t{first_tile} * Presplit::kRows;
  const int64_t padded_cols = presplit.padded_rows() - first_col;
  __syncthreads();  // the parts before are multiplied
  if (params.splits) ptx::pdl_wait();
  if (threadIdx.x == 0) {
    const int cols =
        static_cast<int>(min(padded_cols, int64_t{params.grid.block_tiles} * Presplit::kRows));
    const int steps = static_cast<int>(presplit.padded_k() / Presplit::kK);
    smem.parity ^= 1;
    ptx::arrive_expect_tx(&smem.full, steps * 2 * Presplit::plane_bytes(cols));
    uint8_t* to = smem.parts;
    for (int left = cols; left > 0; left -= Presplit::kRows, ++first_tile) {
      const int bytes = 2 * Presplit::plane_bytes(presplit.tile_rows(first_tile));
      const uint8_t* from = presplit.hi_lo + presplit.step_offset(matrix, first_tile, 0);
      for (int step = 0; step < steps; ++step, from += bytes, to += bytes) {
        ptx::bulk_load(to, from, bytes, &smem.full);
      }
    }
  }
  const float* from = presplit.inverse_scales + matrix * presplit.padded_rows() + first_col;
  for (int i = static_cast<int>(threadIdx.x); i < kFp16x3RowsMostCols; i += Tile::kThreads) {
    smem.inverse_scales[i] = i < padded_cols ? from[i] : 0;
  }
  __syncthreads();
}

// --- Multiplying ---------------------------------------------------------------------------------

// Multiplies a row tile by kCols columns. `hi` is the low word of the descriptor of their hi parts,
// and lo parts follow at `to_lo`.
template <class Tile, bool kLongIsA>
__device__ void multiply(Parts<Tile>& rows, uint32_t hi, uint32_t to_lo, int k,
                         float (&total)[Tile::kElements], float (&low)[Tile::kElements]) {
  float part[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) total[i] = low[i] = part[i] = 0;
  wgmma::fence_operand(rows.hi);
  wgmma::fence_operand(rows.lo);
  // Multiplies 16 of K, and returns whether others follow.
  const auto step = [&]<size_t kStep>() {
    const uint64_t b_hi = wgmma::descriptor(hi), b_lo = wgmma::descriptor(hi + to_lo);
    hi += kStep % 2 == 0 ? 2 : 2 * to_lo - 2;
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    wgmma::mma(part, rows.hi[kStep], b_hi, false);
    wgmma::commit_group();
    // The order has lo_a hi_b first, whichever operand A is.
    if constexpr (kLongIsA) {
      wgmma::mma(low, rows.lo[kStep], b_hi);
      wgmma::mma(low, rows.hi[kStep], b_lo);
    } else {
      wgmma::mma(low, rows.hi[kStep], b_lo);
      wgmma::mma(low, rows.lo[kStep], b_hi);
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] += part[i];
    return kStep + 1 < Tile::kFullSteps || static_cast<int>(kStep) * 16 + 16 < k;
  };
  [&]<size_t... kSteps>(std::index_sequence<kSteps...>) {
    (step.template operator()<kSteps>() && ...);
  }(std::make_index_sequence<Tile::kMostSteps>());
  wgmma::wait_group<0>();
  wgmma::fence_operand(low);
  wgmma::fence_operand(rows.hi);
  wgmma::fence_operand(rows.lo);
}

// --- The epilogue --------------------------------------------------------------------------------

// A thread's accumulator i is in row i / 2 % 2 of its `rows` rows, and in column i / 4 * 8 + i % 2
// of its `cols` columns, from `col` on.
struct Place {
  unsigned tile;  // the row tile, which is located again for rare epilogues
  int rows, col, cols;
};

// The bias of a group's column.
__device__ inline float load_bias(const Params& params, unsigned group, int64_t col) {
  const Epilogue& epilogue = params.p.epilogue;
  if (epilogue.bias == nullptr) return 0;
  return __ldg(static_cast<const float*>(epilogue.bias) + group * epilogue.bias_batch_stride +
               col * epilogue.bias_stride);
}

// Stores a thread's sums one by one, after any epilogue, and recomputes flagged ones. The sums are
// in Smem::sums.
template <class Tile, bool kLongIsA>
__device__ __noinline__ void store_each(const Params& params, const float* sums, unsigned index,
                                        int rows, int col, int cols) {
  const RowTile<Tile> tile(params, index);
  const int64_t row = tile.row + first_row();
  const int64_t c_offset = offset_of(params.p.batch, params.p.c.batch_stride, tile.matrix);
  NO_UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const int down = i / 2 % 2, right = i / 4 * 8 + i % 2;
    if (down >= rows || right >= cols) continue;
    const int64_t m = kLongIsA ? row + down : col + right;
    const int64_t n = kLongIsA ? col + right : row + down;
    float sum = sums[i * Tile::kWarpgroup];
    if (isnan(sum)) sum = recompute_by_thread(params.p, tile.matrix, m, n, params.recomputed);
    if constexpr (Tile::kGrouped) {
      const float bias = load_bias(params, tile.matrix, n);
      static_cast<float*>(params.p.c.data)[m * params.c_row_stride + n * params.c_col_stride] =
          params.p.epilogue.bias == nullptr ? sum : sum + bias;
    } else {
      store<float>(params.p, c_offset, m, n, sum);
    }
  }
}

// Stores a thread's sums, which are in C from `to` on. All threads of a warp call it.
template <class Tile, bool kLongIsA>
__device__ void store_sums(const Params& params, const Place& place, float* to, Smem<Tile>& smem,
                           float (&sums)[Tile::kElements]) {
  const auto has = [&](int i) { return i / 2 % 2 < place.rows && i / 4 * 8 + i % 2 < place.cols; };
  bool possible = params.bias_relu_at_most;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) possible &= !isnan(sums[i]) || !has(i);
  if (!__all_sync(~0u, possible)) {
    float* rare = &smem.sums[threadIdx.x / Tile::kWarpgroup][0][threadIdx.x % Tile::kWarpgroup];
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) rare[i * Tile::kWarpgroup] = sums[i];
    return store_each<Tile, kLongIsA>(params, rare, place.tile, place.rows, place.col, place.cols);
  }
  const Epilogue& epilogue = params.p.epilogue;
  if (epilogue.bias != nullptr) {
    const int64_t first =
        kLongIsA ? place.col : RowTile<Tile>(params, place.tile).row + first_row();
    const float* bias = static_cast<const float*>(epilogue.bias) + first * epilogue.bias_stride;
    if constexpr (Tile::kGrouped) {
      bias += RowTile<Tile>(params, place.tile).matrix * epilogue.bias_batch_stride;
    }
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) {
      const int at = kLongIsA ? i / 4 * 8 + i % 2 : i / 2 % 2;
      if (has(i)) sums[i] += __ldg(bias + at * epilogue.bias_stride);
    }
  }
  if (epilogue.activation == Activation::kRelu) {
    UNROLL
    for (float& sum : sums) sum = activate(Activation::kRelu, sum);
  }
  const auto at = [&](int i) {
    return to + i / 2 % 2 * params.c_row_stride + (i / 4 * 8 + i % 2) * params.c_col_stride;
  };
  if (params.stores == Pairs::kOfRow) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 2) {
      if (has(i)) *reinterpret_cast<float2*>(at(i)) = {sums[i], sums[i + 1]};
    }
  } else if (params.stores == Pairs::kOfColumn) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += i % 2 == 0 ? 1 : 3) {
      if (has(i)) *reinterpret_cast<float2*>(at(i)) = {sums[i], sums[i + 2]};
    }
  } else {
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) {
      if (has(i)) *at(i) = sums[i];
    }
  }
}

// --- The kernel ----------------------------------------------------------------------------------

// Multiplies a row tile by all columns of the block.
template <class Tile, bool kLongIsA>
__device__ void multiply_row_tile(const Params& params, unsigned index, unsigned first_tile,
                                  Parts<Tile>& rows, Smem<Tile>& smem) {
  const Presplit& presplit = params.presplit;
  const int first_col = static_cast<int>(first_tile) * Presplit::kRows;
  const int cols = min(static_cast<int>(presplit.rows) - first_col,
                       static_cast<int>(params.grid.block_tiles) * Presplit::kRows);
  const RowTile<Tile> tile(params, index);
  Place place{.tile = index,
              .rows = min(tile.rows - first_row(), 2),
              .col = first_col + first_of_four(),
              .cols = cols - first_of_four()};
  float* to = static_cast<float*>(params.p.c.data) +
              offset_of(params.p.batch, params.p.c.batch_stride, tile.matrix) +
              (tile.row + first_row()) * params.c_row_stride + place.col * params.c_col_stride;
  NO_UNROLL
  for (int col = 0; col < cols; col += Tile::kCols) {
    const int of_block = col / Presplit::kRows;
    const int to_lo = Presplit::plane_bytes(presplit.tile_rows(first_tile + of_block));
    const int offset = of_block * Presplit::kRows * static_cast<int>(presplit.padded_k()) * 4 +
                       Presplit::plane_bytes(col % Presplit::kRows);
    float total[Tile::kElements], low[Tile::kElements];
    multiply<Tile, kLongIsA>(rows, wgmma::descriptor_low_word(smem.parts + offset),
                             static_cast<uint32_t>(to_lo) / 16, static_cast<int>(params.p.k), total,
                             low);
    float2 col_scales[Tile::kElements / 4];
    UNROLL
    for (int j = 0; j < Tile::kElements / 4; ++j) {
      col_scales[j] =
          *reinterpret_cast<const float2*>(&smem.inverse_scales[col + j * 8 + first_of_four()]);
    }
    descale_chunk(total, low, rows.inverse_scales, col_scales, Tile::kPromotion);
    store_sums<Tile, kLongIsA>(params, place, to, smem, total);
    place.col += Tile::kCols, place.cols -= Tile::kCols, to += Tile::kCols * params.c_col_stride;
  }
}

// How many row tiles there are; the matrix of the short operand that one of them has, or the group;
// and the first row tile behind those with the same one.
template <class Tile>
__device__ unsigned count_row_tiles(const Params& params) {
  if constexpr (!Tile::kGrouped) return params.grid.tiles;
  return static_cast<unsigned>(params.groups.first_tile[params.p.batch.count + 1]);
}
template <class Tile>
__device__ unsigned matrix_of(const Params& params, unsigned tile) {
  if constexpr (!Tile::kGrouped) return tile / params.grid.tiles_of_matrix;
  return static_cast<unsigned>(params.groups.tiles[tile].group);
}
template <class Tile>
__device__ unsigned end_of_matrix(const Params& params, unsigned matrix) {
  if (params.one_weight) return ~0u;
  if constexpr (!Tile::kGrouped) return (matrix + 1) * params.grid.tiles_of_matrix;
  const bool exists = matrix != static_cast<unsigned>(GroupTile::kNoGroup);
  return exists ? static_cast<unsigned>(params.groups.first_tile[matrix + 1]) : ~0u;
}

// Sets rows that no group has to 0, in all columns of the block. A warpgroup calls it.
template <class Tile>
__device__ void store_zeros(const Params& params, unsigned index, unsigned first_tile) {
  const RowTile<Tile> tile(params, index);
  const int64_t first_col = int64_t{first_tile} * Presplit::kRows;
  const int cols = static_cast<int>(
      min(params.p.n - first_col, int64_t{params.grid.block_tiles} * Presplit::kRows));
  for (int i = static_cast<int>(threadIdx.x) % Tile::kWarpgroup; i < tile.rows * cols;
       i += Tile::kWarpgroup) {
    static_cast<float*>(params.p.c.data)[(tile.row + i / cols) * params.c_row_stride +
                                         (first_col + i % cols) * params.c_col_stride] = 0;
  }
}

template <class Tile, bool kLongIsA>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_rows_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&smem.full, 1);
    smem.parity = 1;
    ptx::fence_mbarrier_init();
  }
  ptx::pdl_launch_dependents();
  if (Tile::kGrouped || !params.splits) ptx::pdl_wait();
  const Fp16x3RowsGrid& grid = params.grid;
  const unsigned first_tile = blockIdx.x * grid.block_tiles;
  const auto bound = [&](unsigned i) {
    return static_cast<unsigned>(uint64_t{count_row_tiles<Tile>(params)} * i / gridDim.y);
  };
  if (threadIdx.x == 0) smem.end = bound(blockIdx.y + 1);
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup;
  // The block's row tiles, in parts that share a matrix of the short operand.
  NO_UNROLL
  for (unsigned begin = bound(blockIdx.y), next; begin < smem.end; begin = next) {
    const unsigned matrix = matrix_of<Tile>(params, begin);
    next = min(smem.end, end_of_matrix<Tile>(params, matrix));
    unsigned i = begin + warpgroup;
    if constexpr (Tile::kGrouped) {
      if (matrix == static_cast<unsigned>(GroupTile::kNoGroup)) {
        for (; i < next; i += Tile::kWarpgroups) store_zeros<Tile>(params, i, first_tile);
        continue;
      }
    }
    if (i < next) prefetch<Tile>(params, RowTile<Tile>(params, i));
    const int64_t of_short = offset_of(params.p.batch, params.short_stride, matrix);
    load_short<Tile>(params, of_short, first_tile, smem);
    NO_UNROLL
    for (; i < next; i += Tile::kWarpgroups) {
      Parts<Tile> rows;
      {
        float x[2][Tile::kMostSteps * 4];
        load<Tile>(params, RowTile<Tile>(params, i), x);
        rows.split(x);
      }
      if (i + Tile::kWarpgroups < next) {
        prefetch<Tile>(params, RowTile<Tile>(params, i + Tile::kWarpgroups));
      }
      ptx::mbarrier_wait(&smem.full, smem.parity);
      multiply_row_tile<Tile, kLongIsA>(params, i, first_tile, rows, smem);
    }
  }
}

namespace {

// The pairs of a matrix of that many rows and columns, as the kernel sees them.
template <class Void>
Pairs pairs_of(const Problem& p, const MatrixOf<Void>& matrix, int64_t row_stride,
               int64_t col_stride, int64_t rows, int64_t cols) {
  const auto aligned = [&](int64_t inner, int64_t outer) {
    return is_vector_aligned<float2>(p.batch, matrix, inner, outer);
  };
  if (cols % 2 == 0 && aligned(col_stride, row_stride)) return Pairs::kOfRow;
  if (rows % 2 == 0 && aligned(row_stride, col_stride)) return Pairs::kOfColumn;
  return Pairs::kNone;
}

template <class Tile, bool kLongIsA>
void launch(const Params& params, const Context& context) {
  static_assert(sizeof(Smem<Tile>) == fp16x3_rows_header(Tile::kTile));
  const auto kernel = fp16x3_rows_kernel<Tile, kLongIsA>;
  allow_shared_memory(kernel, kMaxSharedMemory);
  launch_pdl(kernel, dim3(params.grid.col_blocks, params.grid.ranges), Tile::kThreads,
             static_cast<size_t>(fp16x3_rows_smem(params.p, params.grid.block_tiles)), context,
             params);
}

// What a launch needs besides the operands and C.
struct Buffers {
  Presplit short_operand;
  GroupTiles groups;

  Buffers(const Problem& p, bool grouped, Workspace& workspace) {
    if (fp16x3_rows_splits(p)) short_operand = Fp16x3RowsBuffers(p, workspace).short_operand;
    if (grouped) groups = GroupTiles::take(p, h200::kFp16x3RowsOfTile, workspace);
  }
};

bool run(const Problem& p, const Plan& plan, bool grouped, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  const LongAndShort sides = long_and_short(p);
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    Params params{};
    params.p = p;
    params.recomputed = recomputed;
    params.bias_relu_at_most = p.epilogue.is_bias_relu_at_most();
    params.grid = fp16x3_rows_grid(p, context.sms);
    params.long_operand = sides.long_operand;
    params.loads = pairs_of(p, params.long_operand, params.long_operand.row_stride,
                            params.long_operand.col_stride, sides.long_count, p.k);
    params.c_row_stride = sides.long_is_a ? p.c.row_stride : p.c.col_stride;
    params.c_col_stride = sides.long_is_a ? p.c.col_stride : p.c.row_stride;
    params.stores = pairs_of(p, p.c, params.c_row_stride, params.c_col_stride, sides.long_count,
                             sides.short_count);
    params.splits = fp16x3_rows_splits(p);
    params.one_weight = stored_matrices(p.batch, sides.short_operand) == 1;
    const auto take = [&](Workspace& workspace) { return Buffers(p, grouped, workspace); };
    const int64_t bytes = workspace_bytes(take);
    void* memory = bytes > 0 ? context.allocate(bytes) : nullptr;
    if (bytes > 0 && memory == nullptr) return false;
    Workspace workspace(memory);
    const Buffers buffers = take(workspace);
    if (grouped) {
      params.groups = buffers.groups;
      params.one_weight = false;
      // The rows of a group may begin anywhere.
      for (Pairs* pairs : {&params.loads, &params.stores}) {
        if (*pairs == Pairs::kOfColumn) *pairs = Pairs::kNone;
      }
      launch_group_tiles(p, h200::kFp16x3RowsOfTile, 1, buffers.groups, context);
    }
    params.presplit = params.splits ? buffers.short_operand : p.b_presplit;
    if (params.splits) {
      Matrix index;
      const StoredBatch stored = stored_batch(p.batch, sides.short_operand, 1, index);
      std::copy(std::begin(index.batch_stride), std::end(index.batch_stride), params.short_stride);
      const OperandToSplit short_operand{
          .matrix = stored.from, .batch = stored.batch, .presplit = params.presplit};
      launch_split({&short_operand, 1}, {}, context);
    }
    return with_tile<std::size(h200::kFp16x3RowsTiles)>(plan.tile, [&]<int kIndex>() {
      if (grouped) {
        launch<Tile<kIndex, true>, true>(params, context);
      } else if (sides.long_is_a) {
        launch<Tile<kIndex>, true>(params, context);
      } else {
        launch<Tile<kIndex>, false>(params, context);
      }
      return true;
    });
  });
}

}  // namespace
}  // namespace fp16x3_rows

bool launch_fp16x3_rows(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_rows::run(p, plan, false, context);
}

bool launch_grouped_fp16x3_rows(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_rows::run(p, plan, true, context);
}

}  // namespace tiled::cuda
