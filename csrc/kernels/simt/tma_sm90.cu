// simt_tma: TMA loads both operands, so that threads issue almost nothing but FMAs.
//
// Idea:  An SM issues four warp instructions a cycle, and an FMA takes one of these issue slots, so
//        everything else must be rare. A thread has 8 x 16 elements of C, for which it reads 24
//        numbers from shared memory for each k, one k ahead. One elected thread issues the TMA
//        loads, several stages ahead and on into the next tile of its persistent block: tiles (K,
//        rows of A) and (K, columns of B). Operands that are not MN-major with 16-byte aligned rows
//        are copied to such first, by one launch more. Smaller tiles, several blocks an SM, are for
//        smaller problems, and K is split as by simt_cp_async (split_k_reduce.cuh).
// Limit: The register file has two banks, even and odd, that give one operand a cycle each. One of
//        an FMA's three operands comes from the reuse cache; the other two have to be in different
//        banks (Quad in register_tile.cuh).
// Next:  K-major operands read in place, at no cost in registers.
//
//   producer    wait empty[stage]    tma_load A and B of a step -> full[stage]
//   consumers   wait full[stage]     load its first fragments while the ones before are multiplied
//               its last fragments are loaded -> empty[stage]
//   At the end of a chunk, consumers add its sums to the totals in shared memory, or, if K is
//   split, write them to the workspace.

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/order_chunked.h"
#include "core/stored_batch.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/register_tile.cuh"
#include "kernels/simt/split_k_reduce.cuh"
#include "kernels/simt/store.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace {

// --- Transposition -------------------------------------------------------------------------------

