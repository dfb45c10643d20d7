// 12 mma_sync: products of halves on tensor cores, whatever their strides.
//
// Idea:  the warps of a block copy steps of K of both operands to a ring of stages, as they lie,
//        and multiply what came before by mma.sync: ldmatrix reads what lies along K as it is, and
//        turns what lies across. Eight neighbours are copied as they are where lines begin at
//        multiples of 16 bytes; or else a thread makes them of what it reads. It runs on Ampere and
//        Ada, too, whose tensor cores have sums of their own (docs/numerics.md).
// Limit: ldmatrix and mma.sync take instructions, and registers hold what they read.
// Next:  13 mma_tma: operands that nobody has to fetch.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/load_16bit.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store_strided.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

// kAMnMajor: neighbours lie along A's rows, across K, or else along K; kBMnMajor likewise B's
// columns.
template <class T_, int kIndex, int kWarpM_, int kWarpN_, int kStages_, bool kAMnMajor_,
          bool kBMnMajor_>
struct Tile {
  using T = T_;
  static constexpr int kM = h200::kMmaSyncTiles[kIndex].m, kN = h200::kMmaSyncTiles[kIndex].n,
                       kK = 64;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;  // of C a warp
  static constexpr int kStages = kStages_;
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * 32;
  static constexpr int kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 8;  // of a product, a warp's

  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && kK % mma_order::kDepth == 0);
  static_assert(mma_order::kChunk % kK == 0, "a chunk is a whole number of stages");
};

// A stage of an operand: lines of neighbours, which begin in different banks.
template <int kOuter, int kK, bool kAcross>
struct Lines {
  static constexpr int kLines = kAcross ? kK : kOuter, kNear = kAcross ? kOuter : kK;
  static constexpr int kPitch = kNear + kEight;
  alignas(16) uint16_t at[kLines][kPitch];
};

template <class Tile>
struct Stage {
  Lines<Tile::kM, Tile::kK, Tile::kAMnMajor> a;
  Lines<Tile::kN, Tile::kK, Tile::kBMnMajor> b;
};

// How an operand's eights are copied: as they are, made of two of memory's, or one by one.
enum class Copied { kAlone, kShifted, kGathered };

struct Work {
  Problem p;
  Copied a, b;
};

// Copies stages of an operand, all threads of the block together.
template <class Lines, int kOuter, int kK, bool kAcross, int kThreads>
class Loader {
  static constexpr int kEights = Lines::kNear / kEight, kLinesAtOnce = kThreads / kEights;
  static constexpr int kEach = Lines::kLines / kLinesAtOnce;
  static_assert(kThreads % kEights == 0 && Lines::kLines % kLinesAtOnce == 0);

 public:
  // What a thread has read of memory for a stage, and not yet made eights of.
  struct Held {
    uint4 near[kEach], far[kEach];
  };

  // `data` is the first stage's first element, of which outer_left rows (or columns) are left.
  __device__ Loader(const uint16_t* data, int64_t outer_stride, int64_t k_stride, Copied copied,
                    int64_t outer_left)
      : near_stride_(kAcross ? outer_stride : k_stride),
        far_stride_(kAcross ? k_stride : outer_stride),
        copied_(copied),
        outer_left_(static_cast<int>(min(outer_left, int64_t{kOuter}))) {
    data_ = data + line() * far_stride_ + near() * near_stride_;
  }

  // Begins to copy the next stage, of which k_left steps are in the matrix. Zeros are beyond; but
  // where rows or columns are not there, anything.
  __device__ void begin(Lines& to, int64_t k_left, Held& held) const {
    if (copied_ == Copied::kAlone) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int lines = (kAcross ? k : outer_left_) - line();
      const bool inside = near() < (kAcross ? outer_left_ : k);
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        ptx::cp_async_16_zfill(&to.at[line() + i * kLinesAtOnce][near()],
                               data_ + i * kLinesAtOnce * far_stride_,
                               inside && i * kLinesAtOnce < lines ? 16 : 0);
      }
    } else if (shifts(k_left)) {
      // Lines that are not there are read as others that are.
      const uint16_t* first = kAcross && near() >= outer_left_ ? data_ - near() : data_;
      const int last = kAcross ? kK : outer_left_ - 1 - line();
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        const uint16_t* from = first + min(i * kLinesAtOnce, last) * far_stride_;
        const auto* sixteen = reinterpret_cast<const uint4*>(from - shift_of(from) / 2);
        held.near[i] = sixteen[0], held.far[i] = sixteen[1];
      }
    }
  }

  // Ends it.
  __device__ void end(Lines& to, int64_t k_left, const Held& held) {
    if (copied_ != Copied::kAlone && shifts(k_left)) {
      const uint16_t* first = kAcross && near() >= outer_left_ ? data_ - near() : data_;
      const int last = kAcross ? kK : outer_left_ - 1 - line();
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        const uint16_t* from = first + min(i * kLinesAtOnce, last) * far_stride_;
        *reinterpret_cast<uint4*>(&to.at[line() + i * kLinesAtOnce][near()]) =
            shifted(held.near[i], held.far[i], shift_of(from));
      }
    } else if (copied_ != Copied::kAlone) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int lines = (kAcross ? k : outer_left_) - line();
      const int inside = (kAcross ? outer_left_ : k) - near();
      const uint16_t* from = data_;
      NO_UNROLL
      for (int i = 0; i < kEach; ++i, from += kLinesAtOnce * far_stride_) {
        *reinterpret_cast<uint4*>(&to.at[line() + i * kLinesAtOnce][near()]) =
            gather(from, near_stride_, i * kLinesAtOnce < lines ? inside : 0);
      }
    }
    data_ += kK * (kAcross ? far_stride_ : near_stride_);
  }

 private:
  // Whether eights are made of two of memory's, of which the second may be all beyond the stage.
  __device__ bool shifts(int64_t k_left) const {
    return copied_ == Copied::kShifted && k_left >= kK + 2 * kEight;
  }
  __device__ static int line() { return static_cast<int>(threadIdx.x) / kEights; }
  __device__ static int near() { return static_cast<int>(threadIdx.x) % kEights * kEight; }

  const uint16_t* data_;
  int64_t near_stride_, far_stride_;
  Copied copied_;
  int outer_left_;
};

