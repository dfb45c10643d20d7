// f64_direct: float64 products straight from global memory to registers, a warp for each tile.
//
// Idea:  A fragment of a float64 mma.sync has four adjacent k of eight rows, or eight adjacent rows
//        of four k: whole sectors of 32 bytes, in either layout. So a warp loads the fragments of
//        its own tile from global memory, whatever their strides, and multiplies them: no shared
//        memory, no other warp to wait for, several steps of K in flight. Tiles of all matrices
//        share a grid. With several chunks of K, up to four warps share them, and the first one
//        adds their sums in order; or, with few tiles, each chunk has a warp of its own, and
//        split_k_reduce.cuh adds their sums.
// Limit: Latency, and a chain of K / 8 mma.sync; neighbouring tiles load the same elements from L1
//        or L2.
// Next:  f64_mma: its blocks load each element once for a larger tile.
//
//   a warp      load kAhead steps of 8 of K                         (registers)
//               mma.sync of a step; load the step kAhead later      (K / 8 times)
//               store the tile, or hand a chunk's sums to the warp that adds them
//
// Complex operands are read in place (core/complex.h): a lane's columns are all even or all odd, as
// are its k, so it reads one part of each number.

#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/f64/fragment.cuh"
#include "kernels/f64/plan.h"
#include "kernels/f64/split_k_reduce.cuh"
#include "kernels/f64/store.cuh"
#include "ptx/ld_global.cuh"
#include "ptx/mma_f64.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace f64_direct {

inline constexpr int kWarps = kF64DirectWarps, kThreads = kWarps * 32;
inline constexpr int kStep = kF64DirectStep;

// kRows x kCols products, each 16 x 8 elements of C, or 8 x 8 in a last row of them.
template <int kIndex, bool kComplex_>
struct Tile {
  static constexpr h200::F64DirectTile kTile = h200::kF64DirectTiles[kIndex];
  static constexpr int kGroups = kTile.m / 8, kCols = kTile.n / 8;
  static constexpr int kRows = (kGroups + 1) / 2;
  static constexpr int kAhead = kTile.ahead;   // steps of K in flight
  static constexpr bool kComplex = kComplex_;  // B has complex numbers
  static constexpr int kPairs = kGroups * kCols;
};

struct Params {
  Problem p;
  SignsOfB signs_of_b;  // of a complex B, stored as in_place_b() describes it
  FastDivmod row_tiles, col_tiles;
  int chunk_warps;  // that share a tile: 1, 2 or 4
  int64_t first_tile, tiles;
  // If each chunk has warps of its own: the tiles of a chunk, one after another, and the
  // elements of its sums, to which p.c leads. Else 0.
  FastDivmod chunk_tiles;
  int64_t chunk_stride;
};

// Pairs of adjacent sums of each warp, in shared memory.
template <class Tile>
using WarpSums = double2[Tile::kPairs][32];

// The elements that a lane has loaded of a step, with q = lane % 4 and g = lane / 4: q and q + 4
// along K, of rows g and g + 8 of each 16, and of column g of each 8.
template <class Tile>
struct Fragments {
  double a[Tile::kRows][2][2], b[Tile::kCols][2];
};

