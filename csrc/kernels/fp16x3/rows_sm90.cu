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
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/recompute_element.cuh"
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

// --- The tile, its shared memory and the kernel's parameters -------------------------------------

// Rows are those of the long operand, columns are rows of the short one: C's, or its transpose's.

template <int kIndex>
struct Tile {
  static constexpr h200::Fp16x3RowsTile kTile = h200::kFp16x3RowsTiles[kIndex];
  static constexpr int kRows = h200::kFp16x3RowsOfTile, kCols = kTile.cols;
  static constexpr int kMostSteps = kTile.k / 16;        // steps of 16 of K
  static constexpr int kFullSteps = fp16x3::kMinK / 16;  // that every K has
  static constexpr int kWarpgroup = 128, kWarpgroups = kTile.warpgroups;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kElements = kCols / 2;  // accumulators a thread
  static constexpr int kPromotion = fp16x3::promotion(kTile.k);
  static_assert(kPromotion == 16);
};

// Which two adjacent elements a thread loads or stores at once, if any. Pairs are aligned, and none
// is cut by the end of the matrix.
enum class Pairs { kNone, kOfRow, kOfColumn };

struct Params {
  Problem p;
  Matrix long_operand;                  // row_stride: between rows; col_stride: along K
  Pairs loads, stores;                  // of the long operand and of C
  Presplit presplit;                    // of the short operand
  int64_t short_stride[kMaxBatchRank];  // counts its stored matrices
  bool splits;                          // the previous kernel is the split of the short operand
  bool one_weight;                      // all matrices have the same short operand
  Fp16x3RowsGrid grid;
  int64_t c_row_stride, c_col_stride;
  bool bias_relu_at_most;          // is all that the epilogue has
  unsigned long long* recomputed;  // counts recomputed elements, or null
};

template <class Tile>
struct Smem {
  float sums[Tile::kWarpgroups][Tile::kElements][Tile::kWarpgroup];  // before rare epilogues
  float inverse_scales[kFp16x3RowsMostCols];                         // of the block's columns
  uint64_t full;
  int parity;    // of the phase of `full` that ends with the block's columns
  unsigned end;  // of the block's row tiles; both are here because registers are short
  alignas(1024) uint8_t parts[];  // of the block's columns, as in Presplit
};

// Up to 64 rows of a matrix.
struct RowTile {
  unsigned matrix;
  int rows;
  int64_t row;

  __device__ RowTile(const Params& params, unsigned tile) {
    matrix = tile / params.grid.tiles_of_matrix;
    row = int64_t{tile - matrix * params.grid.tiles_of_matrix} * h200::kFp16x3RowsOfTile;
    const int64_t left = params.grid.rows - row;
    rows = static_cast<int>(min(left, int64_t{h200::kFp16x3RowsOfTile}));
  }
};

// batch_offset() of a matrix, without the last division.
__device__ inline int64_t offset_of(const Batch& batch, const int64_t (&stride)[kMaxBatchRank],
                                    unsigned matrix) {
  int64_t offset = 0;
  NO_UNROLL
  for (int d = batch.rank - 1; d > 0; --d) {
    const auto size = static_cast<unsigned>(batch.size[d]);
    offset += matrix % size * stride[d];
    matrix /= size;
  }
  return offset + matrix * stride[0];
}

// --- The long operand ----------------------------------------------------------------------------

// A thread has two adjacent rows of a row tile: accumulators i are in row i / 2 % 2 of them. It has
// elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of every 16 of K, for q = lane % 4.
__device__ inline int first_row() {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 * 2;
}
__device__ inline int first_of_four() { return static_cast<int>(threadIdx.x) % 4 * 2; }

