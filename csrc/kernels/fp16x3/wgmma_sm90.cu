// 03 fp16x3_wgmma: float32 products on tensor cores, as three products of halves.
//
// Idea:  tensor cores multiply halves thirty times as fast as an SM's float32 units do. Two halves
//        hold a float32 (csrc/fp16x3.h), so three products of halves make one of float32. A first
//        kernel splits both operands, in the order in which this one wants them in shared memory;
//        here one thread keeps copying steps of them, and two warpgroups multiply. Tensor cores
//        truncate: so the main product is taken out of them every kPromote of K and added by
//        rounded additions, while they compute the two small ones. Where there are few tiles,
//        blocks take ranges of chunks (cuts.h), and a third kernel adds the chunks' sums.
// Limit: the power that the GPU may draw; then, for small problems, whole waves of tiles.
// Next:  the split hidden under the product; tiles shared by two SMs.
//
//   producer    wait empty[s]           copy A and B of a step into stage s -> full[s]
//   consumers   wait full[s]            part = hi hi;  low += lo hi + hi lo
//               part is finished        the stage before is finished too -> empty[s - 1]
//               total += part           while low is computed
//   at the end of a chunk, its sum goes to those of the chunks before, which wait in shared memory,
//   or, where K is cut, to memory.

#include "core/epilogue.h"
#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/stored_batch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/flagged.cuh"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/split.h"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace {

namespace wgmma = ptx::wgmma;

struct Tile {
  static constexpr int kM = 128, kN = 128, kK = Presplit::kK;
  static constexpr int kStages = 5;
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = 2;  // warpgroups, each 64 rows of the tile
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kElements = 64;   // of C a thread
  static constexpr int kRasterRows = 8;  // tiles of rows that are worked off together

  static_assert(kM == Presplit::kRows && kN == Presplit::kRows, "a step of a tile is one copy");
  static_assert(kM == h200::Fp16x3::kWgmmaTile && kN == h200::Fp16x3::kWgmmaTile);
};

// A warpgroup's sums of a tile: of each thread by fours.
using ChunkSums = float4[Tile::kElements / 4][Tile::kWarpgroup];

struct Smem {
  struct Stage {
    uint8_t a[2 * Presplit::plane_bytes(Tile::kM)];  // hi, then lo
    uint8_t b[2 * Presplit::plane_bytes(Tile::kN)];
  };
  alignas(1024) Stage stage[Tile::kStages];
  ChunkSums sums[Tile::kConsumers];  // of finished chunks
  float bias[Tile::kConsumers][Tile::kN];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

// A split operand, and where in it the matrices of the batch lie.
struct Source {
  Presplit presplit;
  Matrix matrix;  // batch_stride counts stored matrices
};

struct Work {
  TileScheduler scheduler;
  int64_t tiles;
  Problem p;
  Source a, b;
  Marks marks;
  bool stores_simply;  // a bias and ReLU at most, pairs in a row of C at once
  void* sums;          // of chunks, where K is cut
};

// The chunks that a block sums: all, or, where K is cut, a range by its place along the grid's y.
struct Chunks {
  int first, end;
  __device__ explicit Chunks(const Problem& p) {
    const auto all = static_cast<unsigned>(ceil_div(p.k, kChunk));
    first = static_cast<int>(blockIdx.y * all / gridDim.y);
    end = static_cast<int>((blockIdx.y + 1) * all / gridDim.y);
  }
};

__device__ void produce(const Work& work, Smem& smem) {
  constexpr int64_t kStepsOfChunk = kChunk / Tile::kK;
  const Chunks chunks(work.p);
  const int64_t first = chunks.first * kStepsOfChunk;
  const int64_t end = min(chunks.end * kStepsOfChunk, ceil_div(work.p.k, Tile::kK));
  ptx::PipelineState turn{.stages = Tile::kStages, .parity = 1};
  for (int64_t index = blockIdx.x; index < work.tiles; index += gridDim.x) {
    const TileCoord at = locate<Tile>(work.scheduler, index);
    const int64_t a_tile = at.row / Tile::kM, b_tile = at.col / Tile::kN;
    const int64_t a_matrix = batch_offset(work.p.batch, work.a.matrix, at.batch);
    const int64_t b_matrix = batch_offset(work.p.batch, work.b.matrix, at.batch);
    const uint8_t* a = work.a.presplit.hi_lo + work.a.presplit.step_offset(a_matrix, a_tile, first);
    const uint8_t* b = work.b.presplit.hi_lo + work.b.presplit.step_offset(b_matrix, b_tile, first);
    const int a_bytes = 2 * Presplit::plane_bytes(work.a.presplit.tile_rows(a_tile));
    const int b_bytes = 2 * Presplit::plane_bytes(work.b.presplit.tile_rows(b_tile));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int64_t step = first; step < end; ++step, turn.advance()) {
      Smem::Stage& stage = smem.stage[turn.stage];
      uint64_t* full = &smem.full[turn.stage];
      ptx::mbarrier_wait(&smem.empty[turn.stage], turn.parity);
      ptx::arrive_expect_tx(full, a_bytes + b_bytes);
      ptx::bulk_load(stage.a, a, a_bytes, full);
      ptx::bulk_load(stage.b, b, b_bytes, full);
      a += a_bytes, b += b_bytes;
    }
  }
}