// Products of one stage.
template <class Tile>
__device__ void multiply(const Stage<Tile>& stage, int warp_row, int warp_col,
                         float (&sums)[Tile::kBlocksM][Tile::kBlocksN][4]) {
  const int lane = threadIdx.x % 32, eighth = lane % 8, half = lane / 8 % 2 * 8,
            upper = lane / 16 * 8;
  UNROLL
  for (int k = 0; k < Tile::kK; k += mma_order::kDepth) {
    uint32_t a[Tile::kBlocksM][4], b[Tile::kBlocksN / 2][4];
    UNROLL
    for (int i = 0; i < Tile::kBlocksM; ++i) {
      const int row = warp_row + i * 16;
      ptx::ldmatrix_x4<Tile::kAMnMajor>(a[i], Tile::kAMnMajor
                                                  ? &stage.a.at[k + upper + eighth][row + half]
                                                  : &stage.a.at[row + half + eighth][k + upper]);
    }
    UNROLL
    for (int j = 0; j < Tile::kBlocksN / 2; ++j) {
      const int col = warp_col + j * 16;
      ptx::ldmatrix_x4<Tile::kBMnMajor>(b[j], Tile::kBMnMajor
                                                  ? &stage.b.at[k + half + eighth][col + upper]
                                                  : &stage.b.at[col + upper + eighth][k + half]);
    }
    UNROLL
    for (int i = 0; i < Tile::kBlocksM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kBlocksN; ++j) {
        const uint32_t two[] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
        ptx::mma_m16n8k16<std::is_same_v<typename Tile::T, BFloat16>>(sums[i][j], a[i], two);
      }
    }
  }
}

