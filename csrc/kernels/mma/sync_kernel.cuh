#pragma once
// The kernel of mma_sync, which grouped products share. sync.cu draws its barriers.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/launch.h"
#include "kernels/mma/load_16bit.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store_strided.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda::mma_sync {

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

// --- A tile
// ----------------------------------------------------------------------------------------

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

// The tile of that index in the cost model's table.
template <class T, int kIndex, bool kAMnMajor, bool kBMnMajor>
using TileOf =
    Tile<T, kIndex, h200::kMmaSyncTiles[kIndex].warp_m, h200::kMmaSyncTiles[kIndex].warp_n,
         h200::kMmaSyncTiles[kIndex].stages, kAMnMajor, kBMnMajor>;

template <class Tile>
struct Stage {
  OperandStage<Tile::kM, Tile::kK, Tile::kAMnMajor> a;
  OperandStage<Tile::kN, Tile::kK, Tile::kBMnMajor> b;
};

struct Params {
  Problem p;
  LoadMode a, b;
};

// A tile of C, and what its operands and its bias begin with. The offsets count elements.
struct WorkTile {
  int64_t a, b, c;        // of the tile's first row of A, column of B, and element of C
  const void* bias;       // of the tile's first column, or null
  int64_t rows, cols, k;  // that are left in the matrices from there on
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
__device__ void store_tile(const Problem& p, Out* c, const WorkTile& tile, const float* staging,
                           int pitch) {
  constexpr int kApart = Tile::kThreads / Tile::kN;
  static_assert(Tile::kThreads % Tile::kN == 0 && Tile::kM % (kApart * 4) == 0,
                "a thread stores whole groups of four rows");
  const int row = static_cast<int>(threadIdx.x) / Tile::kN;
  const int col = static_cast<int>(threadIdx.x) % Tile::kN;
  if (col >= tile.cols) return;
  const auto rows = static_cast<int>(min(tile.rows, int64_t{Tile::kM}));
  Epilogue epilogue = p.epilogue;
  epilogue.bias = tile.bias;
  float bias = 0;
  if (tile.bias != nullptr) {
    bias = widen(static_cast<const typename Tile::T*>(tile.bias)[col * epilogue.bias_stride]);
  }
  c += row * p.c.row_stride + col * p.c.col_stride;
  store_strided<4>(epilogue, staging + row * pitch + col, kApart * pitch, bias, c,
                   kApart * p.c.row_stride, ceil_div(rows - row, kApart));
}

// Computes the tile that locate() returns. It is located again before it is stored, which leaves
// registers to the main loop.
template <class Tile, class Locate>
__device__ void compute_tile(const Params& params, const Locate& locate, uint8_t* dynamic_smem) {
  auto* stages = reinterpret_cast<Stage<Tile>*>(dynamic_smem);
  const Problem& p = params.p;
  using Elements = const uint16_t*;
  using LoadA =
      OperandLoader<decltype(stages->a), Tile::kM, Tile::kK, Tile::kAMnMajor, Tile::kThreads>;
  using LoadB =
      OperandLoader<decltype(stages->b), Tile::kN, Tile::kK, Tile::kBMnMajor, Tile::kThreads>;
  const WorkTile tile = locate();
  LoadA load_a(static_cast<Elements>(p.a.data) + tile.a, p.a.row_stride, p.a.col_stride, params.a,
               tile.rows);
  LoadB load_b(static_cast<Elements>(p.b.data) + tile.b, p.b.col_stride, p.b.row_stride, params.b,
               tile.cols);
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
  int64_t to_load = tile.k;
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
  for (int64_t k_left = tile.k; k_left > 0; k_left -= mma_order::kChunk) {
    for_each([](float& sum, float& total, int, int, int) { total += sum, sum = 0; });
    NO_UNROLL
    for (auto left = static_cast<int>(min(k_left, int64_t{mma_order::kChunk})); left > 0;
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
  const WorkTile to = locate();
  using T = typename Tile::T;
  if (p.out_dtype == p.dtype) {
    store_tile<Tile>(p, static_cast<T*>(p.c.data) + to.c, to, staging, kPitch);
  } else {
    store_tile<Tile>(p, static_cast<float*>(p.c.data) + to.c, to, staging, kPitch);
  }
}

// How eight elements of an operand are loaded; `mn`: rows of A or columns of B. A cp.async copies
// all of eight elements or none. is_cut: tiles of the contiguous side may begin at any element.
inline LoadMode load_mode(const Problem& p, const Matrix& matrix, bool mn_major, int64_t mn,
                          bool is_cut = false) {
  const int64_t element_stride = mn_major ? matrix.row_stride : matrix.col_stride;
  const int64_t row_stride = mn_major ? matrix.col_stride : matrix.row_stride;
  if (element_stride != 1 || row_stride == 0) return LoadMode::kGather;
  const bool in_eights = (mn_major ? mn : p.k) % kX8 == 0 && !is_cut;
  return in_eights && is_16_byte_aligned(p.batch, matrix, sizeof(uint16_t))
             ? LoadMode::kCpAsync
             : LoadMode::kFunnelShift;
}

// The shared memory of a block: stages, then the tile before it is stored.
template <class Tile>
inline constexpr size_t kSmemBytes =
    std::max(Tile::kStages * sizeof(Stage<Tile>), Tile::kM*(Tile::kN + 4) * sizeof(float));

}  // namespace tiled::cuda::mma_sync