// Operands are copied to MN-major ones with 16-byte aligned rows, if they are not such. A block
// copies a square by way of shared memory. Adjacent threads read elements that are adjacent in
// memory, along K or along M or N, and write 128-bit vectors along M or N.
namespace transpose {

constexpr int kSide = 64, kThreads = 256;
constexpr int kPerThread = kSide * kSide / kThreads;  // elements

// One operand to copy. `mn` counts A's rows or B's columns.
struct OperandCopy {
  Matrix from;  // row_stride: along M or N; col_stride: along K
  Batch batch;  // of the matrices that are stored: without broadcast dimensions
  float* to;
  int64_t mn, k, pitch;
  unsigned squares_mn, squares_k, blocks;
};

struct Params {
  OperandCopy operand[2];  // one with 0 blocks is not copied
  bool next_starts_early;
};

using Square = float[kSide][kSide + 1];  // (K, MN), padded against bank conflicts

// Reads the square at (first_mn, first_k) of a matrix, of which mn_left by k_left elements are
// inside; zeros beyond. Adjacent threads read along `near`, the dimension with the smaller stride.
__device__ void load_square(const OperandCopy& operand, unsigned matrix, int64_t first_mn,
                            int64_t first_k, int mn_left, int k_left, Square& square) {
  constexpr int kAtOnce = kThreads / kSide;  // along the far dimension
  const Matrix& from = operand.from;
  const bool k_major = from.col_stride < from.row_stride;
  const int near = threadIdx.x % kSide, far = threadIdx.x / kSide;
  const int64_t near_stride = k_major ? from.col_stride : from.row_stride;
  const int64_t far_stride = k_major ? from.row_stride : from.col_stride;
  const float* data = static_cast<const float*>(from.data) +
                      batch_offset(operand.batch, from, matrix) + first_mn * from.row_stride +
                      first_k * from.col_stride + near * near_stride + far * far_stride;
  const int far_left = near < (k_major ? k_left : mn_left) ? (k_major ? mn_left : k_left) - far : 0;
  float x[kPerThread];
  UNROLL
  for (int i = 0; i < kPerThread; ++i, data += kAtOnce * far_stride) {
    x[i] = i * kAtOnce < far_left ? *data : 0.0f;
  }
  float* to = k_major ? &square[near][far] : &square[far][near];
  const int step = k_major ? kAtOnce : kAtOnce * (kSide + 1);
  UNROLL
  for (int i = 0; i < kPerThread; ++i) to[i * step] = x[i];
}

__global__ void __launch_bounds__(kThreads, 6)
    transpose_kernel(const __grid_constant__ Params params) {
  __shared__ Square square;
  if (params.next_starts_early) ptx::pdl_launch_dependents();
  const bool is_b = blockIdx.x >= params.operand[0].blocks;
  const OperandCopy& operand = params.operand[is_b];
  const unsigned block = is_b ? blockIdx.x - params.operand[0].blocks : blockIdx.x;
  const unsigned matrix = block / operand.squares_mn / operand.squares_k;
  const int64_t first_k = int64_t{block / operand.squares_mn % operand.squares_k} * kSide;
  const int64_t first_mn = int64_t{block % operand.squares_mn} * kSide;
  const auto mn_left = static_cast<int>(min(operand.mn - first_mn, int64_t{kSide}));
  const auto k_left = static_cast<int>(min(operand.k - first_k, int64_t{kSide}));
  load_square(operand, matrix, first_mn, first_k, mn_left, k_left, square);
  __syncthreads();

  constexpr int kVectors = kSide / 4, kAtOnce = kThreads / kVectors;  // along K
  const int mn = threadIdx.x % kVectors * 4, first = threadIdx.x / kVectors;
  if (first_mn + mn >= operand.pitch) return;
  float* to = operand.to + (matrix * operand.k + first_k + first) * operand.pitch + first_mn + mn;
  UNROLL
  for (int i = 0; i < kPerThread / 4; ++i, to += kAtOnce * operand.pitch) {
    const float* x4 = &square[first + i * kAtOnce][mn];
    if (first + i * kAtOnce < k_left) {
      __stcg(reinterpret_cast<float4*>(to), make_float4(x4[0], x4[1], x4[2], x4[3]));
    }
  }
}

// Returns a float32 problem with K > 0 whose operands are is_tma_aligned_mn_major(): an operand
// that is not is copied to a workspace by a kernel. If next_starts_early, the next kernel on the
// stream may start before the copy is complete (PDL). Returns nothing if there is no memory for
// the workspace.
std::optional<Problem> make_mn_major(const Problem& p, bool next_starts_early,
                                     const Context& context) {
  Matrix operands[] = {p.a, transposed(p.b)};
  const int64_t mn[] = {p.m, p.n};
  Params params{.operand = {}, .next_starts_early = next_starts_early};
  int64_t bytes = 0, offset[2]{};  // of the workspace
  for (int i = 0; i < 2; ++i) {
    if (is_tma_aligned_mn_major(p.batch, operands[i])) continue;
    OperandCopy& operand = params.operand[i];
    operand.mn = mn[i], operand.k = p.k, operand.pitch = simt_transposed_pitch(mn[i]);
    offset[i] = bytes;
    bytes += simt_transposed_bytes(p, operands[i], mn[i]);
    Matrix to{.data = nullptr, .row_stride = 1, .col_stride = operand.pitch};
    const StoredBatch stored = stored_batch(p.batch, operands[i], operand.pitch * p.k, to);
    operand.from = stored.from, operand.batch = stored.batch, operands[i] = to;
    operand.squares_mn = static_cast<unsigned>(ceil_div(operand.mn, kSide));
    operand.squares_k = static_cast<unsigned>(ceil_div(operand.k, kSide));
    operand.blocks =
        static_cast<unsigned>(operand.squares_mn * operand.squares_k * operand.batch.count);
  }
  const unsigned blocks = params.operand[0].blocks + params.operand[1].blocks;
  if (blocks > 0) {
    void* workspace = context.allocate(bytes);
    if (workspace == nullptr) return std::nullopt;
    for (int i = 0; i < 2; ++i) {
      if (params.operand[i].blocks == 0) continue;
      void* to = static_cast<uint8_t*>(workspace) + offset[i];
      operands[i].data = to;
      params.operand[i].to = static_cast<float*>(to);
    }
    transpose_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(params);
    check(cudaGetLastError());
  }
  Problem mn_major = p;
  mn_major.a = operands[0];
  mn_major.b = transposed(operands[1]);
  return mn_major;
}

}  // namespace transpose