// Stores a tile's sums, a thread those of one column, several rows apart.
template <class Tile, class Out>
__device__ void store_tile(const Problem& p, Out* c, const TileIndex& tile, const float* leaving,
                           int pitch) {
  constexpr int kApart = Tile::kThreads / Tile::kN;
  static_assert(Tile::kThreads % Tile::kN == 0 && Tile::kM % (kApart * 4) == 0, "store_strided()");
  const int own = static_cast<int>(threadIdx.x) / Tile::kN;
  const int col = static_cast<int>(threadIdx.x) % Tile::kN;
  if (tile.col + col >= p.n) return;
  const auto rows = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  float bias = 0;
  if (p.epilogue.bias != nullptr) {
    const auto* biases = static_cast<const typename Tile::T*>(p.epilogue.bias);
    bias = widen(biases[(tile.col + col) * p.epilogue.bias_stride]);
  }
  c += (tile.row + own) * p.c.row_stride + (tile.col + col) * p.c.col_stride;
  store_strided<4>(p.epilogue, leaving + own * pitch + col, kApart * pitch, bias, c,
                   kApart * p.c.row_stride, ceil_div(rows - own, kApart));
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    mma_sync_kernel(const __grid_constant__ Work work, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  ptx::pdl_launch_dependents();
  auto* stages = reinterpret_cast<Stage<Tile>*>(dynamic_smem);
  const Problem& p = work.p;
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  using Halves = const uint16_t*;
  using LoadA = Loader<decltype(stages->a), Tile::kM, Tile::kK, Tile::kAMnMajor, Tile::kThreads>;
  using LoadB = Loader<decltype(stages->b), Tile::kN, Tile::kK, Tile::kBMnMajor, Tile::kThreads>;
  LoadA load_a(static_cast<Halves>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                   tile.row * p.a.row_stride,
               p.a.row_stride, p.a.col_stride, work.a, p.m - tile.row);
  LoadB load_b(static_cast<Halves>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                   tile.col * p.b.col_stride,
               p.b.col_stride, p.b.row_stride, work.b, p.n - tile.col);
  constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % kWarpsM * Tile::kWarpM, warp_col = warp / kWarpsM * Tile::kWarpN;

  float sums[Tile::kBlocksM][Tile::kBlocksN][4] = {};
  float totals[Tile::kBlocksM][Tile::kBlocksN][4];
  auto for_each = [&](auto&& f) {
    UNROLL
    for (int i = 0; i < Tile::kBlocksM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kBlocksN; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) f(sums[i][j][e], totals[i][j][e], i, j, e);
      }
    }
  };
  for_each([](float&, float& total, int, int, int) { total = 0; });
  int64_t to_load = p.k;
  int to_fill = 0, full = 0;
  // Copies a stage, while another is multiplied.
  auto load = [&](auto&& meanwhile) {
    typename LoadA::Held held_a;
    typename LoadB::Held held_b;
    if (to_load > 0) {
      load_a.begin(stages[to_fill].a, to_load, held_a);
      load_b.begin(stages[to_fill].b, to_load, held_b);
    }
    __pipeline_commit();
    meanwhile();
    if (to_load > 0) {
      load_a.end(stages[to_fill].a, to_load, held_a);
      load_b.end(stages[to_fill].b, to_load, held_b);
    }
    to_load -= Tile::kK;
    to_fill = (to_fill + 1) % Tile::kStages;
  };
  ptx::pdl_wait();
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) load([] {});
  NO_UNROLL
  for (int64_t chunk = 0; chunk < p.k; chunk += mma_order::kChunk) {
    if (chunk > 0) for_each([](float& sum, float& total, int, int, int) { total += sum, sum = 0; });
    NO_UNROLL
    for (auto left = static_cast<int>(min(p.k - chunk, int64_t{mma_order::kChunk})); left > 0;
         left -= Tile::kK) {
      __pipeline_wait_prior(Tile::kStages - 2);
      __syncthreads();  // what was copied is there for all, and all have multiplied the last
      load([&] { multiply<Tile>(stages[full], warp_row, warp_col, sums); });
      full = (full + 1) % Tile::kStages;
    }
  }
  for_each([](float& sum, float& total, int, int, int) { total += sum; });

  // Sums leave by way of shared memory, in rows.
  __syncthreads();
  constexpr int kPitch = Tile::kN + 4;
  auto* leaving = reinterpret_cast<float*>(dynamic_smem);
  for_each([&](float&, float& total, int i, int j, int e) {
    const int row = warp_row + i * 16 + lane / 4 + e / 2 * 8;
    leaving[row * kPitch + warp_col + j * 8 + lane % 4 * 2 + e % 2] = total;
  });
  __syncthreads();
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  using T = typename Tile::T;
  if (p.out_dtype == p.dtype) {
    store_tile<Tile>(p, static_cast<T*>(p.c.data) + c_offset, tile, leaving, kPitch);
  } else {
    store_tile<Tile>(p, static_cast<float*>(p.c.data) + c_offset, tile, leaving, kPitch);
  }
}

template <class Tile>
void run_tile(const Problem& p, const Context& context) {
  const auto copied = [&](const Matrix& matrix, bool across, int64_t outer) {
    const int64_t near = across ? matrix.row_stride : matrix.col_stride;
    const int64_t far = across ? matrix.col_stride : matrix.row_stride;
    if (near != 1 || far == 0) return Copied::kGathered;
    const bool whole = (across ? outer : p.k) % kEight == 0;
    return whole && is_16_byte_aligned(p.batch, matrix, sizeof(uint16_t)) ? Copied::kAlone
                                                                          : Copied::kShifted;
  };
  const Work work{
      .p = p,
      .a = copied(p.a, Tile::kAMnMajor, p.m),
      .b = copied(transposed(p.b), Tile::kBMnMajor, p.n),
  };
  constexpr size_t kLeaving = Tile::kM * (Tile::kN + 4) * sizeof(float);
  constexpr size_t kBytes = std::max(Tile::kStages * sizeof(Stage<Tile>), kLeaving);
  const auto kernel = mma_sync_kernel<Tile>;
  allow_shared_memory(kernel, kBytes);
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kBytes, context, work, first);
  });
}

}  // namespace

bool launch_mma_sync(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  with_mma_kind(p, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    with_tile<std::size(h200::kMmaSyncTiles)>(plan.tile, [&]<int kIndex>() {
      constexpr h200::MmaSyncTile kTile = h200::kMmaSyncTiles[kIndex];
      run_tile<Tile<T, kIndex, kTile.warp_m, kTile.warp_n, kTile.stages, kAMnMajor, kBMnMajor>>(
          p, context);
      return true;
    });
  });
  return true;
}

}  // namespace tiled::cuda
