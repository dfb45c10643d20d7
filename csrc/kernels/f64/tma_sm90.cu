// f64_tma: float64 products by TMA and tensor cores, of operands that a tensor map describes.
//
// Idea:  One thread loads stages of 16 of K by TMA, in boxes of 128-byte rows with the 128-byte
//        swizzle: 16 k of a row, if the operand is K-major, or 16 rows at one k. Nothing is
//        transposed. Tensor cores need k in order, but any row of the tile may be any row of a
//        product, so the rows of a product are chosen such that lanes read their fragments from the
//        swizzled stage without bank conflicts, and such that pairs of C's columns fill sectors.
//        Sums go from registers to C. Only if K has several chunks are the totals of finished
//        chunks kept in shared memory, which is more stages otherwise.
// Limit: the tensor cores and power for large products; the chain of K FMAs for small ones.
//
//   one producer thread                consumer warps
//   ------------------------------------------------------------------------------------
//   wait empty[s]  <-----------------  the fragments of stage s are multiplied
//   TMA A and B of stage s  ---------> wait full[s], mma.sync
//   next stage, also of the next tile  end of a chunk: add the totals
//                                      end of a tile: epilogue

#include <cstdint>
#include <iterator>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/f64/fragment.cuh"
#include "kernels/f64/plan.h"
#include "kernels/f64/split_k_reduce.cuh"
#include "kernels/f64/store.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_f64.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace f64_tma {

inline constexpr uint32_t kMostTiles = kF64TmaMostTiles;
inline constexpr int kUnrolledStages = 4;          // since a loop's back edge waits for products
inline constexpr int kMmaK = 8;                    // of K in a product
inline constexpr int kBox = 16;                    // doubles in a row of a box: 128 bytes
inline constexpr int kBoxBytes = kBox * kBox * 8;  // of 16 rows and 16 k

template <bool kMnMajor, bool kComplex>
class LaneOfB;

template <int kIndex, bool kAMnMajor_, bool kBMnMajor_, bool kComplex_>
struct Tile {
  static constexpr h200::F64TmaTile kTile = h200::kF64TmaTiles[kIndex];
  static constexpr bool kAMnMajor = kAMnMajor_, kBMnMajor = kBMnMajor_;
  static constexpr bool kComplex = kComplex_;  // B has complex numbers (core/complex.h)
  static constexpr int kM = kTile.m, kN = kTile.n, kK = kBox, kStages = kTile.stages;
  // A warp computes kWarpM x kWarpN of the tile: kMmasM x kMmasN products of 16 x 8.
  static constexpr int kWarpM = kTile.warp_m, kWarpN = kTile.warp_n, kWarpsM = kM / kWarpM;
  static constexpr int kMmasM = kWarpM / 16, kMmasN = kWarpN / 8;
  static constexpr int kConsumers = kWarpsM * (kN / kWarpN) * 32;
  // If setmaxnreg moves registers, a whole warpgroup produces, and has what consumers leave of
  // those that the block is launched with.
  static constexpr int kConsumerRegisters = kTile.consumer_registers;
  static constexpr bool kMovesRegisters = kConsumerRegisters > 0;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? 128 : 32);
  static constexpr int kLaunchRegisters = (64 << 10) / (kTile.blocks * kThreads) / 8 * 8;
  static constexpr int kProducerRegisters =
      (kLaunchRegisters * kThreads - kConsumerRegisters * kConsumers) / 128;
  static constexpr int kPairs = kMmasM * kMmasN * 2;  // of adjacent sums, of a thread
  static constexpr int kPlaces = kTile.places;        // of fragments in registers
  static constexpr int kABytes = kM * kK * 8, kParts = kComplex ? 2 : 1;
  static constexpr int kStageBytes = kABytes + kN * kK * 8 / kParts;
  static constexpr int kTotalsBytes = kPairs * 16 * kConsumers;
  // If no totals are kept, their memory is more stages.
  static constexpr int kMostStages = kStages + kTotalsBytes / kStageBytes;
  static constexpr int kRasterRows = 8;

  using Lane = LaneOfB<kBMnMajor, kComplex>;

  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0);
  static_assert(kPlaces == 2 || kMmasM > 1, "B is read behind the first row of products");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of stages");
};

// The sums of a tile in shared memory, pairs of adjacent columns.
template <class Tile>
using TileSums = double2[Tile::kPairs][Tile::kConsumers];

