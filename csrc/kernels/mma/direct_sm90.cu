// mma_direct: 16-bit products straight from global memory to registers, a warp for each tile.
//
// Idea:  A small product takes less time than a tensor map, a copy to aligned rows or a barrier.
//        With a short K a product needs each element about once. So a warp loads the fragments of
//        its own tile from global memory, whatever their strides, and multiplies them by mma.sync.
//        It needs no shared memory and waits for no other warp. Several steps of K are in flight.
//        Tiles of all matrices share a grid.
// Limit: The instructions that load single elements; neighbouring tiles load the same elements from
//        L1 or L2. A chain of K / 16 dependent mma.sync, 33 cycles each.
// Next:  mma_unaligned and mma_tma: their blocks load each element once for a larger tile.
//
//   a warp      load kStepsInFlight steps of 16 of K                        (registers)
//               mma.sync of a step; load the step kStepsInFlight later      (K / 16 times)
//               store the tile
//
// `rows` are A's and `cols` B's, or the other way around if C has more columns than rows and the
// tile is narrow.

#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/plan.h"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace mma_direct {

// An operand row is a row of A or a column of B. A fragment is 16 operand rows by 16 of K. Lane l
// has operand rows 2g and 2g + 1, g = l / 4, at k = 4q .. 4q + 3, q = l % 4. Both operands are
// loaded alike, and their k and rows are in another order than mma.sync names them, which changes
// no bits: the tensor core adds the 16 products of a sum exactly (cpu/tensor_core.h).

using LoadMode = MmaDirectLoads;

struct Operand {
  const uint16_t* data;
  int64_t row_stride, k_stride;
  int64_t count;  // of operand rows
};

// What a lane has loaded of a fragment: pairs, or elements.
template <LoadMode kMode>
struct Loaded {
  uint32_t x[kMode == LoadMode::kElements ? 8 : 4];
};

// The lane's two operand rows of a fragment, at its first k. Rows beyond the operand's end are
// replaced by its last ones, since nothing they reach is stored.
template <LoadMode kMode>
class RowPair {
 public:
  RowPair() = default;
  __device__ RowPair(const Operand& operand, int64_t batch_offset, int64_t first) {
    const int lane = threadIdx.x % 32;
    int64_t row = min(first + lane / 4 * 2, operand.count - 1);
    if (kMode == LoadMode::kMnMajorPairs) row &= ~int64_t{1};  // the last pair is whole
    first_ =
        operand.data + batch_offset + row * operand.row_stride + lane % 4 * 4 * operand.k_stride;
    second_ = row + 1 < operand.count ? first_ + operand.row_stride : first_;
  }

  // Loads 16 of K and moves on to the next 16. `k_left` of K are left, from the fragment's first.
  __device__ Loaded<kMode> load(const Operand& operand, int k_left) {
    Loaded<kMode> to;
    const int64_t k_stride = kMode == LoadMode::kKMajorPairs ? 1 : operand.k_stride;
    const int inside = k_left - static_cast<int>(threadIdx.x) % 4 * 4;
    if constexpr (kMode == LoadMode::kElements) {
      UNROLL
      for (int i = 0; i < 4; ++i) {
        to.x[i] = i < inside ? __ldg(first_ + i * k_stride) : 0;
        to.x[4 + i] = i < inside ? __ldg(second_ + i * k_stride) : 0;
      }
      second_ += 16 * k_stride;
    } else if constexpr (kMode == LoadMode::kKMajorPairs) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        to.x[i] = i * 2 < inside ? load_pair(first_ + i * 2) : 0;
        to.x[2 + i] = i * 2 < inside ? load_pair(second_ + i * 2) : 0;
      }
      second_ += 16;
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i) to.x[i] = i < inside ? load_pair(first_ + i * k_stride) : 0;
    }
    first_ += 16 * k_stride;
    return to;
  }

 private:
  static __device__ uint32_t load_pair(const uint16_t* from) {
    return __ldg(reinterpret_cast<const uint32_t*>(from));
  }

  const uint16_t *first_, *second_;
};

// A fragment as mma.sync takes it: the first two k of both rows, then the other two.
struct Fragment {
  uint32_t x[4];

  template <LoadMode kMode>
  __device__ explicit Fragment(const Loaded<kMode>& from) {
    const auto low = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); };
    const auto high = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); };
    const auto& y = from.x;
    if constexpr (kMode == LoadMode::kElements) {
      x[0] = low(y[0], y[1]), x[1] = low(y[4], y[5]);
      x[2] = low(y[2], y[3]), x[3] = low(y[6], y[7]);
    } else if constexpr (kMode == LoadMode::kKMajorPairs) {
      x[0] = y[0], x[1] = y[2], x[2] = y[1], x[3] = y[3];
    } else {
      x[0] = low(y[0], y[1]), x[1] = high(y[0], y[1]);
      x[2] = low(y[2], y[3]), x[3] = high(y[2], y[3]);
    }
  }
};

