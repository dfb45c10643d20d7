// mma_sync: products of 16-bit floats by mma.sync, whatever their strides.
//
// Idea:  the warps of a block load steps of K of both operands to shared memory, as they are
//        stored, and multiply by mma.sync: ldmatrix reads K-major data as it is, and transposes
//        MN-major data. If rows are 16-byte aligned, cp.async copies eight elements at once. If
//        they are not, a thread loads the two aligned words that hold the eight and shifts
//        them. Elements without unit stride are gathered one by one. The kernel also runs on
//        Ampere and Ada: their tensor cores round differently (docs/guide/numerics.md).
// Limit: issue slots, which ldmatrix and mma.sync share, and registers, which hold the fragments.
// Next:  mma_tma: TMA loads both operands, and wgmma reads them from shared memory.
//
//   all warps
//   ------------------------------------------------------------------------------------
//   wait for the thread's own cp.async of stage s
//   __syncthreads()           stage s is there for all warps, and all have read stage s - 1
//   begin to load             stage s - 1 + kStages, in the place of stage s - 1
//   ldmatrix, mma.sync        stage s
//   finish the load           store to the stage what has come to registers

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
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

namespace mma_sync {

// --- Loads ---------------------------------------------------------------------------------------

// A stage of an operand as it is stored: kMn K-major rows or, if it is MN-major, kK rows along M or
// N. Padding lets eight rows begin in different banks.
template <int kMn, int kK, bool kMnMajor>
struct OperandStage {
  static constexpr int kStoredRows = kMnMajor ? kK : kMn, kLength = kMnMajor ? kMn : kK;
  static constexpr int kPitch = kLength + kX8;
  alignas(16) uint16_t at[kStoredRows][kPitch];
};

// How eight elements of a stored row are loaded: by one cp.async, from the two aligned 16-byte
// words that hold them, or one by one.
enum class LoadMode { kCpAsync, kFunnelShift, kGather };

// Loads stages of an operand, by all threads of the block.
template <class Stage, int kMn, int kK, bool kMnMajor, int kThreads>
class OperandLoader {
  static constexpr int kX8s = Stage::kLength / kX8, kRowsAtOnce = kThreads / kX8s;
  static constexpr int kRowsEach = Stage::kStoredRows / kRowsAtOnce;
  static_assert(kThreads % kX8s == 0 && Stage::kStoredRows % kRowsAtOnce == 0,
                "every thread loads eight elements of as many rows");

 public:
  // The words that a thread has loaded to registers for a stage.
  struct Words {
    uint4 low[kRowsEach], high[kRowsEach];
  };

  // `data` is the first element of the first stage; mn_left of A's rows or B's columns are left in
  // the matrix, from there on.
  __device__ OperandLoader(const uint16_t* data, int64_t mn_stride, int64_t k_stride, LoadMode mode,
                           int64_t mn_left)
      : element_stride_(kMnMajor ? mn_stride : k_stride),
        row_stride_(kMnMajor ? k_stride : mn_stride),
        mode_(mode),
        mn_left_(static_cast<int>(min(mn_left, int64_t{kMn}))) {
    data_ = data + row() * row_stride_ + element() * element_stride_;
  }