// The places that a lane reads next. Rows and columns beyond the last are replaced by it, since
// nothing they reach is stored; eight rows beyond it are not read.
template <class Tile>
class Reader {
 public:
  __device__ Reader(const Params& params, const BatchOffsets& offsets, int64_t row, int64_t col,
                    int64_t k)
      : part_(params.signs_of_b) {
    const Problem& p = params.p;
    // Strides of complex operands lead from one even row or column to the next.
    constexpr int even = Tile::kComplex ? ~1 : ~0;
    UNROLL
    for (int group = 0; group < Tile::kGroups; ++group) {
      const int64_t first = row + group * 8;
      exists_[group] = first < p.m;
      a_[group] = static_cast<const double*>(p.a.data) + offsets.a +
                  min(first + g(), p.m - 1) * p.a.row_stride + (k + (q() & even)) * p.a.col_stride +
                  (q() & ~even);
    }
    const int64_t part = Tile::kComplex ? part_.offset() : 0;
    UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      const int64_t at = min(col + j * 8 + (g() & even), p.n - (Tile::kComplex ? 2 : 1));
      b_[j] = static_cast<const double*>(p.b.data) + offsets.b + part + at * p.b.col_stride +
              (k + (q() & even)) * p.b.row_stride;
    }
  }

  // Loads a step, with `k_left` k left, and moves on to the next one.
  __device__ void load(const Params& params, int k_left, Fragments<Tile>& to) {
    const int64_t a_stride = params.p.a.col_stride, b_stride = params.p.b.row_stride;
    const bool inside[2] = {q() < k_left, q() + 4 < k_left};
    UNROLL
    for (int group = 0; group < Tile::kGroups; ++group) {
      UNROLL
      for (int s = 0; s < 2; ++s) {
        to.a[group / 2][group % 2][s] = exists_[group] && inside[s]
                                            ? ptx::ld_global_nc(a_[group] + s * 4 * a_stride)
                                            : kPadA<double>;
      }
      a_[group] += kStep * a_stride;
    }
    UNROLL
    for (int j = 0; j < Tile::kCols; ++j) {
      UNROLL
      for (int s = 0; s < 2; ++s) {
        to.b[j][s] =
            inside[s] ? ptx::ld_global_nc(b_[j] + s * 4 * b_stride) : with_sign(kPadB<double>);
      }
      b_[j] += kStep * b_stride;
    }
  }

  // A number of B' from what load() read.
  __device__ double with_sign(double x) const { return Tile::kComplex ? part_.with_sign(x) : x; }

 private:
  __device__ static int q() { return threadIdx.x % 4; }
  __device__ static int g() { return threadIdx.x % 32 / 4; }

  const double *a_[Tile::kGroups], *b_[Tile::kCols];
  bool exists_[Tile::kGroups];
  f64_mma::ComplexPart part_;  // of a complex B
};