// Loads a thread's elements of a row tile, and zeros beyond K. Rows beyond the last one are the
// last ones again.
template <class Tile>
__device__ void load(const Params& params, const RowTile& tile,
                     float (&x)[2][Tile::kMostSteps * 4]) {
  const Matrix& from = params.long_operand;
  const int64_t row_stride = from.row_stride, k_stride = from.col_stride;
  const int row = min(first_row(), (tile.rows - 1) / 2 * 2), next = min(row + 1, tile.rows - 1);
  const int left = static_cast<int>(params.p.k) - first_of_four();
  const float* first = static_cast<const float*>(from.data) +
                       offset_of(params.p.batch, from.batch_stride, tile.matrix) +
                       first_of_four() * k_stride + tile.row * row_stride;
  const float* at[] = {first + row * row_stride, first + next * row_stride};
  const auto exists = [&](int e) {
    return e < Tile::kFullSteps * 4 || e / 4 * 16 + e / 2 % 2 * 8 + e % 2 < left;
  };
  UNROLL
  for (int e = Tile::kFullSteps * 4; e < Tile::kMostSteps * 4; ++e) x[0][e] = x[1][e] = 0;
  const auto load_strided = [&]<bool kPairs>() {
    UNROLL
    for (int e = 0; e < Tile::kMostSteps * 4; ++e) {
      if (kPairs && exists(e)) {
        const float2 x2 = __ldg(reinterpret_cast<const float2*>(at[0]));
        x[0][e] = x2.x, x[1][e] = x2.y;
      } else if (exists(e)) {
        x[0][e] = __ldg(at[0]), x[1][e] = __ldg(at[1]);
      }
      // Without this the compiler would keep a multiple of the stride for each element.
      UNROLL
      for (const float*& each : at) {
        each += e % 2 == 0 ? k_stride : 7 * k_stride;
        asm volatile("" : "+l"(each));
      }
    }
  };
  if (params.loads == Pairs::kOfRow) {
    UNROLL
    for (int e = 0; e < Tile::kMostSteps * 4; e += 2) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        if (!exists(e)) continue;
        const float2 x2 = __ldg(reinterpret_cast<const float2*>(at[i] + e * 4));
        x[i][e] = x2.x, x[i][e + 1] = x2.y;
      }
    }
  } else if (params.loads == Pairs::kOfColumn) {
    load_strided.template operator()<true>();
  } else {
    load_strided.template operator()<false>();
  }
}

// Loads a row tile into L2, if it is contiguous along one side. A warpgroup calls it.
template <class Tile>
__device__ void prefetch(const Params& params, const RowTile& tile) {
  constexpr int kLine = kCacheLineBytes / sizeof(float);
  const Matrix& from = params.long_operand;
  const bool k_major = from.col_stride == 1;
  if (!k_major && from.row_stride != 1) return;
  const int k = static_cast<int>(params.p.k);
  const int inner = k_major ? k : tile.rows, outer = k_major ? tile.rows : k;
  const int64_t stride = k_major ? from.row_stride : from.col_stride;
  const float* first = static_cast<const float*>(from.data) +
                       offset_of(params.p.batch, from.batch_stride, tile.matrix) +
                       tile.row * from.row_stride;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kWarpgroup;
  NO_UNROLL
  for (int i = thread / 2; i < outer; i += Tile::kWarpgroup / 2) {
    NO_UNROLL
    for (int j = thread % 2 * kLine; j < inner; j += 2 * kLine) {
      ptx::prefetch_l2(first + i * stride + j);
    }
  }
}

// The fragments of a thread's rows: A of wgmma, for each 16 of K.
template <class Tile>
struct Parts {
  uint32_t hi[Tile::kMostSteps][4], lo[Tile::kMostSteps][4];
  float inverse_scales[2];

  // Splits the rows. Four lanes have a row.
  __device__ void split(const float (&x)[2][Tile::kMostSteps * 4]) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      Range range;
      range.add_all(x[i]);
      range.add_lane(1);
      range.add_lane(2);
      const float scale = fp16x3::scale(range.largest);
      uint32_t small_numbers = 0;
      if (__any_sync(~0u, range.is_wide(scale))) {
        small_numbers = count_small_numbers(x[i], scale);
        small_numbers += __shfl_xor_sync(~0u, small_numbers, 1);
        small_numbers += __shfl_xor_sync(~0u, small_numbers, 2);
      }
      inverse_scales[i] =
          fp16x3::inverse_scale(range.largest, small_numbers, range.is_coarse(scale));
      UNROLL
      for (int e = 0; e < Tile::kMostSteps * 4; e += 2) {
        const int at = i + e / 2 % 2 * 2;
        ptx::split_x2(x[i][e] * scale, x[i][e + 1] * scale, hi[e / 4][at], lo[e / 4][at]);
      }
    }
  }
};

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