template <class Tile>
struct Smem {
  alignas(1024) uint8_t stages[Tile::kStages * Tile::kStageBytes];
  TileSums<Tile> totals;  // or stages, from the first byte on
  uint64_t full[Tile::kMostStages], empty[Tile::kMostStages];
};

// If K is split, C is the sums of the first chunk in the workspace (to_partial_sums()), and those
// of other chunks follow.
struct Params {
  Problem p;
  CUtensorMap a, b;
  TileScheduler scheduler;
  bool c_direct;        // the sums are C's elements, and pairs of adjacent columns are aligned
  SignsOfB signs_of_b;  // of a complex B, stored as in_place_b() describes it
  bool splits_k;        // each chunk of K is work of its own
  int stages;
  FastDivmod tiles;      // of C, if K is split
  uint32_t work_tiles;   // tiles of C, times chunks if K is split
  int64_t split_stride;  // elements of C
};

// A block's share of the work is a tile of C and K, or one chunk of K. Persistent blocks take every
// gridDim.x-th one. If K is split, all tiles of one chunk come before those of the next one.
__device__ inline uint32_t split_of(const Params& params, uint32_t index) {
  return params.splits_k ? params.tiles.divide(index) : 0;
}
struct KRange {
  int begin, end;
  __device__ KRange(const Params& params, uint32_t index)
      : begin(static_cast<int>(split_of(params, index)) * kChunk),
        end(static_cast<int>(params.p.k)) {
    if (params.splits_k) end = min(end, begin + kChunk);
  }
};
template <class Tile>
__device__ TileCoord tile_of(const Params& params, uint32_t index) {
  const uint32_t tile = index - split_of(params, index) * params.tiles.by;
  return locate<Tile>(params.scheduler, tile & kMostTiles);  // no 64-bit division is compiled
}

// Loads kRows rows or columns of an operand, from `row` on, and kBox of K, from k on. Each complex
// number of B, of which kParts is 2, stands for two columns and two k.
template <int kRows, bool kMnMajor, int kParts>
__device__ void load_operand(uint8_t* to, const CUtensorMap* map, int row, int k,
                             const TmaCoords& batch, uint64_t* full) {
  if constexpr (kMnMajor) {
    UNROLL
    for (int i = 0; i < kRows; i += kBox) {
      ptx::tma_load(to + i / kBox * (kBoxBytes / kParts), map,
                    {row + i, k / kParts, batch.at[0], batch.at[1], batch.at[2]}, full);
    }
  } else {
    ptx::tma_load(to, map, {k, row / kParts, batch.at[0], batch.at[1], batch.at[2]}, full);
  }
}

template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  ptx::PipelineState pipe{.stages = params.stages, .parity = 1};
  NO_UNROLL
  for (uint32_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    const KRange range(params, index);
    const TileCoord tile = tile_of<Tile>(params, index);
    const TmaCoords a(params.p.batch, params.p.a, tile.batch);
    const TmaCoords b(params.p.batch, params.p.b, tile.batch);
    NO_UNROLL
    for (int k = range.begin; k < range.end; k += Tile::kK, pipe.advance()) {
      uint64_t* full = &smem.full[pipe.stage];
      uint8_t* stage = &smem.stages[pipe.stage * Tile::kStageBytes];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, Tile::kStageBytes);
      load_operand<Tile::kM, Tile::kAMnMajor, 1>(stage, &params.a, tile.row, k, a, full);
      load_operand<Tile::kN, Tile::kBMnMajor, Tile::kParts>(stage + Tile::kABytes, &params.b,
                                                            tile.col, k, b, full);
    }
  }
}

// --- Fragments -----------------------------------------------------------------------------------
// Below, g = lane / 4 and q = lane % 4. In a stage, the 16-byte vectors of a 128-byte row are
// swizzled by the row's number modulo 8. A row is a row of the operand, and a lane's vector that of
// k; or it is a k, and the vector that of the lane's row. Each group of eight rows begins at a
// multiple of 1024 bytes, so a lane has one offset, in which a k or a row of the operand that is
// known when compiling flips bits 4 to 6.

__device__ inline int lane_q() { return static_cast<int>(threadIdx.x) % 4; }
__device__ inline int lane_g() { return static_cast<int>(threadIdx.x) % 32 / 4; }

// A's rows 2x and 2x + 1 of 16 are rows g and g + 8 of a product, with this x. An MN-major stage is
// read by vectors of both, eight lanes at once.
template <bool kMnMajor>
__device__ int row_pair_of_a() {
  return kMnMajor ? lane_g() % 2 * 4 + lane_g() / 2 : lane_g();
}