// Adds the products of `length` k to the sums.
template <class Tile>
__device__ void multiply_chunk(const Params& params, Reader<Tile> reader, int length,
                               double (&sums)[Tile::kRows][Tile::kCols][4]) {
  Fragments<Tile> loaded[Tile::kAhead];
  NO_UNROLL
  for (int first = -Tile::kAhead * kStep; first < length; first += Tile::kAhead * kStep) {
    UNROLL
    for (int ahead = 0; ahead < Tile::kAhead; ++ahead) {
      const int at = first + ahead * kStep, next = at + Tile::kAhead * kStep;
      if (at >= 0 && at < length) {
        UNROLL
        for (int j = 0; j < Tile::kCols; ++j) {
          const auto& x = loaded[ahead].b[j];
          const double b[2] = {reader.with_sign(x[0]), reader.with_sign(x[1])};
          UNROLL
          for (int i = 0; i < Tile::kGroups / 2; ++i) {
            ptx::mma_m16n8k8_f64(sums[i][j], loaded[ahead].a[i], b);
          }
          if constexpr (Tile::kGroups % 2 != 0) {
            const auto& a = loaded[ahead].a[Tile::kRows - 1][0];
            auto& sum = sums[Tile::kRows - 1][j];
            ptx::mma_m8n8k4_f64(sum[0], sum[1], a[0], b[0]);
            ptx::mma_m8n8k4_f64(sum[0], sum[1], a[1], b[1]);
          }
        }
      }
      if (next < length) reader.load(params, length - next, loaded[ahead]);
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, Tile::kTile.blocks)
    f64_direct_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  auto* warp_sums = reinterpret_cast<WarpSums<Tile>*>(dynamic_smem);
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunk_warp = warp % params.chunk_warps;
  const int64_t index = params.first_tile + int64_t{blockIdx.x} * (kWarps / params.chunk_warps) +
                        warp / params.chunk_warps;
  const bool exists = index < params.tiles;
  const int64_t chunk = params.chunk_stride == 0 ? 0 : params.chunk_tiles.divide(index);
  const int64_t tile = index - chunk * params.chunk_tiles.by;
  const int64_t row_of_tiles = params.col_tiles.divide(tile);
  const int64_t matrix = params.row_tiles.divide(row_of_tiles);
  const int64_t row = (row_of_tiles - matrix * params.row_tiles.by) * Tile::kTile.m;
  const int64_t col = (tile - row_of_tiles * params.col_tiles.by) * Tile::kTile.n;
  BatchOffsets offsets(p, exists ? matrix : 0);
  offsets.c += chunk * params.chunk_stride;
  const bool one_chunk = params.chunk_warps == 1;
  // The sums of the warp's tile, which the first of its warps stores.
  auto& totals = warp_sums[one_chunk ? warp : kWarps + warp / params.chunk_warps];

  ptx::pdl_wait();
  NO_UNROLL
  for (int64_t first = 0; first * kChunk < p.k; first += params.chunk_warps) {
    double sums[Tile::kRows][Tile::kCols][4] = {};
    const int64_t k = (chunk + first + chunk_warp) * kChunk;
    if (exists && k < p.k) {
      multiply_chunk<Tile>(params, Reader<Tile>(params, offsets, row, col, k),
                           static_cast<int>(min(p.k - k, int64_t{kChunk})), sums);
    }
    UNROLL
    for (int pair = 0; pair < Tile::kPairs; ++pair) {
      const int group = pair / Tile::kCols;
      const auto& mma = sums[group / 2][pair % Tile::kCols];
      warp_sums[warp][pair][lane] = make_double2(mma[group % 2 * 2], mma[group % 2 * 2 + 1]);
    }
    if (one_chunk) break;
    __syncthreads();
    if (chunk_warp == 0) {
      NO_UNROLL
      for (int pair = 0; pair < Tile::kPairs; ++pair) {
        double2 total = first > 0 ? totals[pair][lane] : warp_sums[warp][pair][lane];
        NO_UNROLL
        for (int i = first > 0 ? 0 : 1; i < params.chunk_warps && (first + i) * kChunk < p.k; ++i) {
          const double2 each = warp_sums[warp + i][pair][lane];
          total = make_double2(total.x + each.x, total.y + each.y);
        }
        totals[pair][lane] = total;
      }
    }
    __syncthreads();
  }
  if (!exists || chunk_warp != 0) return;
  f64_mma::store_sums<Tile::kTile.m, Tile::kTile.n>(p, offsets.c, row, col, [&](int i, int j) {
    const double2& pair = totals[i / 8 * Tile::kCols + j / 8][i % 8 * 4 + j % 8 / 2];
    return j % 2 == 0 ? pair.x : pair.y;
  });
}

namespace {

// Without memory for the partial sums, K is not split.
template <class Tile>
void run(const Problem& p, int64_t k_splits, const SignsOfB& signs_of_b, const Context& context) {
  const int64_t row_tiles = ceil_div(p.m, Tile::kTile.m), col_tiles = ceil_div(p.n, Tile::kTile.n);
  const int64_t tiles = row_tiles * col_tiles * p.batch.count;
  Params params{
      .p = p,
      .signs_of_b = signs_of_b,
      .row_tiles = FastDivmod::of(static_cast<uint32_t>(row_tiles)),
      .col_tiles = FastDivmod::of(static_cast<uint32_t>(col_tiles)),
      .chunk_warps = f64_direct_chunk_warps(p.k),
      .first_tile = 0,
      .tiles = tiles,
      .chunk_tiles = {},
      .chunk_stride = 0,
  };
  double* partial_sums = nullptr;
  if (k_splits > 1) {
    partial_sums = static_cast<double*>(context.allocate(f64_partial_sums_bytes(p, k_splits)));
    if (partial_sums == nullptr) return run<Tile>(p, 1, signs_of_b, context);
    params.p = f64_mma::to_partial_sums(p, partial_sums);
    params.chunk_warps = 1;
    params.tiles = tiles * k_splits;
    params.chunk_tiles = FastDivmod::of(static_cast<uint32_t>(tiles));
    params.chunk_stride = p.batch.count * p.m * p.n;
  }
  const int tiles_of_block = kWarps / params.chunk_warps;
  constexpr size_t kMostBytes = (kWarps + kWarps / 2) * sizeof(WarpSums<Tile>);
  static_assert(kMostBytes <= 48 << 10,
                "a block has at most 48 KiB of shared memory without allow_shared_memory()");
  const size_t smem_bytes = params.chunk_warps > 1 ? kMostBytes : kWarps * sizeof(WarpSums<Tile>);
  for_grids(ceil_div(params.tiles, tiles_of_block), [&](int64_t first, unsigned blocks) {
    params.first_tile = first * tiles_of_block;
    launch_pdl(f64_direct_kernel<Tile>, blocks, kThreads, smem_bytes, context, params);
  });
  if (partial_sums != nullptr) f64_mma::launch_split_k_reduce(p, partial_sums, context);
}

template <bool kComplex>
bool run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  return with_tile<std::size(h200::kF64DirectTiles)>(plan.tile, [&]<int kIndex>() {
    run<Tile<kIndex, kComplex>>(p, plan.k_splits, signs_of_b, context);
    return true;
  });
}

}  // namespace
}  // namespace f64_direct

bool launch_f64_direct(const Problem& p, const Plan& plan, const Context& context) {
  return f64_direct::run_tile<false>(p, plan, {}, context);
}

bool launch_f64_direct_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                               const Context& context) {
  return f64_direct::run_tile<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