  // Starts to load the next stage; k_left of K are in the matrix. Elements beyond K become zero;
  // rows or columns beyond the matrix become anything.
  __device__ void begin(Stage& to, int64_t k_left, Words& words) const {
    if (mode_ == LoadMode::kCpAsync) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int rows = (kMnMajor ? k : mn_left_) - row();
      const bool inside = element() < (kMnMajor ? mn_left_ : k);
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        ptx::cp_async_16_zfill(&to.at[row() + i * kRowsAtOnce][element()],
                               data_ + i * kRowsAtOnce * row_stride_,
                               inside && i * kRowsAtOnce < rows ? 16 : 0);
      }
    } else if (shifts(k_left)) {
      // A load that would begin beyond the matrix reads elements inside it, which are not used.
      const uint16_t* first = kMnMajor && element() >= mn_left_ ? data_ - element() : data_;
      const int last = kMnMajor ? kK : mn_left_ - 1 - row();
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        const uint16_t* from = first + min(i * kRowsAtOnce, last) * row_stride_;
        const auto* aligned = reinterpret_cast<const uint4*>(from - misalignment_16(from) / 2);
        words.low[i] = aligned[0], words.high[i] = aligned[1];
      }
    }
  }

  // Stores what begin() has loaded to registers, and loads what is gathered. A cp.async is waited
  // for by the caller.
  __device__ void end(Stage& to, int64_t k_left, const Words& words) {
    if (mode_ != LoadMode::kCpAsync && shifts(k_left)) {
      const uint16_t* first = kMnMajor && element() >= mn_left_ ? data_ - element() : data_;
      const int last = kMnMajor ? kK : mn_left_ - 1 - row();
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        const uint16_t* from = first + min(i * kRowsAtOnce, last) * row_stride_;
        *reinterpret_cast<uint4*>(&to.at[row() + i * kRowsAtOnce][element()]) =
            funnel_shift_x8(words.low[i], words.high[i], misalignment_16(from));
      }
    } else if (mode_ != LoadMode::kCpAsync) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int rows = (kMnMajor ? k : mn_left_) - row();
      const int inside = (kMnMajor ? mn_left_ : k) - element();
      const uint16_t* from = data_;
      NO_UNROLL
      for (int i = 0; i < kRowsEach; ++i, from += kRowsAtOnce * row_stride_) {
        *reinterpret_cast<uint4*>(&to.at[row() + i * kRowsAtOnce][element()]) =
            gather_x8(from, element_stride_, i * kRowsAtOnce < rows ? inside : 0);
      }
    }
    data_ += kK * (kMnMajor ? row_stride_ : element_stride_);
  }

 private:
  // True if the stage is loaded by aligned words: the second of two may be beyond the stage, and
  // has to be in the matrix.
  __device__ bool shifts(int64_t k_left) const {
    return mode_ == LoadMode::kFunnelShift && k_left >= kK + 2 * kX8;
  }
  // The thread's first stored row and its eight elements of each.
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kX8s; }
  __device__ static int element() { return static_cast<int>(threadIdx.x) % kX8s * kX8; }

  const uint16_t* data_;
  int64_t element_stride_, row_stride_;  // along and between stored rows
  LoadMode mode_;
  int mn_left_;
};

// --- The kernel ----------------------------------------------------------------------------------

namespace {

// A warp computes kWarpM x kWarpN of the tile, kMmasM x kMmasN products of 16 x 8.
template <class T_, int kIndex, int kWarpM_, int kWarpN_, int kStages_, bool kAMnMajor_,
          bool kBMnMajor_>
struct Tile {
  using T = T_;
  static constexpr int kM = h200::kMmaSyncTiles[kIndex].m, kN = h200::kMmaSyncTiles[kIndex].n,
                       kK = 64;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kStages = kStages_;
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * 32;
  static constexpr int kMmasM = kWarpM / 16, kMmasN = kWarpN / 8;

  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && kK % mma_order::kDepth == 0);
  static_assert(mma_order::kChunk % kK == 0, "a chunk is a whole number of stages");
};

template <class Tile>
struct Stage {
  OperandStage<Tile::kM, Tile::kK, Tile::kAMnMajor> a;
  OperandStage<Tile::kN, Tile::kK, Tile::kBMnMajor> b;
};

struct Params {
  Problem p;
  LoadMode a, b;
};