template <bool kMnMajor>
__device__ int lane_offset_of_a() {
  const int pair = row_pair_of_a<kMnMajor>(), q = lane_q();
  return kMnMajor ? q * 128 + (pair ^ q) * 16 : pair * 256 + pair % 4 * 32 + q * 8;
}

// Reads A's fragment of a product of 16 rows, the i-th ones, and 8 of K, from k on.
template <bool kMnMajor>
__device__ void read_fragment_a(const uint8_t* smem, int offset, int k, int i, double (&x)[2][2]) {
  UNROLL
  for (int step = 0; step < 2; ++step, k += 4) {
    if constexpr (kMnMajor) {
      const int at = (offset ^ (k & 4) * 16) + k * 128 + i * kBoxBytes;
      const double2 pair = *reinterpret_cast<const double2*>(smem + at);
      x[0][step] = pair.x, x[1][step] = pair.y;
    } else {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        const int at = (offset ^ k * 8 ^ h * 16) + h * 128 + i * kBoxBytes;
        x[h][step] = *reinterpret_cast<const double*>(smem + at);
      }
    }
  }
}

// Returns 0, 2, 1, 3 for 0, 1, 2, 3.
__device__ inline int swap_bits(int x) { return x % 2 * 2 + x / 2; }

// How a lane reads B, and which columns of C it has: kPairs pairs of adjacent ones, of which the
// first begins at first_col() and pair p col_of(p) behind it.
//
// Two products share 16 columns. In a K-major stage, column g of the first and of the second
// product are columns 2x and 2x + 1 of B, with x = g or, in each four, 0, 2, 1, 3. In an MN-major
// one, the first product has columns 0, 1, 8, 9, 2, 3, 10, 11, and the second those plus 4.
// `offset` is the lane's first one.
template <bool kMnMajor, bool kComplex>
class LaneOfB {
 public:
  int offset;
  __device__ explicit LaneOfB(const SignsOfB&) {
    const int g = lane_g(), q = lane_q(), pair = g / 4 * 4 + swap_bits(g % 4);
    offset = kMnMajor ? q * 128 + ((g / 2 % 2 * 4 + g / 4) ^ q) * 16 + g % 2 * 8
                      : pair * 256 + pair % 4 * 32 + q * 8;
  }
  __device__ static int first_col() {
    return kMnMajor ? lane_q() % 2 * 8 + lane_q() / 2 * 2 : lane_q() / 2 * 8 + lane_q() % 2 * 2;
  }
  __device__ static constexpr int col_of(int pair) { return pair / 2 * 16 + pair % 2 * 4; }
  // The place of the lane's element of the j-th product at k, in a stage's B at `from`.
  __device__ static int at(int from, int k, int j) {
    return kMnMajor ? (from ^ (k & 4) * 16 ^ j % 2 * 32) + k * 128 + j / 2 * kBoxBytes
                    : (from ^ k * 8 ^ j % 2 * 16) + j % 2 * 128 + j / 2 * kBoxBytes;
  }
  __device__ static int sign() { return 0; }
};

// A product has four complex columns, of which lanes q have the real and the imaginary parts. They
// are in the order 0, 2, 1, 3, so that two of them, with two adjacent k, are in different banks.
template <bool kMnMajor>
class LaneOfB<kMnMajor, true> {
 public:
  int offset;
  __device__ explicit LaneOfB(const SignsOfB& signs) {
    const f64_mma::ComplexPart part(signs);
    const int col = swap_bits(lane_g() / 2), k = lane_q() / 2;
    offset = (kMnMajor ? k : col) * 128 + (col ^ k) * 16 + part.offset() * 8;
    sign_ = part.sign();
  }
  __device__ static int first_col() { return swap_bits(lane_q()) * 2; }
  __device__ static constexpr int col_of(int pair) { return pair * 8; }
  __device__ static int at(int from, int k, int j) {
    return (from ^ k * 8 ^ j % 2 * 64) +
           (kMnMajor ? k * 64 + j / 2 * (kBoxBytes / 2) : j * (kBoxBytes / 4));
  }
  __device__ int sign() const { return sign_; }

 private:
  int sign_;
};

// A consumer's fragments, and its sums. With one place for fragments, those of the next kMmaK of K
// replace each one that is done with.
template <class Tile>
struct Accumulators {
  static constexpr int kPlaces = Tile::kPlaces;
  double a[kPlaces][Tile::kMmasM][2][2], b[kPlaces][Tile::kMmasN][2];
  double sums[Tile::kMmasM][Tile::kMmasN][4] = {};