// Where a thread's elements lie: element i in row + i / 2 % 2 * 8, column col + i / 4 * 8 + i % 2.
struct Place {
  int64_t batch, row, col, tile_col;  // the last of the tile's first
  __device__ Place(const TileCoord& tile, int warpgroup, int thread)
      : batch(tile.batch),
        row(tile.row + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4),
        col(tile.col + thread % 4 * 2),
        tile_col(tile.col) {}
};

// From sums to C, where little is to be asked. Returns false, and does nothing, where more is.
__device__ bool store_simply(const Work& work, const Place& at, float (&sum)[Tile::kElements],
                             const float (&bias)[Tile::kN]) {
  bool simple = work.stores_simply && at.row + 8 < work.p.m && at.col + Tile::kN - 8 + 1 < work.p.n;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) simple &= !isnan(sum[i]);
  if (!__all_sync(~0u, simple)) return false;
  if (work.p.epilogue.bias != nullptr) {
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 4) {
      const float2 two = *reinterpret_cast<const float2*>(&bias[threadIdx.x % 4 * 2 + i * 2]);
      sum[i] += two.x, sum[i + 1] += two.y, sum[i + 2] += two.x, sum[i + 3] += two.y;
    }
  }
  if (work.p.epilogue.activation == Activation::kRelu) {
    UNROLL
    for (float& each : sum) each = activate(Activation::kRelu, each);
  }
  const OutMatrix& c = work.p.c;
  float* data = static_cast<float*>(c.data) + batch_offset(work.p.batch, c, at.batch) +
                at.row * c.row_stride + at.col;
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 2) {
    float* pair = data + i / 2 % 2 * 8 * c.row_stride + i / 4 * 8;
    *reinterpret_cast<float2*>(pair) = {sum[i], sum[i + 1]};
  }
  return true;
}