inline constexpr int kWarps = 4, kThreads = kWarps * 32;

// kRows x kCols fragments, each 16 x 16 elements of C.
template <class T_, int kIndex, LoadMode kRowsMode_, LoadMode kColsMode_>
struct Tile {
  using T = T_;
  static constexpr int kRows = h200::kMmaDirectTiles[kIndex].rows;
  static constexpr int kCols = h200::kMmaDirectTiles[kIndex].cols;
  static constexpr LoadMode kRowsMode = kRowsMode_, kColsMode = kColsMode_;
  static constexpr int kStepsInFlight =
      h200::kMmaDirectTiles[kIndex].ahead;  // steps of K in flight
  static constexpr int kBlocksPerSm = h200::kMmaDirectTiles[kIndex].blocks;
};

struct Params {
  Problem p;
  Operand rows, cols;
  OutMatrix c;  // row_stride along `rows`
  bool swapped;
  bool plain;       // C is the sums unchanged, in the operands' type
  bool vectorized;  // and takes four adjacent columns at once
  FastDivmod row_tiles, col_tiles;
  int64_t first_tile, tiles;
};

template <class T>
__device__ __noinline__ void store_noinline(const Params& params, int64_t c_offset, int64_t row,
                                            int64_t col, float sum) {
  store<T>(params.p, c_offset, params.swapped ? col : row, params.swapped ? row : col, sum);
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, Tile::kBlocksPerSm)
    mma_direct_kernel(const __grid_constant__ Params params) {
  using T = typename Tile::T;
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int lane = threadIdx.x % 32;
  const int64_t index = params.first_tile + int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= params.tiles) return;
  const int64_t row_of_tiles = params.col_tiles.divide(index);
  const int64_t matrix = params.row_tiles.divide(row_of_tiles);
  const int64_t row = (row_of_tiles - matrix * params.row_tiles.by) * (Tile::kRows * 16);
  const int64_t col = (index - row_of_tiles * params.col_tiles.by) * (Tile::kCols * 16);
  const BatchOffsets offsets(p, matrix);
  const int k = static_cast<int>(p.k);

  RowPair<Tile::kRowsMode> row_pairs[Tile::kRows];
  RowPair<Tile::kColsMode> col_pairs[Tile::kCols];
  UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    row_pairs[i] = {params.rows, params.swapped ? offsets.b : offsets.a, row + i * 16};
  }
  UNROLL
  for (int j = 0; j < Tile::kCols; ++j) {
    col_pairs[j] = {params.cols, params.swapped ? offsets.a : offsets.b, col + j * 16};
  }

  float acc[Tile::kRows][Tile::kCols][2][4] = {};
  Loaded<Tile::kRowsMode> rows[Tile::kStepsInFlight][Tile::kRows];
  Loaded<Tile::kColsMode> cols[Tile::kStepsInFlight][Tile::kCols];
  ptx::pdl_wait();
  NO_UNROLL
  for (int first = -Tile::kStepsInFlight * 16; first < k; first += Tile::kStepsInFlight * 16) {
    UNROLL
    for (int ahead = 0; ahead < Tile::kStepsInFlight; ++ahead) {
      const int at = first + ahead * 16, next = at + Tile::kStepsInFlight * 16;
      if (at >= 0 && at < k) {
        UNROLL
        for (int j = 0; j < Tile::kCols; ++j) {
          const Fragment b(cols[ahead][j]);
          UNROLL
          for (int i = 0; i < Tile::kRows; ++i) {
            const Fragment a(rows[ahead][i]);
            UNROLL
            for (int half = 0; half < 2; ++half) {
              ptx::mma_m16n8k16<std::is_same_v<T, BFloat16>>(acc[i][j][half], a.x,
                                                             {b.x[half], b.x[half + 2]});
            }
          }
        }
      }
      if (next < k) {
        UNROLL
        for (int i = 0; i < Tile::kRows; ++i) {
          rows[ahead][i] = row_pairs[i].load(params.rows, k - next);
        }
        UNROLL
        for (int j = 0; j < Tile::kCols; ++j) {
          cols[ahead][j] = col_pairs[j].load(params.cols, k - next);
        }
      }
    }
  }

  // A lane has two rows of four columns of each 16 x 16 elements. Column 2c is column c of the
  // first product of eight columns, and column 2c + 1 is that of the second.
  UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      UNROLL
      for (int down = 0; down < 2; ++down) {
        const auto& sums = acc[i][j];
        const float x[4] = {sums[0][down * 2], sums[1][down * 2], sums[0][down * 2 + 1],
                            sums[1][down * 2 + 1]};
        const int64_t c_row = row + i * 16 + lane / 4 * 2 + down;
        const int64_t c_col = col + j * 16 + lane % 4 * 4;
        if (c_row >= params.rows.count || c_col >= params.cols.count) continue;
        const auto count = static_cast<int>(min(params.cols.count - c_col, int64_t{4}));
        if (params.plain) {
          T* c = static_cast<T*>(params.c.data) + offsets.c + c_row * params.c.row_stride +
                 c_col * params.c.col_stride;
          if (params.vectorized && count == 4) {
            constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
            *reinterpret_cast<uint2*>(c) = make_uint2(ptx::pack_x2<kBFloat16>(x[0], x[1]),
                                                      ptx::pack_x2<kBFloat16>(x[2], x[3]));
          } else {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              if (e < count) c[e * params.c.col_stride] = narrow<T>(x[e]);
            }
          }
        } else {
          UNROLL
          for (int e = 0; e < 4; ++e) {
            if (e < count) store_noinline<T>(params, offsets.c, c_row, c_col + e, x[e]);
          }
        }
      }
    }
  }
}