  // Gives B's numbers their sign, if they are complex, and 8 - k_left of K that are beyond the
  // problem's a padding that changes no sum: TMA has loaded +0, of which B's becomes -0.
  __device__ void finish_b(int place, int sign, int k_left) {
    UNROLL
    for (int step = 0; step < 2; ++step) {
      const int padding = step * 4 + lane_q() < k_left ? 0 : f64_mma::ComplexPart::kSign;
      UNROLL
      for (int j = 0; j < Tile::kMmasN; ++j) {
        double& x = b[place][j][step];
        x = __hiloint2double((__double2hiint(x) ^ sign) | padding, __double2loint(x));
      }
    }
  }
  __device__ void multiply(int i, int j, int place) {
    ptx::mma_m16n8k8_f64(sums[i][j], a[place][i], b[place][j]);
  }
  // The adjacent columns `pair` of the thread in its i-th row.
  __device__ double2 pair_of(int i, int pair) const {
    const auto& row = sums[i / 2];
    const int h = i % 2 * 2, t = pair % 2;
    if (Tile::kBMnMajor || Tile::kComplex) return make_double2(row[pair][h], row[pair][h + 1]);
    return make_double2(row[pair - t][h + t], row[pair - t + 1][h + t]);
  }
};

// Reads the fragments of 8 of K, from k on, of a stage.
template <class Tile>
class Reader {
 public:
  __device__ Reader(const Params& params, const uint8_t* smem, int warp_row, int warp_col)
      : smem_(smem),
        lane_b_(params.signs_of_b),
        lane_a_(warp_row * 128 + lane_offset_of_a<Tile::kAMnMajor>()) {
    lane_b_.offset += warp_col * (128 / Tile::kParts) + Tile::kABytes;
  }

  __device__ void begin(int stage, int k) {
    a_ = lane_a_ + stage * Tile::kStageBytes;
    b_ = lane_b_.offset + stage * Tile::kStageBytes;
    k_ = k;
  }
  __device__ int sign_of_b() const { return lane_b_.sign(); }
  __device__ void read_a(int i, double (&x)[2][2]) const {
    read_fragment_a<Tile::kAMnMajor>(smem_, a_, k_, i, x);
  }
  __device__ void read_b(int j, double (&x)[2]) const {
    UNROLL
    for (int step = 0; step < 2; ++step) {
      const int at = lane_b_.at(b_, k_ + step * 4, j);
      x[step] = *reinterpret_cast<const double*>(smem_ + at);
    }
  }
  __device__ void read_all(Accumulators<Tile>& acc, int place) const {
    UNROLL
    for (int j = 0; j < Tile::kMmasN; ++j) read_b(j, acc.b[place][j]);
    UNROLL
    for (int i = 0; i < Tile::kMmasM; ++i) read_a(i, acc.a[place][i]);
  }

 private:
  const uint8_t* smem_;
  typename Tile::Lane lane_b_;
  int lane_a_, a_, b_, k_;
};

// --- Stores --------------------------------------------------------------------------------------

// A thread's sums are pairs of adjacent columns: kMmasN of them in each of kMmasM * 2 rows, which
// are row_of(i) behind the first one.
__device__ constexpr int row_of(int i) { return i / 2 * 16 + i % 2; }

// Stores the sums as they are. `c` points at element (row, col) of C, that of the first pair.
template <class Tile>
__device__ void store_direct(const Accumulators<Tile>& acc, const Problem& p, double* c,
                             int64_t row, int64_t col) {
  const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  UNROLL
  for (int i = 0; i < Tile::kMmasM * 2; ++i) {
    UNROLL
    for (int pair = 0; pair < Tile::kMmasN; ++pair) {
      if (row_of(i) < rows && Tile::Lane::col_of(pair) < cols) {
        *reinterpret_cast<double2*>(c + Tile::Lane::col_of(pair)) = acc.pair_of(i, pair);
      }
    }
    c += (row_of(i + 1) - row_of(i)) * p.c.row_stride;
  }
}

