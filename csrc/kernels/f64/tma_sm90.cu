// f64_tma: float64 products by TMA and tensor cores, of operands that a tensor map describes.
//
// Idea:  One thread loads stages of 16 of K by TMA, in boxes of 128-byte rows with the 128-byte
//        swizzle: 16 k of a row, if the operand is K-major, or 16 rows at one k. Nothing is
//        transposed. Tensor cores need k in order, but any row of the tile may be any row of a
//        product, so the rows of a product are chosen such that lanes read their fragments from the
//        swizzled stage without bank conflicts, and such that pairs of C's columns fill sectors.
//        Sums of one chunk go from registers to an aligned C. Other sums, and the totals of
//        finished chunks, are in shared memory, which is more stages otherwise.
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
#include "kernels/f64/plan.h"
#include "kernels/f64/split_k_reduce.cuh"
#include "kernels/f64/store.cuh"
#include "kernels/f64/tma_fragment.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_f64.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace f64_tma {

inline constexpr uint32_t kMostTiles = kF64TmaMostTiles;
inline constexpr int kUnrolledStages = 4;  // since a loop's back edge waits for products
inline constexpr int kMmaK = 8;            // of K in a product

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
  static constexpr int kPairs = kMmasM * kMmasN * 2;        // of adjacent sums, of a thread
  static constexpr int kPlaces = kTile.places;              // of fragments in registers
  static constexpr int kParts = kComplex ? 2 : 1;           // in B's numbers
  static constexpr int kPartsOfA = kAMnMajor ? kParts : 1;  // that are adjacent along M
  static constexpr int kABytes = kM * kK * 8;
  static constexpr int kStageBytes = kABytes + kN * kK * 8 / kParts;
  static constexpr int kTotalsBytes = kPairs * 16 * kConsumers;
  // If no totals are kept, their memory is more stages.
  static constexpr int kMostStages = kStages + kTotalsBytes / kStageBytes;
  static constexpr int kRasterRows = 8;

  using LaneA = LaneOfA<kAMnMajor, kComplex>;
  using LaneB = LaneOfB<kBMnMajor, kComplex>;

  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0);
  static_assert(kPlaces == 2 || kMmasM > 1, "B is read behind the first row of products");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of stages");
};

template <class Tile>
using WarpSums = f64_mma::WarpSums<Tile::kWarpM, Tile::kWarpN>;

template <class Tile>
struct Smem {
  alignas(1024) uint8_t stages[Tile::kStages * Tile::kStageBytes];
  WarpSums<Tile> totals[Tile::kConsumers / 32];  // or stages, from the first byte on
  uint64_t full[Tile::kMostStages], empty[Tile::kMostStages];
};

// If K is split, C is the sums of the first chunk in the workspace (to_partial_sums()), and the
// sums of other chunks follow.
struct Params {
  Problem p;
  CUtensorMap a, b;
  TileScheduler scheduler;
  bool c_direct;        // one chunk's sums are C's elements, and pairs of columns fill its sectors
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

// Loads kRows rows or columns of an operand, from `row` on, and kBox of K, from k on. A complex
// number of B stands for two columns and two k, and kParts is 2. Complex numbers of an MN-major A
// are parts along M, and stand for two k.
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
      load_operand<Tile::kM * Tile::kPartsOfA, Tile::kAMnMajor, Tile::kPartsOfA>(
          stage, &params.a, tile.row * Tile::kPartsOfA, k, a, full);
      load_operand<Tile::kN, Tile::kBMnMajor, Tile::kParts>(stage + Tile::kABytes, &params.b,
                                                            tile.col, k, b, full);
    }
  }
}

// --- Fragments -----------------------------------------------------------------------------------

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
  // Adds a chunk's sums to the warp's totals, and begins the next chunk.
  __device__ void add_to(WarpSums<Tile>& totals, bool is_first) {
    const int place = totals.place(Tile::LaneA::row_pair() * 2, Tile::LaneB::first_col());
    UNROLL
    for (int i = 0; i < Tile::kMmasM * 2; ++i) {
      UNROLL
      for (int pair = 0; pair < Tile::kMmasN; ++pair) {
        const double2 sum = pair_of(i, pair);
        double2& total = totals.pair(place ^ totals.place(row_of(i), Tile::LaneB::col_of(pair)));
        total = is_first ? sum : make_double2(total.x + sum.x, total.y + sum.y);
      }
    }
    UNROLL
    for (auto& row : sums) {
      UNROLL
      for (auto& mma : row) mma[0] = mma[1] = mma[2] = mma[3] = 0;
    }
  }
};