// From sums to C, but for sums that are NaN, which are listed. By way of shared memory, so that the
// loop stays a loop: unrolled, every activation would be there 64 times.
__device__ void store_tile(const Work& work, const Place& at, const float (&sum)[Tile::kElements],
                           const float (&bias)[Tile::kN], ChunkSums& scratch) {
  const Problem& p = work.p;
  const Epilogue& epilogue = p.epilogue;
  const int thread = threadIdx.x % Tile::kWarpgroup;
  const int64_t down = 8 * p.c.row_stride, right = p.c.col_stride;
  const bool inside[2] = {at.row < p.m, at.row + 8 < p.m};
  const int cols_left = static_cast<int>(min(p.n - at.col, int64_t{Tile::kN}));
  uint64_t marked = 0;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const bool exists = inside[i / 2 % 2] && i / 4 * 8 + i % 2 < cols_left;
    if (exists && isnan(sum[i])) marked |= uint64_t{1} << i;
  }
  list_marked(work.marks, at.batch, at.row, at.col, marked);
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    scratch[i / 4][thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
  float* c = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, at.batch) +
             at.row * p.c.row_stride + at.col * p.c.col_stride;
  NO_UNROLL
  for (int i = 0; i < Tile::kElements; i += 4, c += 8 * right) {
    const float4 four = scratch[i / 4][thread];
    const float each[] = {four.x, four.y, four.z, four.w};
    const float2 two = *reinterpret_cast<const float2*>(&bias[thread % 4 * 2 + i * 2]);
    bool stored[4];
    float old[4] = {};
    UNROLL
    for (int j = 0; j < 4; ++j) {
      stored[j] = inside[j / 2] && i * 2 + j % 2 < cols_left && !isnan(each[j]);
      if (epilogue.beta != 0 && stored[j]) old[j] = c[j / 2 * down + j % 2 * right];
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float value = combine(epilogue, each[j], j % 2 == 0 ? two.x : two.y, old[j]);
      if (stored[j]) c[j / 2 * down + j % 2 * right] = activate(epilogue.activation, value);
    }
  }
}

// Where K is cut, sums of chunks wait in memory, of each tile, chunk and warpgroup.
__device__ ChunkSums& sums_of(const Work& work, int64_t tile, int chunk, int warpgroup) {
  const int64_t at = tile * ceil_div(work.p.k, kChunk) + chunk;
  return static_cast<ChunkSums*>(work.sums)[at * Tile::kConsumers + warpgroup];
}

// A thread of those that multiply.
struct Multiplier {
  int warpgroup, thread;  // of the tile's, and in it
  __device__ Multiplier()
      : warpgroup(threadIdx.x / Tile::kWarpgroup - 1), thread(threadIdx.x % Tile::kWarpgroup) {}
  // Tells who copies that the warp needs a stage no more.
  __device__ void release(Smem& smem, int stage) const {
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
  }
};

// Where in a stage low halves begin.
struct LowHalves {
  int a, b;
};

constexpr int kNoStage = -1;

// Products of a step of K: those of high halves kPromote of K at a time, which are added to the
// total, and both with low ones, of which the last are left unfinished. The stage of the step
// before is released as soon as its products have ended.
template <int kPromote>
__device__ void multiply_step(Smem& smem, int stage_index, int to_release, LowHalves lows,
                              const Multiplier& me, float (&part)[Tile::kElements],
                              float (&low)[Tile::kElements], float (&total)[Tile::kElements]) {
  const Smem::Stage& stage = smem.stage[stage_index];
  const int first = me.warpgroup * Presplit::plane_bytes(64);
  const uint64_t a_hi_smem = wgmma::descriptor(stage.a + first);
  const uint64_t a_lo_smem = wgmma::descriptor(stage.a + lows.a + first);
  const uint64_t b_hi_smem = wgmma::descriptor(stage.b);
  const uint64_t b_lo_smem = wgmma::descriptor(stage.b + lows.b);
  // Unrolled, ptxas gives each part its own registers, runs out of them, and lets no two products
  // overlap.
  _Pragma("unroll 1") for (int k = 0; k < Tile::kK; k += kPromote) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int along = (k / 16 + k16) * 2;
      wgmma::mma(part, a_hi_smem + along, b_hi_smem + along, k16 > 0);
    }
    wgmma::commit_group();
    UNROLL
    for (int k16 = 0; k16 < kPromote / 16; ++k16) {
      const int along = (k / 16 + k16) * 2;
      wgmma::mma(low, a_lo_smem + along, b_hi_smem + along, true);
      wgmma::mma(low, a_hi_smem + along, b_lo_smem + along, true);
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    if (k == 0 && to_release != kNoStage) me.release(smem, to_release);
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] += part[i];
  }
}