// Applies the epilogue to the sums, which pass through shared memory, so that a loop has its code.
template <class Tile>
__device__ void store_epilogue(const Accumulators<Tile>& acc, const Problem& p, int64_t c_offset,
                               int64_t row, int64_t col, TileSums<Tile>& sums) {
  UNROLL
  for (int at = 0; at < Tile::kPairs; ++at) {
    sums[at][threadIdx.x] = acc.pair_of(at / Tile::kMmasN, at % Tile::kMmasN);
  }
  NO_UNROLL
  for (int at = 0; at < Tile::kPairs; ++at) {
    f64_mma::store_pair(p, false, c_offset, row + row_of(at / Tile::kMmasN),
                        col + Tile::Lane::col_of(at % Tile::kMmasN), sums[at][threadIdx.x]);
  }
}

// --- The kernel ----------------------------------------------------------------------------------

// Multiplies a work tile, and stores its sums.
template <class Tile>
__device__ void consume(const Params& params, uint32_t index, ptx::PipelineState& pipe,
                        Smem<Tile>& smem) {
  const Problem& p = params.p;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp % Tile::kWarpsM * Tile::kWarpM;
  const int warp_col = warp / Tile::kWarpsM * Tile::kWarpN;
  Reader<Tile> next(params, smem.stages, warp_row, warp_col);
  Accumulators<Tile> acc;
  const KRange range(params, index);
  int k_left = range.end - range.begin;
  // Multiplies the stage; its first fragments have been read. Reads the next stage's, unless it is
  // the last one of a chunk: what is read then is not used.
  const auto multiply_stage = [&](bool is_last) {
    uint64_t* empty = &smem.empty[pipe.stage];
    UNROLL
    for (int k = 0; k < Tile::kK; k += kMmaK) {
      const int place = k / kMmaK % Tile::kPlaces, next_place = (place + 1) % Tile::kPlaces;
      const int next_k = (k + kMmaK) % Tile::kK;
      const auto begin_next = [&] {
        if (next_k == 0) {
          pipe.advance();
          if (!is_last) ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
        }
        next.begin(pipe.stage, next_k);
        if constexpr (Tile::kPlaces > 1) next.read_all(acc, next_place);
      };
      if (Tile::kPlaces > 1) begin_next();
      acc.finish_b(place, next.sign_of_b(), k_left - k);
      UNROLL
      for (int i = 0; i < Tile::kMmasM; ++i) {
        UNROLL
        for (int j = 0; j < Tile::kMmasN; ++j) {
          acc.multiply(i, j, place);
          if (Tile::kPlaces == 1 && i == Tile::kMmasM - 1) next.read_b(j, acc.b[0][j]);
        }
        if (i == 0 && Tile::kPlaces == 1) begin_next();  // the tensor cores are busy meanwhile
        if constexpr (Tile::kPlaces == 1) next.read_a(i, acc.a[0][i]);
      }
    }
    k_left -= Tile::kK;
    // All fragments of the stage have been multiplied, so that no load from it is outstanding, and
    // TMA may fill it without the fence of consumer_release().
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  };
  double* sums = &acc.sums[0][0][0];
  NO_UNROLL
  for (bool first = true;; first = false) {
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    next.begin(pipe.stage, 0);
    next.read_all(acc, 0);
    auto stages = static_cast<int>(ceil_div(min(k_left, kChunk), Tile::kK));
    NO_UNROLL
    while (stages > 0) {
      UNROLL
      for (int i = 0; i < kUnrolledStages; ++i) {
        multiply_stage(stages == 1);
        if (--stages == 0) break;
      }
    }
    if (!first) {
      UNROLL
      for (int pair = 0; pair < Tile::kPairs; ++pair) {
        const double2 total = smem.totals[pair][threadIdx.x];
        sums[pair * 2] = total.x + sums[pair * 2];
        sums[pair * 2 + 1] = total.y + sums[pair * 2 + 1];
      }
    }
    if (k_left <= 0) break;
    UNROLL
    for (int pair = 0; pair < Tile::kPairs; ++pair) {
      smem.totals[pair][threadIdx.x] = make_double2(sums[pair * 2], sums[pair * 2 + 1]);
      sums[pair * 2] = sums[pair * 2 + 1] = 0;
    }
  }

  const TileCoord tile = tile_of<Tile>(params, index);
  const int64_t c_offset =
      batch_offset(p.batch, p.c, tile.batch) + split_of(params, index) * params.split_stride;
  const int64_t row = int64_t{tile.row} + warp_row + row_pair_of_a<Tile::kAMnMajor>() * 2;
  const int64_t col = int64_t{tile.col} + warp_col + Tile::Lane::first_col();
  if (params.c_direct) {
    double* c = static_cast<double*>(p.c.data) + c_offset + row * p.c.row_stride + col;
    store_direct(acc, p, c, row, col);
  } else {
    store_epilogue(acc, p, c_offset, row, col, smem.totals);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kTile.blocks)
    f64_tma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (params.splits_k) ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(params.stages, smem.full, 1, smem.empty, Tile::kConsumers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_wait();
  if (threadIdx.x >= Tile::kConsumers) {
    if constexpr (Tile::kMovesRegisters) ptx::setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x / 32 == Tile::kConsumers / 32 && ptx::elect_one()) produce<Tile>(params, smem);
    return;
  }
  if constexpr (Tile::kMovesRegisters) ptx::setmaxnreg_inc<Tile::kConsumerRegisters>();
  ptx::PipelineState pipe{.stages = params.stages};
  NO_UNROLL
  for (uint32_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    consume<Tile>(params, index, pipe, smem);
  }
}