// --- Tiles and parameters ------------------------------------------------------------------------

// Consumers read a stage in slices of kUnroll along K. The unrolled slice has to fit in the
// instruction cache, and to be long enough to cover the wait for the next slice's first fragments.
// If kConsumerRegisters is not 0, a whole warpgroup produces, and setmaxnreg moves registers
// from it to the consumers; otherwise one warp produces and all threads have equally many.
template <int kIndex, int kThreadM, int kThreadN, int kK_, int kUnroll_, int kStages_,
          int kConsumerRegisters_, int kProducerRegisters_>
struct Tile : RegisterTile<h200::kSimtTmaTiles[kIndex].m, h200::kSimtTmaTiles[kIndex].n, kThreadM,
                           kThreadN, 8> {
  static constexpr int kK = kK_;  // of a step
  static constexpr int kStages = kStages_;
  static constexpr int kUnroll = kUnroll_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kThreads = Tile::kConsumers + (kConsumerRegisters > 0 ? 128 : 32);
  static constexpr int kBlocksPerSm = h200::kSimtTmaTiles[kIndex].blocks;
  static constexpr int kRasterRows = 8;  // rows of tiles that the scheduler rasterizes together

  static_assert(kChunk % kK == 0 && kK % kUnroll == 0, "a chunk is a whole number of slices");
  static_assert((kConsumerRegisters > 0) == (kProducerRegisters > 0));
};

template <class Tile>
struct Smem {
  alignas(128) float a[Tile::kStages][Tile::kK][Tile::kM];
  alignas(128) float b[Tile::kStages][Tile::kK][Tile::kN];
  TileSums<Tile> totals;  // of finished chunks
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

struct Params {
  Problem p;
  CUtensorMap a, b;  // of MN-major operands
  bool c_vectorized;
  int64_t tiles;
  TileScheduler scheduler;
  unsigned k_splits;
  void* partial_sums;  // the workspace, TileSums[chunk][tile], if K is split
};

// The tile's number in row-major order, by which simt_split_k_reduce_kernel() counts tiles.
template <class Tile>
__device__ int64_t row_major_index(const Problem& p, const TileCoord& tile) {
  return (tile.batch * ceil_div(p.m, Tile::kM) + tile.row / Tile::kM) * ceil_div(p.n, Tile::kN) +
         tile.col / Tile::kN;
}

// A tile of C, summed over one K split.
template <class Tile>
struct WorkTile {
  TileCoord tile;
  ChunkRange chunks;

  __device__ WorkTile(const Params& params, int64_t index)
      : tile(locate<Tile>(params.scheduler, index % params.tiles)),
        chunks(params.p.k, static_cast<unsigned>(index / params.tiles), params.k_splits) {}
};

template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  constexpr int kBytes = sizeof(smem.a[0]) + sizeof(smem.b[0]);
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  auto wait = [&] { ptx::mbarrier_wait_sleeping(&smem.empty[pipe.stage], pipe.parity); };
  for (int64_t index = blockIdx.x; index < params.tiles * params.k_splits; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    const TmaCoords a(params.p.batch, params.p.a, work.tile.batch);
    const TmaCoords b(params.p.batch, params.p.b, work.tile.batch);
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int64_t k = 0; k < work.chunks.length; k += Tile::kK, pipe.advance()) {
      const int k_coord = static_cast<int>(work.chunks.k + k);
      uint64_t* full = &smem.full[pipe.stage];
      wait();
      ptx::arrive_expect_tx(full, kBytes);
      ptx::tma_load(smem.a[pipe.stage], &params.a,
                    {work.tile.row, k_coord, a.at[0], a.at[1], a.at[2]}, full);
      ptx::tma_load(smem.b[pipe.stage], &params.b,
                    {work.tile.col, k_coord, b.at[0], b.at[1], b.at[2]}, full);
    }
  }
  wait();  // consumers wait for one stage more than there is
  ptx::mbarrier_arrive(&smem.full[pipe.stage]);
}