// Sums of a chunk of so many steps: of products of high halves, and of those with low ones, of
// which the last are left unfinished, and their stage, which is told, unreleased.
template <int kPromote>
__device__ int multiply_chunk(Smem& smem, ptx::PipelineState& turn, int steps, LowHalves lows,
                              const Multiplier& me, float (&low)[Tile::kElements],
                              float (&total)[Tile::kElements]) {
  float part[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) part[i] = 0, low[i] = 0, total[i] = 0;
  int to_release = kNoStage;
  for (int step = 0; step < steps; ++step, turn.advance()) {
    ptx::mbarrier_wait(&smem.full[turn.stage], turn.parity);
    multiply_step<kPromote>(smem, turn.stage, to_release, lows, me, part, low, total);
    to_release = turn.stage;
  }
  return to_release;
}

// By what a chunk's sums are scaled back, for a thread's rows and columns.
struct Undo {
  float row[2];
  float2 col[Tile::kElements / 4];

  __device__ Undo(const Presplit& a, int64_t a_matrix, const Presplit& b, int64_t b_matrix,
                  int chunk, const Place& at) {
    const float* a_undo = a.inverse_scales + a_matrix * a.matrix_groups() + chunk * a.padded_rows();
    const float* b_undo = b.inverse_scales + b_matrix * b.matrix_groups() + chunk * b.padded_rows();
    UNROLL
    for (int i = 0; i < 2; ++i) {
      row[i] = at.row + i * 8 < a.padded_rows() ? a_undo[at.row + i * 8] : 1.0f;
    }
    UNROLL
    for (int j = 0; j < Tile::kElements / 4; ++j) {
      const int64_t first = at.col + j * 8;
      col[j] =
          first < b.padded_rows() ? *reinterpret_cast<const float2*>(b_undo + first) : float2{1, 1};
    }
  }
};

// Where K is cut: a chunk's sums leave for memory.
__device__ void store_chunk(ChunkSums& sums, int thread, const float (&total)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    __stcg(&sums[i / 4][thread], float4{total[i], total[i + 1], total[i + 2], total[i + 3]});
  }
}

// Elsewhere: adds those of the chunks before, if there are any, and keeps all if there are more.
__device__ void add_before(ChunkSums& before, int thread, bool any, bool more,
                           float (&total)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    float4& sums = before[i / 4][thread];
    if (any) {
      total[i] += sums.x, total[i + 1] += sums.y;
      total[i + 2] += sums.z, total[i + 3] += sums.w;
    }
    if (more) sums = {total[i], total[i + 1], total[i + 2], total[i + 3]};
  }
}

template <int kPromote>
__device__ void consume(const Work& work, Smem& smem) {
  const Multiplier me;
  ptx::PipelineState turn{.stages = Tile::kStages};
  const Chunks chunks(work.p);
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < work.tiles; index += gridDim.x) {
    const TileCoord position = locate<Tile>(work.scheduler, index);
    const Presplit &a = work.a.presplit, &b = work.b.presplit;
    const int64_t a_matrix = batch_offset(work.p.batch, work.a.matrix, position.batch);
    const int64_t b_matrix = batch_offset(work.p.batch, work.b.matrix, position.batch);
    const LowHalves lows{Presplit::plane_bytes(a.tile_rows(position.row / Tile::kM)),
                         Presplit::plane_bytes(b.tile_rows(position.col / Tile::kN))};
    const Place at(position, me.warpgroup, me.thread);

    float low[Tile::kElements], total[Tile::kElements];
    for (int chunk = chunks.first; chunk < chunks.end; ++chunk) {
      const int steps = static_cast<int>(
          ceil_div(min(work.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}), Tile::kK));
      const int last = multiply_chunk<kPromote>(smem, turn, steps, lows, me, low, total);
      const Undo undo(a, a_matrix, b, b_matrix, chunk, at);
      wgmma::wait_group<0>();
      wgmma::fence_operand(low);
      me.release(smem, last);
      finish_chunk(total, low, undo.row, undo.col);
      if (gridDim.y > 1) {
        store_chunk(sums_of(work, index, chunk, me.warpgroup), me.thread, total);
      } else {
        add_before(smem.sums[me.warpgroup], me.thread, chunk > 0, chunk < chunks.end - 1, total);
      }
    }
    if (gridDim.y > 1) continue;
    float(&bias)[Tile::kN] = smem.bias[me.warpgroup];
    if (work.p.epilogue.bias != nullptr) {
      load_bias<float>(work.p, at.tile_col, 1 + me.warpgroup, bias);
    }
    if (!store_simply(work, at, total, bias)) {
      store_tile(work, at, total, bias, smem.sums[me.warpgroup]);
    }
  }
}