// --- The launch ----------------------------------------------------------------------------------

namespace {

// Without memory for the partial sums, K is not split.
template <class Tile>
void run(const Problem& p, int64_t k_splits, const SignsOfB& signs_of_b, const Context& context) {
  static_assert(Tile::kTile.blocks * (sizeof(Smem<Tile>) + 1024) <= kSharedMemoryOfSm);
  double* partial_sums = nullptr;
  if (k_splits > 1) {
    partial_sums = static_cast<double*>(context.allocate(f64_partial_sums_bytes(p, k_splits)));
    if (partial_sums == nullptr) k_splits = 1;
  }
  const Problem q = k_splits > 1 ? f64_mma::to_partial_sums(p, partial_sums) : p;
  const bool c_direct =
      q.epilogue.is_identity() && q.n % 2 == 0 &&
      is_vector_aligned(q.batch, q.c, q.c.col_stride, q.c.row_stride, 2, sizeof(double));
  // A complex B is half as many rows of parts.
  const auto map = [&](const Matrix& matrix, int64_t rows, int tile_rows, int parts) {
    const bool mn_major = is_mn_major(matrix);
    return tensor_map(p.batch, matrix, mn_major ? rows : rows / parts, mn_major ? p.k / parts : p.k,
                      mn_major ? kBox : tile_rows / parts, mn_major ? kBox / parts : kBox,
                      CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat64);
  };
  const auto tiles = static_cast<uint32_t>(count_tiles(p, Tile::kM, Tile::kN));
  const Params params{
      .p = q,
      .a = map(p.a, p.m, Tile::kM, 1),
      .b = map(transposed(Tile::kComplex ? parts_of_b(p.b) : p.b), p.n, Tile::kN, Tile::kParts),
      .scheduler = TileScheduler::of<Tile>(p),
      .c_direct = c_direct,
      .signs_of_b = signs_of_b,
      .splits_k = k_splits > 1,
      .stages = c_direct && (k_splits > 1 || p.k <= kChunk) ? Tile::kMostStages : Tile::kStages,
      .tiles = FastDivmod::of(tiles),
      .work_tiles = tiles * static_cast<uint32_t>(k_splits),
      .split_stride = p.batch.count * p.m * p.n,
  };
  const auto kernel = f64_tma_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  const auto wave = static_cast<uint32_t>(Tile::kTile.blocks * context.sms);
  launch_pdl(kernel, std::min(params.work_tiles, wave), Tile::kThreads, sizeof(Smem<Tile>), context,
             params);
  if (k_splits > 1) f64_mma::launch_split_k_reduce(p, partial_sums, context);
}

template <bool kAMnMajor, bool kBMnMajor, bool kComplex>
bool run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  return with_tile<std::size(h200::kF64TmaTiles)>(plan.tile, [&]<int kIndex>() {
    run<Tile<kIndex, kAMnMajor, kBMnMajor, kComplex>>(p, plan.k_splits, signs, context);
    return true;
  });
}

}  // namespace
}  // namespace f64_tma

bool launch_f64_tma(const Problem& p, const Plan& plan, const Context& context) {
  bool launched = false;
  with_majors(p, [&]<bool kAMnMajor, bool kBMnMajor>() {
    launched = f64_tma::run_tile<kAMnMajor, kBMnMajor, false>(p, plan, {}, context);
  });
  return launched;
}

// The A of a complex product is K-major, since its rows are.
bool launch_f64_tma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                            const Context& context) {
  using namespace f64_tma;
  return is_mn_major(transposed(p.b)) ? run_tile<false, true, true>(p, plan, b.signs, context)
                                      : run_tile<false, false, true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