// Each thread copies its sums to the workspace. The function is not inlined, which keeps its code
// and registers out of the main loop's.
template <class Tile>
__device__ __noinline__ void store_partial_sums(const TileSums<Tile>& from, TileSums<Tile>* to) {
  NO_UNROLL
  for (int quad = 0; quad < Tile::kQuads; ++quad) {
    (*to)[quad][threadIdx.x] = from[quad][threadIdx.x];
  }
}

template <class Tile>
__device__ void consume(const Params& params, Smem<Tile>& smem) {
  ptx::pdl_wait();
  const QuadCoord<Tile> first(threadIdx.x, 0);

  Fragments<Tile> fragments;
  const float *a = &smem.a[0][0][first.row],
              *b = &smem.b[0][0][first.col];  // the thread's elements at the slice's first k
  auto load = [&](int buffer, int kk) {
    fragments.load(buffer, a + kk * Tile::kM, b + kk * Tile::kN);
  };
  float acc[Tile::kThreadM][Tile::kThreadN];
  auto multiply = [&](int buffer) { fragments.multiply(buffer, acc); };

  constexpr unsigned kSlices = Tile::kK / Tile::kUnroll;  // of a stage
  constexpr unsigned kPipeSlices = Tile::kStages * kSlices;
  unsigned slice = 0;  // counted over all tiles
  auto next_slice = [&] {
    if (slice % kSlices == kSlices - 1) {  // all lanes have loaded the stage's last fragments
      ptx::consumer_release(&smem.empty[slice / kSlices % Tile::kStages]);
    }
    ++slice;
    const unsigned stage = slice / kSlices;
    ptx::mbarrier_wait(&smem.full[stage % Tile::kStages], stage / Tile::kStages % 2);
    a = &smem.a[0][0][first.row] + slice % kPipeSlices * (Tile::kUnroll * Tile::kM);
    b = &smem.b[0][0][first.col] + slice % kPipeSlices * (Tile::kUnroll * Tile::kN);
    load(0, 0);
  };

  ptx::mbarrier_wait(&smem.full[0], 0);
  load(0, 0);
  for (int64_t index = blockIdx.x; index < params.tiles * params.k_splits; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    int64_t k_left = work.chunks.length;
    for (unsigned chunk = work.chunks.begin; chunk < work.chunks.end; ++chunk, k_left -= kChunk) {
      const auto length = static_cast<int>(min(k_left, int64_t{kChunk}));
      UNROLL
      for (int i = 0; i < Tile::kThreadM; ++i) {
        UNROLL
        for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = 0;
      }
      NO_UNROLL
      for (int slices = length / Tile::kUnroll; slices > 0; --slices) {
        UNROLL
        for (int kk = 0; kk < Tile::kUnroll; ++kk) {
          if (kk + 1 < Tile::kUnroll) {
            load((kk + 1) % 2, kk + 1);
          } else {
            next_slice();
          }
          multiply(kk % 2);
        }
      }
      if (length % Tile::kUnroll != 0) {  // TMA's zeros beyond K would turn a sum of -0 into +0
        NO_UNROLL
        for (int kk = 0; kk < length % Tile::kUnroll; ++kk) {
          multiply(0);
          load(0, kk + 1);
        }
        next_slice();
      }
      UNROLL
      for (int quad = 0; quad < Tile::kQuads; ++quad) {
        const int i = quad / (Tile::kThreadN / 4), j = quad % (Tile::kThreadN / 4) * 4;
        const bool starts_total = k_left == work.chunks.length || params.k_splits > 1;
        Quad total = starts_total ? Quad::identity() : smem.totals[quad][threadIdx.x];
        total.add(&acc[i][j]);
        smem.totals[quad][threadIdx.x] = total;
      }
      if (params.k_splits > 1) {
        auto* partial_sums = static_cast<TileSums<Tile>*>(params.partial_sums);
        store_partial_sums<Tile>(smem.totals, partial_sums + chunk * params.tiles +
                                                  row_major_index<Tile>(params.p, work.tile));
      }
    }

    if (slice % kSlices != 0) next_slice();  // the rest of the last stage is beyond K

    if (params.k_splits > 1) continue;
    const int64_t c_offset = batch_offset(params.p.batch, params.p.c, work.tile.batch);
    store_quads<Tile>(params.p, params.c_vectorized, c_offset, work.tile.row, work.tile.col,
                      threadIdx.x, smem.totals);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    simt_tma_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty, Tile::kConsumers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (params.k_splits > 1) ptx::pdl_launch_dependents();
  if (threadIdx.x >= Tile::kConsumers) {
    if constexpr (Tile::kConsumerRegisters > 0) {
      ptx::setmaxnreg_dec<Tile::kProducerRegisters>();
    }
    if (threadIdx.x / 32 == Tile::kConsumers / 32 && ptx::elect_one()) produce<Tile>(params, smem);
  } else {
    if constexpr (Tile::kConsumerRegisters > 0) {
      ptx::setmaxnreg_inc<Tile::kConsumerRegisters>();
    }
    consume<Tile>(params, smem);
  }
}

// Without memory for the partial sums, K is not split.
template <class Tile>
void run(const Problem& p, const Plan& plan, const Context& context) {
  static_assert(Tile::kBlocksPerSm * (sizeof(Smem<Tile>) + 1024) <= kMaxSharedMemory + 1024);
  const auto map = [&](const Matrix& matrix, int64_t mn, int box_mn) {
    return tensor_map(p.batch, matrix, mn, p.k, box_mn, Tile::kK, CU_TENSOR_MAP_SWIZZLE_NONE);
  };
  Params params{
      .p = p,
      .a = map(p.a, p.m, Tile::kM),
      .b = map(transposed(p.b), p.n, Tile::kN),
      .c_vectorized = is_c_vectorized(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .scheduler = TileScheduler::of<Tile>(p),
      .k_splits = static_cast<unsigned>(plan.k_splits),
      .partial_sums = nullptr,
  };
  if (plan.k_splits > 1) {
    static_assert(sizeof(TileSums<Tile>) == Tile::kM * Tile::kN * sizeof(float));
    params.partial_sums = context.allocate(simt_partial_sums_bytes(p, plan));
    if (params.partial_sums == nullptr) params.k_splits = 1;
  }
  const auto kernel = simt_tma_kernel<Tile>;
  // Blocks are persistent: a block loads the first stages of its next tile while it stores the last
  // one. It is launched with so much shared memory that only blocks_per_sm of them fit on an SM.
  // Blocks that start while operands are still being transposed would otherwise gather on the SMs
  // that are free first.
  const int64_t wave = int64_t{plan.blocks_per_sm} * context.sms;
  const auto blocks = static_cast<unsigned>(std::min(params.tiles * params.k_splits, wave));
  const size_t smem_bytes = shared_memory_for(sizeof(Smem<Tile>), plan.blocks_per_sm);
  allow_shared_memory(kernel, kMaxSharedMemory);
  launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, params);
  if (params.k_splits == 1) return;
  launch_split_k_reduce<Tile>({p, params.c_vectorized, params.tiles, params.partial_sums}, context);
}

}  // namespace

bool launch_simt_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  // Blocks that start while the transposition still runs gather on the SMs that are free first,
  // if several can share one. They may if one wave holds all tiles; in a last wave that is
  // not full, persistent blocks that have gathered would leave the other SMs idle.
  const int64_t wave = int64_t{plan.blocks_per_sm} * context.sms;
  const bool starts_early =
      plan.blocks_per_sm == 1 || count_tiles(p, plan.m, plan.n) * plan.k_splits <= wave;
  const std::optional<Problem> mn_major = transpose::make_mn_major(p, starts_early, context);
  if (!mn_major) return false;
  using namespace h200;
  return with_tile<std::size(kSimtTmaTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr SimtTmaTile kTile = kSimtTmaTiles[kIndex];
    run<Tile<kIndex, kTile.thread_m, kTile.thread_n, kTile.k, kTile.unroll, kTile.stages,
             kTile.consumer_registers, kTile.producer_registers>>(*mn_major, plan, context);
    return true;
  });
}

}  // namespace tiled::cuda