template <int kPromote>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_wgmma_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty,
                              Tile::kConsumers * Tile::kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  // nvcc puts the else first among the instructions: what asks for operands should wait for none.
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<240>();
    consume<kPromote>(work, smem);
  } else {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce(work, smem);
  }
}

// Adds the sums of chunks, where K is cut. A block has what a warpgroup had of a tile: its teams
// add some of each thread's elements, and the first one stores them.
constexpr int kTeams = 4, kAddThreads = kTeams * Tile::kWarpgroup;

__global__ void __launch_bounds__(kAddThreads)
    fp16x3_split_k_reduce_kernel(const __grid_constant__ Work work) {
  constexpr int kFours = Tile::kElements / 4 / kTeams;
  __shared__ ChunkSums sums;
  __shared__ float bias[Tile::kN];
  ptx::pdl_launch_dependents();
  const int64_t tile = blockIdx.x / Tile::kConsumers;
  const int warpgroup = blockIdx.x % Tile::kConsumers;
  const int team = threadIdx.x / Tile::kWarpgroup, thread = threadIdx.x % Tile::kWarpgroup;
  const int chunks = static_cast<int>(ceil_div(work.p.k, kChunk));
  ptx::pdl_wait();
  constexpr float kEmpty = kAddIdentity<float>;
  float4 four[kFours];
  UNROLL
  for (float4& each : four) each = {kEmpty, kEmpty, kEmpty, kEmpty};
  _Pragma("unroll 4") for (int chunk = 0; chunk < chunks; ++chunk) {
    const ChunkSums& from = sums_of(work, tile, chunk, warpgroup);
    UNROLL
    for (int i = 0; i < kFours; ++i) {
      const float4 add = __ldcg(&from[team * kFours + i][thread]);
      four[i].x += add.x, four[i].y += add.y, four[i].z += add.z, four[i].w += add.w;
    }
  }
  UNROLL
  for (int i = 0; i < kFours; ++i) sums[team * kFours + i][thread] = four[i];
  __syncthreads();
  if (team > 0) return;

  float total[Tile::kElements];
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    const auto [x, y, z, w] = sums[i / 4][thread];
    total[i] = x, total[i + 1] = y, total[i + 2] = z, total[i + 3] = w;
  }
  const Place at(locate<Tile>(work.scheduler, tile), warpgroup, thread);
  if (work.p.epilogue.bias != nullptr) load_bias<float>(work.p, at.tile_col, 1, bias);
  if (!store_simply(work, at, total, bias)) store_tile(work, at, total, bias, sums);
}

// What is launched for a problem, and where its parts lie in one workspace.
struct WorkspaceOf {
  Operand a, b;
  Matrix a_index, b_index;  // batch_stride counts stored matrices
  int64_t count_at, a_at, b_at, a_undo_at, b_undo_at, pieces_at, sums_at, bytes;
  int64_t ranges;  // of chunks, that K is cut into
};

// An operand's matrices as they are stored, and which of them each of the batch is.
Operand make_operand(const Problem& p, const Matrix& by_rows, int64_t rows, Matrix& index) {
  const StoredBatch stored = stored_batch(p.batch, by_rows, 1, index);
  return {.matrix = stored.from, .batch = stored.batch, .presplit = {.rows = rows, .k = p.k}};
}