// Stores a thread's sums one by one, after any epilogue, and recomputes flagged ones. The sums are
// in Smem::sums.
template <class Tile, bool kLongIsA>
__device__ __noinline__ void store_each(const Params& params, const float* sums, unsigned index,
                                        int rows, int col, int cols) {
  const RowTile tile(params, index);
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
    store<float>(params.p, c_offset, m, n, sum);
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
    const int64_t first = kLongIsA ? place.col : RowTile(params, place.tile).row + first_row();
    const float* bias = static_cast<const float*>(epilogue.bias) + first * epilogue.bias_stride;
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
  const RowTile tile(params, index);
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
  if (!params.splits) ptx::pdl_wait();
  const Fp16x3RowsGrid& grid = params.grid;
  const unsigned first_tile = blockIdx.x * grid.block_tiles;
  const auto bound = [&](unsigned i) {
    return static_cast<unsigned>(uint64_t{grid.tiles} * i / gridDim.y);
  };
  if (threadIdx.x == 0) smem.end = bound(blockIdx.y + 1);
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup;
  // The block's row tiles, in parts that share a matrix of the short operand.
  NO_UNROLL
  for (unsigned begin = bound(blockIdx.y), next; begin < smem.end; begin = next) {
    const unsigned matrix = begin / grid.tiles_of_matrix;
    next = params.one_weight ? smem.end : min(smem.end, (matrix + 1) * grid.tiles_of_matrix);
    unsigned i = begin + warpgroup;
    if (i < next) prefetch<Tile>(params, RowTile(params, i));
    const int64_t of_short = offset_of(params.p.batch, params.short_stride, matrix);
    load_short<Tile>(params, of_short, first_tile, smem);
    NO_UNROLL
    for (; i < next; i += Tile::kWarpgroups) {
      Parts<Tile> rows;
      {
        float x[2][Tile::kMostSteps * 4];
        load<Tile>(params, RowTile(params, i), x);
        rows.split(x);
      }
      if (i + Tile::kWarpgroups < next) {
        prefetch<Tile>(params, RowTile(params, i + Tile::kWarpgroups));
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

template <class Tile>
void launch(const Params& params, bool long_is_a, const Context& context) {
  static_assert(sizeof(Smem<Tile>) == fp16x3_rows_header(Tile::kTile));
  const auto kernel = long_is_a ? fp16x3_rows_kernel<Tile, true> : fp16x3_rows_kernel<Tile, false>;
  allow_shared_memory(kernel, kMaxSharedMemory);
  launch_pdl(kernel, dim3(params.grid.col_blocks, params.grid.ranges), Tile::kThreads,
             static_cast<size_t>(fp16x3_rows_smem(params.p, params.grid.block_tiles)), context,
             params);
}

}  // namespace
}  // namespace fp16x3_rows

bool launch_fp16x3_rows(const Problem& p, const Plan& plan, const Context& context) {
  using namespace fp16x3_rows;
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
    if (params.splits) {
      void* memory = context.allocate(fp16x3_rows_workspace(p, plan, context.sms)[0]);
      if (memory == nullptr) return false;
      Workspace workspace(memory);
      params.presplit = Fp16x3RowsBuffers(p, workspace).short_operand;
      Matrix index;
      const StoredBatch stored = stored_batch(p.batch, sides.short_operand, 1, index);
      std::copy(std::begin(index.batch_stride), std::end(index.batch_stride), params.short_stride);
      const OperandToSplit short_operand{
          .matrix = stored.from, .batch = stored.batch, .presplit = params.presplit};
      launch_split({&short_operand, 1}, {}, context);
    } else {
      params.presplit = p.b_presplit;
    }
    return with_tile<std::size(h200::kFp16x3RowsTiles)>(plan.tile, [&]<int kIndex>() {
      launch<Tile<kIndex>>(params, sides.long_is_a, context);
      return true;
    });
  });
}

}  // namespace tiled::cuda