// Multiplies one stage. Lane l gives ldmatrix the address of row l % 8 of the 8 x 8 matrix l / 8,
// one of two by two: bit 0 of l / 8 goes along A's rows and B's k, bit 1 along the other side.
template <class Tile>
__device__ void multiply(const Stage<Tile>& stage, int warp_row, int warp_col,
                         float (&acc)[Tile::kMmasM][Tile::kMmasN][4]) {
  const int lane = threadIdx.x % 32, row8 = lane % 8, bit0 = lane / 8 % 2 * 8, bit1 = lane / 16 * 8;
  UNROLL
  for (int k = 0; k < Tile::kK; k += mma_order::kDepth) {
    uint32_t a_frag[Tile::kMmasM][4], b_frag[Tile::kMmasN / 2][4];
    UNROLL
    for (int i = 0; i < Tile::kMmasM; ++i) {
      const int row = warp_row + i * 16;
      ptx::ldmatrix_x4<Tile::kAMnMajor>(a_frag[i], Tile::kAMnMajor
                                                       ? &stage.a.at[k + bit1 + row8][row + bit0]
                                                       : &stage.a.at[row + bit0 + row8][k + bit1]);
    }
    UNROLL
    for (int j = 0; j < Tile::kMmasN / 2; ++j) {
      const int col = warp_col + j * 16;
      ptx::ldmatrix_x4<Tile::kBMnMajor>(b_frag[j], Tile::kBMnMajor
                                                       ? &stage.b.at[k + bit0 + row8][col + bit1]
                                                       : &stage.b.at[col + bit1 + row8][k + bit0]);
    }
    UNROLL
    for (int i = 0; i < Tile::kMmasM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kMmasN; ++j) {
        const uint32_t b[] = {b_frag[j / 2][j % 2 * 2], b_frag[j / 2][j % 2 * 2 + 1]};
        ptx::mma_m16n8k16<std::is_same_v<typename Tile::T, BFloat16>>(acc[i][j], a_frag[i], b);
      }
    }
  }
}

// Stores a tile. A thread has elements of one column, kApart rows apart.
template <class Tile, class Out>
__device__ void store_tile(const Problem& p, Out* c, const TileIndex& tile, const float* staging,
                           int pitch) {
  constexpr int kApart = Tile::kThreads / Tile::kN;
  static_assert(Tile::kThreads % Tile::kN == 0 && Tile::kM % (kApart * 4) == 0,
                "a thread stores whole groups of four rows");
  const int row = static_cast<int>(threadIdx.x) / Tile::kN;
  const int col = static_cast<int>(threadIdx.x) % Tile::kN;
  if (tile.col + col >= p.n) return;
  const auto rows = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  float bias = 0;
  if (p.epilogue.bias != nullptr) {
    const auto* biases = static_cast<const typename Tile::T*>(p.epilogue.bias);
    bias = widen(biases[(tile.col + col) * p.epilogue.bias_stride]);
  }
  c += (tile.row + row) * p.c.row_stride + (tile.col + col) * p.c.col_stride;
  store_strided<4>(p.epilogue, staging + row * pitch + col, kApart * pitch, bias, c,
                   kApart * p.c.row_stride, ceil_div(rows - row, kApart));
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    mma_sync_kernel(const __grid_constant__ Params params, int64_t first_tile) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  ptx::pdl_launch_dependents();
  auto* stages = reinterpret_cast<Stage<Tile>*>(dynamic_smem);
  const Problem& p = params.p;
  const TileIndex tile = tile_index<Tile>(p, first_tile + blockIdx.x);
  using Elements = const uint16_t*;
  using LoadA =
      OperandLoader<decltype(stages->a), Tile::kM, Tile::kK, Tile::kAMnMajor, Tile::kThreads>;
  using LoadB =
      OperandLoader<decltype(stages->b), Tile::kN, Tile::kK, Tile::kBMnMajor, Tile::kThreads>;
  LoadA load_a(static_cast<Elements>(p.a.data) + batch_offset(p.batch, p.a, tile.batch) +
                   tile.row * p.a.row_stride,
               p.a.row_stride, p.a.col_stride, params.a, p.m - tile.row);
  LoadB load_b(static_cast<Elements>(p.b.data) + batch_offset(p.batch, p.b, tile.batch) +
                   tile.col * p.b.col_stride,
               p.b.col_stride, p.b.row_stride, params.b, p.n - tile.col);
  constexpr int kWarpsM = Tile::kM / Tile::kWarpM;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % kWarpsM * Tile::kWarpM, warp_col = warp / kWarpsM * Tile::kWarpN;

  float acc[Tile::kMmasM][Tile::kMmasN][4] = {};
  float totals[Tile::kMmasM][Tile::kMmasN][4];
  auto for_each = [&](auto&& f) {
    UNROLL
    for (int i = 0; i < Tile::kMmasM; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kMmasN; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) f(acc[i][j][e], totals[i][j][e], i, j, e);
      }
    }
  };
  for_each([](float&, float& total, int, int, int) { total = 0; });
  int64_t to_load = p.k;
  int to_fill = 0, full = 0;
  // Loads a stage, and calls meanwhile() while its loads are on the way.
  auto load = [&](auto&& meanwhile) {
    typename LoadA::Words words_a;
    typename LoadB::Words words_b;
    if (to_load > 0) {
      load_a.begin(stages[to_fill].a, to_load, words_a);
      load_b.begin(stages[to_fill].b, to_load, words_b);
    }
    __pipeline_commit();
    meanwhile();
    if (to_load > 0) {
      load_a.end(stages[to_fill].a, to_load, words_a);
      load_b.end(stages[to_fill].b, to_load, words_b);
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
      __syncthreads();  // the stage is there for all warps, and all have read the one before
      load([&] { multiply<Tile>(stages[full], warp_row, warp_col, acc); });
      full = (full + 1) % Tile::kStages;
    }
  }
  for_each([](float& sum, float& total, int, int, int) { total += sum; });

  // C is stored by way of shared memory, along its rows.
  __syncthreads();
  constexpr int kPitch = Tile::kN + 4;
  auto* staging = reinterpret_cast<float*>(dynamic_smem);
  for_each([&](float&, float& total, int i, int j, int e) {
    const int row = warp_row + i * 16 + lane / 4 + e / 2 * 8;
    staging[row * kPitch + warp_col + j * 8 + lane % 4 * 2 + e % 2] = total;
  });
  __syncthreads();
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  using T = typename Tile::T;
  if (p.out_dtype == p.dtype) {
    store_tile<Tile>(p, static_cast<T*>(p.c.data) + c_offset, tile, staging, kPitch);
  } else {
    store_tile<Tile>(p, static_cast<float*>(p.c.data) + c_offset, tile, staging, kPitch);
  }
}