// Reads the fragments of 8 of K, from k on, of a stage.
template <class Tile>
class Reader {
 public:
  __device__ Reader(const Params& params, const uint8_t* smem, int warp_row, int warp_col)
      : smem_(smem), lane_b_(params.signs_of_b) {
    lane_a_.offset += warp_row * 128;
    lane_b_.offset += warp_col * (128 / Tile::kParts) + Tile::kABytes;
  }

  __device__ void begin(int stage, int k) {
    a_ = lane_a_.offset + stage * Tile::kStageBytes;
    b_ = lane_b_.offset + stage * Tile::kStageBytes;
    k_ = k;
  }
  __device__ int sign_of_b() const { return lane_b_.sign(); }
  __device__ void read_a(int i, double (&x)[2][2]) const { Tile::LaneA::read(smem_, a_, k_, i, x); }
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
  typename Tile::LaneA lane_a_;
  typename Tile::LaneB lane_b_;
  int a_, b_, k_;
};

// --- Stores --------------------------------------------------------------------------------------

// Stores the sums as they are, the first pair at (row, col).
template <class Tile>
__device__ void store_direct(const Accumulators<Tile>& acc, const Problem& p, int64_t c_offset,
                             int64_t row, int64_t col) {
  const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  double* c = static_cast<double*>(p.c.data) + c_offset + row * p.c.row_stride + col;
  UNROLL
  for (int i = 0; i < Tile::kMmasM * 2; ++i) {
    UNROLL
    for (int pair = 0; pair < Tile::kMmasN; ++pair) {
      if (row_of(i) < rows && Tile::LaneB::col_of(pair) < cols) {
        *reinterpret_cast<double2*>(c + Tile::LaneB::col_of(pair)) = acc.pair_of(i, pair);
      }
    }
    c += (row_of(i + 1) - row_of(i)) * p.c.row_stride;
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
  WarpSums<Tile>& totals = smem.totals[warp];
  NO_UNROLL
  while (true) {
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
    if (params.c_direct) break;
    const bool is_first = params.splits_k || k_left + kChunk >= static_cast<int>(p.k);
    acc.add_to(totals, is_first);
    if (k_left <= 0) break;
  }

  const TileCoord tile = tile_of<Tile>(params, index);
  const int64_t c_offset =
      batch_offset(p.batch, p.c, tile.batch) + split_of(params, index) * params.split_stride;
  const int64_t row = int64_t{tile.row} + warp_row, col = int64_t{tile.col} + warp_col;
  if (params.c_direct) {
    store_direct(acc, p, c_offset, row + Tile::LaneA::row_pair() * 2,
                 col + Tile::LaneB::first_col());
  } else {
    totals.store(p, c_offset, row, col);
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
      (k_splits > 1 || p.k <= kChunk) && q.epilogue.is_identity() && q.n % 2 == 0 &&
      is_vector_aligned(q.batch, q.c, q.c.col_stride, q.c.row_stride, 4, sizeof(double));
  // A row of parts of a complex B is two rows.
  const auto map = [&](const Matrix& matrix, int64_t rows, int tile_rows, int parts) {
    const bool mn_major = is_mn_major(matrix);
    return tensor_map(p.batch, matrix, mn_major ? rows : rows / parts, mn_major ? p.k / parts : p.k,
                      mn_major ? kBox : tile_rows / parts, mn_major ? kBox / parts : kBox,
                      CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat64);
  };
  const auto tiles = static_cast<uint32_t>(count_tiles(p, Tile::kM, Tile::kN));
  const Params params{
      .p = q,
      .a = map(Tile::kPartsOfA > 1 ? parts_of_a(p.a) : p.a, p.m * Tile::kPartsOfA, Tile::kM,
               Tile::kPartsOfA),
      .b = map(transposed(Tile::kComplex ? parts_of_b(p.b) : p.b), p.n, Tile::kN, Tile::kParts),
      .scheduler = TileScheduler::of<Tile>(p),
      .c_direct = c_direct,
      .signs_of_b = signs_of_b,
      .splits_k = k_splits > 1,
      .stages = c_direct ? Tile::kMostStages : Tile::kStages,
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

bool launch_f64_tma_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                            const Context& context) {
  bool launched = false;
  with_majors(p, [&]<bool kAMnMajor, bool kBMnMajor>() {
    launched = f64_tma::run_tile<kAMnMajor, kBMnMajor, true>(p, plan, b.signs, context);
  });
  return launched;
}

}  // namespace tiled::cuda