WorkspaceOf lay_out_workspace(const Problem& p, int64_t ranges) {
  WorkspaceOf plan{};
  plan.a = make_operand(p, p.a, p.m, plan.a_index);
  plan.b = make_operand(p, transposed(p.b), p.n, plan.b_index);
  WorkspaceLayout layout;
  auto halves = [&](const Operand& x) {
    return layout.reserve(x.presplit.matrix_bytes() * x.batch.count);
  };
  auto undo = [&](const Operand& x) {
    return layout.reserve(x.presplit.matrix_groups() * x.batch.count * int64_t{sizeof(float)});
  };
  const bool splits_b = p.b_presplit.hi_lo == nullptr;
  plan.count_at = layout.reserve(sizeof(int));
  plan.a_at = halves(plan.a);
  plan.a_undo_at = undo(plan.a);
  plan.b_at = splits_b ? halves(plan.b) : 0;
  plan.b_undo_at = splits_b ? undo(plan.b) : 0;
  plan.pieces_at = layout.reserve(Marks::capacity(p) * int64_t{sizeof(Marks::Piece)});
  plan.ranges = ranges;
  const int64_t sums =
      count_tiles(p, Tile::kM, Tile::kN) * ceil_div(p.k, kChunk) * Tile::kConsumers;
  plan.sums_at = layout.reserve(ranges > 1 ? sums * int64_t{sizeof(ChunkSums)} : 0);
  plan.bytes = layout.bytes;
  return plan;
}

void run(const Problem& p, WorkspaceOf plan, uint8_t* workspace, const Context& context) {
  auto floats = [&](int64_t at) { return reinterpret_cast<float*>(workspace + at); };
  const Marks marks{reinterpret_cast<int*>(workspace + plan.count_at),
                    reinterpret_cast<Marks::Piece*>(workspace + plan.pieces_at)};
  Operand operands[] = {plan.a, plan.b};
  Presplit &a = operands[0].presplit, &b = operands[1].presplit;
  a.hi_lo = workspace + plan.a_at;
  a.inverse_scales = floats(plan.a_undo_at);
  if (p.b_presplit.hi_lo == nullptr) {
    b.hi_lo = workspace + plan.b_at;
    b.inverse_scales = floats(plan.b_undo_at);
    launch_split(operands, {marks.count, 1}, context);
  } else {
    b = p.b_presplit;
    launch_split({operands, 1}, {marks.count, 1}, context);
  }

  const Work work{
      .scheduler = TileScheduler::of<Tile>(p),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .p = p,
      .a = {a, plan.a_index},
      .b = {b, plan.b_index},
      .marks = marks,
      .stores_simply = p.epilogue.is_bias_relu_at_most() &&
                       is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride),
      .sums = workspace + plan.sums_at,
  };
  const auto kernel =
      fp16x3::promotion(p.k) == 16 ? fp16x3_wgmma_kernel<16> : fp16x3_wgmma_kernel<32>;
  allow_shared_memory(kernel, sizeof(Smem));
  // A block a processor, that goes from tile to tile; where K is cut, one for each of its tasks.
  const int64_t blocks = plan.ranges > 1 ? work.tiles : std::min<int64_t>(work.tiles, context.sms);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.ranges));
  launch_pdl(kernel, grid, Tile::kThreads, sizeof(Smem), context, work);
  if (plan.ranges > 1) {
    const auto halves = static_cast<unsigned>(work.tiles * Tile::kConsumers);
    launch_pdl(fp16x3_split_k_reduce_kernel, halves, kAddThreads, 0, context, work);
  }
  launch_recompute(p, marks, context);
}

}  // namespace

// Where memory is short, K is not split, and then sub-problems share a smaller workspace.
bool launch_fp16x3_wgmma(const Problem& p, const Plan& plan, const Context& context) {
  if (plan.k_splits > 1) {
    const WorkspaceOf layout = lay_out_workspace(p, plan.k_splits);
    void* workspace = fits_in_free_memory(layout.bytes) ? context.allocate(layout.bytes) : nullptr;
    if (workspace != nullptr) {
      run(p, layout, static_cast<uint8_t*>(workspace), context);
      return true;
    }
  }
  const auto bytes = [](const Problem& part) { return lay_out_workspace(part, 1).bytes; };
  return run_sub_problems(p, context, kSmallWorkspace, bytes,
                          [&](const Problem& part, uint8_t* workspace) {
                            run(part, lay_out_workspace(part, 1), workspace, context);
                          });
}

}  // namespace tiled::cuda