template <class Tile>
void launch_tile(const Problem& p, const Context& context) {
  // `mn`: rows of A or columns of B. A cp.async copies all of eight elements or none.
  const auto mode_of = [&](const Matrix& matrix, bool mn_major, int64_t mn) {
    const int64_t element_stride = mn_major ? matrix.row_stride : matrix.col_stride;
    const int64_t row_stride = mn_major ? matrix.col_stride : matrix.row_stride;
    if (element_stride != 1 || row_stride == 0) return LoadMode::kGather;
    const bool in_eights = (mn_major ? mn : p.k) % kX8 == 0;
    return in_eights && is_16_byte_aligned(p.batch, matrix, sizeof(uint16_t))
               ? LoadMode::kCpAsync
               : LoadMode::kFunnelShift;
  };
  const Params params{
      .p = p,
      .a = mode_of(p.a, Tile::kAMnMajor, p.m),
      .b = mode_of(transposed(p.b), Tile::kBMnMajor, p.n),
  };
  constexpr size_t kStaging = Tile::kM * (Tile::kN + 4) * sizeof(float);
  constexpr size_t kBytes = std::max(Tile::kStages * sizeof(Stage<Tile>), kStaging);
  const auto kernel = mma_sync_kernel<Tile>;
  allow_shared_memory(kernel, kBytes);
  for_grids(count_tiles(p, Tile::kM, Tile::kN), [&](int64_t first, unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kBytes, context, params, first);
  });
}

}  // namespace
}  // namespace mma_sync

bool launch_mma_sync(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  with_mma_kind(p, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    with_tile<std::size(h200::kMmaSyncTiles)>(plan.tile, [&]<int kIndex>() {
      constexpr h200::MmaSyncTile kTile = h200::kMmaSyncTiles[kIndex];
      using Tile =
          mma_sync::Tile<T, kIndex, kTile.warp_m, kTile.warp_n, kTile.stages, kAMnMajor, kBMnMajor>;
      mma_sync::launch_tile<Tile>(p, context);
      return true;
    });
  });
  return true;
}

}  // namespace tiled::cuda