namespace {

Operand operand(const Matrix& matrix, int64_t count) {
  return {static_cast<const uint16_t*>(matrix.data), matrix.row_stride, matrix.col_stride, count};
}

// Calls f.template operator()<kRowsMode, kColsMode>(). Both operands are loaded by elements if
// one is.
template <class F>
void with_modes(LoadMode rows, LoadMode cols, F&& f) {
  using enum LoadMode;
  if (rows == kElements || cols == kElements) return f.template operator()<kElements, kElements>();
  if (rows == kKMajorPairs) {
    cols == kKMajorPairs ? f.template operator()<kKMajorPairs, kKMajorPairs>()
                         : f.template operator()<kKMajorPairs, kMnMajorPairs>();
  } else {
    cols == kKMajorPairs ? f.template operator()<kMnMajorPairs, kKMajorPairs>()
                         : f.template operator()<kMnMajorPairs, kMnMajorPairs>();
  }
}

template <class Tile>
void run(Params& params, const Context& context) {
  const auto tiles = [](int64_t count, int fragments) { return ceil_div(count, fragments * 16); };
  const int64_t row_tiles = tiles(params.rows.count, Tile::kRows);
  const int64_t col_tiles = tiles(params.cols.count, Tile::kCols);
  params.row_tiles = FastDivmod::of(static_cast<uint32_t>(row_tiles));
  params.col_tiles = FastDivmod::of(static_cast<uint32_t>(col_tiles));
  params.tiles = row_tiles * col_tiles * params.p.batch.count;
  const auto kernel = mma_direct_kernel<Tile>;
  for_grids(ceil_div(params.tiles, kWarps), [&](int64_t first, unsigned blocks) {
    params.first_tile = first * kWarps;
    launch_pdl(kernel, blocks, kThreads, 0, context, params);
  });
}

}  // namespace
}  // namespace mma_direct

bool launch_mma_direct(const Problem& p, const Plan& plan, const Context& context) {
  using namespace mma_direct;
  if (count_tiles(p, 1, 1) == 0) return true;
  const Matrix b = transposed(p.b);
  Params params{};
  params.p = p;
  params.swapped = mma_direct_swaps_ab(p, h200::kMmaDirectTiles[plan.tile]);
  params.rows = params.swapped ? operand(b, p.n) : operand(p.a, p.m);
  params.cols = params.swapped ? operand(p.a, p.m) : operand(b, p.n);
  params.c = params.swapped ? transposed(p.c) : p.c;
  params.plain = p.epilogue.is_identity() && p.out_dtype == p.dtype;
  params.vectorized = mma_direct_stores_x4(p, h200::kMmaDirectTiles[plan.tile]);
  LoadMode rows = mma_direct_loads(p, p.a, p.m), cols = mma_direct_loads(p, b, p.n);
  if (params.swapped) std::swap(rows, cols);
  with_16bit_type(p.dtype, [&]<class T>() {
    with_modes(rows, cols, [&]<LoadMode kRowsMode, LoadMode kColsMode>() {
      with_tile<std::size(h200::kMmaDirectTiles)>(plan.tile, [&]<int kIndex>() {
        run<Tile<T, kIndex, kRowsMode, kColsMode>>(params, context);
        return true;
      });
    });
  });
  return true;
}

}  // namespace tiled::cuda
