// 04 fp16x3_skinny: the long operand is split in flight.
//
// Idea:  where one side of C is short, the other side's operand is most of what there is to read,
//        and splitting it beforehand would triple that. Here it comes from memory once. A team of
//        four warps brings kCols of its columns to shared memory as they are, stage by stage; a
//        warp takes eight of them, splits them in its registers, by a scale of which only the
//        beginning is known (Column), and multiplies by mma.sync. Each block splits the short
//        operand for itself into shared memory, a chunk of up to 32 rows.
// Limit: memory, up to 16 rows of x. With 32, shared memory has room for three stages only, and a
//        warp reads all of x for eight columns.
// Next:  fp16x3_fused, for more rows.

#include <cuda_pipeline_primitives.h>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/range.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kMaxRows = 32;  // of x, a panel
  static constexpr int kCols = 32;     // of w, a team
  static constexpr int kTeams = 4, kTeamThreads = 128, kThreads = kTeams * kTeamThreads;
};

// A stage of a team's columns of w in shared memory, by columns or by k, as w does. Neighbours in
// memory stay so by fours, which change places so that no two lanes of read() meet in a bank.
template <bool kAlongK_>
struct TeamStage {
  static constexpr bool kAlongK = kAlongK_;
  static constexpr int kCols = Tile::kCols, kBytes = kCols * kStageK * 4;

  // In bytes.
  static __device__ constexpr int place(int col, int k) {
    return kAlongK ? (col * kStageK + (k / 4 ^ col % 2 * 4) * 4 + k % 4) * 4
                   : (k * kCols + (col / 4 ^ k / 4 % 4 * 2) * 4 + col % 4) * 4;
  }
};

// x lies in blocks of 16 rows and 16 of K, first as it is, row by row, then split, where it lies:
// 16 bytes of hi halves a lane, as mma.sync takes them, then of lo.
struct XBlock {
  uint8_t bytes[1024];
};

template <int kTiles>
struct Smem {
  static constexpr int kStages = kTiles == 1 ? 4 : 3;
  alignas(1024) XBlock x[kChunk / 16][kTiles];
  uint8_t w[Tile::kTeams][kStages][TeamStage<true>::kBytes];
  uint32_t largest[Tile::kMaxRows], smallest[Tile::kMaxRows];  // Range of rows of x
  float undo[Tile::kMaxRows];
};
static_assert(sizeof(Smem<1>) <= kMaxSharedMemory && sizeof(Smem<2>) <= kMaxSharedMemory);

// Copies a thread's part of its team's units of w, stage by stage; zeros for what is beyond the
// end. The caller commits each stage.
template <bool kAlongK>
class Loader {
  using Stage = TeamStage<kAlongK>;
  static constexpr int kCols = Tile::kCols, kThreads = Tile::kTeamThreads;

 public:
  // `ring`: the team's stages.
  __device__ Loader(const InFlight& work, const uint8_t* ring) : ring_(ptx::shared_address(ring)) {
    const int each = work.w_in_fours ? 4 : 1;  // copied at a time
    constexpr int kNear = kAlongK ? kStageK : kCols;
    const int thread = threadIdx.x % kThreads;
    const int near = thread * each % kNear, far = thread * each / kNear;
    col_ = kAlongK ? far : near, k_ = kAlongK ? near : far;
    first_ = Stage::place(col_, k_);
    // Where there are several panels, w is read again for the next.
    policy_ = work.panels == 1 ? ptx::policy_evict_first() : ptx::policy_evict_normal();
    step_ = (kAlongK ? work.w.row_stride : work.w.col_stride) * (kThreads * each / kNear);
  }

  // From a unit on, and from then to each that is the team's.
  __device__ void begin(const InFlight& work, unsigned unit, unsigned end) {
    unit_ = unit, left_ = 0;
    if (unit >= end) return;
    const Stretch stretch(work, unit / work.units);
    const int64_t first_col = (work.first_unit + unit % work.units) * kCols;
    const Matrix& w = work.w;
    from_ = static_cast<const float*>(w.data) +
            batch_offset(work.p.batch, w, work.first_matrix + stretch.matrix) +
            (first_col + col_) * w.row_stride +
            (int64_t{stretch.chunk} * kChunk + k_) * w.col_stride;
    cols_ = static_cast<int>(min(work.w_count - first_col, int64_t{kCols}));
    left_ = stretch.length;
  }

  // The next stage, where there is one.
  __device__ void load(const InFlight& work, unsigned end, int stage) {
    if (left_ <= 0) return;
    const uint32_t to = ring_ + stage * Stage::kBytes;
    const float* from = from_;
    if (work.w_in_fours) {
      constexpr int kFours = Stage::kBytes / 16 / kThreads;
      constexpr int kBetween = Stage::kBytes / kFours;
      constexpr int kApart = (kAlongK ? kCols : kStageK) / kFours;
      // Where a thread's fours lie: at equal distances, or else each where its place is.
      constexpr bool kEven = kBetween == Stage::place(kAlongK ? kApart : 0, kAlongK ? 0 : kApart);
      auto to_four = [&](int i) {
        return to + (kEven ? first_ + i * kBetween
                           : Stage::place(col_ + (kAlongK ? i * kApart : 0),
                                          k_ + (kAlongK ? 0 : i * kApart)));
      };
      if (cols_ == kCols && left_ >= kStageK) {
        UNROLL
        for (int i = 0; i < kFours; ++i, from += step_) {
          ptx::cp_async_16(to_four(i), from, policy_);
        }
      } else {
        const int bytes = max(min(kAlongK ? left_ - k_ : cols_ - col_, 4), 0) * 4;
        const int far_left = kAlongK ? cols_ - col_ : left_ - k_;
        UNROLL
        for (int i = 0; i < kFours; ++i, from += step_) {
          ptx::cp_async_x4_zfill(to_four(i), from, i * kApart < far_left ? bytes : 0);
        }
      }
    } else {
      constexpr int kElements = Stage::kBytes / 4 / kThreads;
      constexpr int kApart = (kAlongK ? kCols : kStageK) / kElements;
      NO_UNROLL
      for (int i = 0; i < kElements; ++i, from += step_) {
        const int col = col_ + (kAlongK ? i * kApart : 0), k = k_ + (kAlongK ? 0 : i * kApart);
        ptx::cp_async_4_zfill(to + Stage::place(col, k), from, col < cols_ && k < left_ ? 4 : 0);
      }
    }
    from_ += kStageK * work.w.col_stride;
    left_ -= kStageK;
    if (left_ <= 0) begin(work, unit_ + Tile::kTeams, end);
  }

 private:
  uint32_t ring_;
  int col_, k_, first_;  // the thread's first element of a stage, and its place
  int64_t step_;         // from there to its next
  uint64_t policy_;
  const float* from_ = nullptr;
  int cols_ = 0, left_ = 0;  // of the unit; along K
  unsigned unit_ = 0;
};

// Copies a stretch of x; all threads of the block, none of which reads what was there.
template <int kTiles>
__device__ void copy_x(const InFlight& work, Smem<kTiles>& smem, const Stretch& stretch) {
  if (threadIdx.x < Tile::kMaxRows) {
    smem.largest[threadIdx.x] = 0, smem.smallest[threadIdx.x] = ~0u;
  }
  const Matrix& x = work.x;
  const float* data = static_cast<const float*>(x.data) +
                      batch_offset(work.p.batch, x, work.first_matrix + stretch.matrix) +
                      stretch.first_row * x.row_stride +
                      int64_t{stretch.chunk} * kChunk * x.col_stride;
  auto to = [&](int row, int k) {
    return smem.x[k / 16][row / 16].bytes + (row % 16 * 16 + k % 16) * 4;
  };
  auto from = [&](int row, int k) { return data + row * x.row_stride + k * x.col_stride; };
  constexpr int kRows = kTiles * 16;
  const bool along_k = work.x_in_fours || x.col_stride < x.row_stride;
  const int count = (along_k ? stretch.rows : kRows) * kChunk;
  if (work.x_in_fours) {
    NO_UNROLL
    for (int i = threadIdx.x * 4; i < count; i += Tile::kThreads * 4) {
      const int row = i / kChunk, k = i % kChunk;
      ptx::cp_async_16_zfill(to(row, k), from(row, k), k < stretch.length ? 16 : 0);
    }
  } else {
    NO_UNROLL
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
      const int row = along_k ? i / kChunk : i % kRows, k = along_k ? i % kChunk : i / kRows;
      if (row >= stretch.rows) continue;
      ptx::cp_async_4_zfill(to(row, k), from(row, k), k < stretch.length ? 4 : 0);
    }
  }
}

// Splits x where it lies; all threads of the block, when all of it is there.
template <int kTiles>
__device__ void split_x(Smem<kTiles>& smem) {
  constexpr int kWarps = Tile::kThreads / 32, kBlocks = kChunk / 16 * kTiles / kWarps;  // a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % kTiles * 16 + lane / 4;  // and row + 8
  XBlock* blocks = smem.x[0] + warp;
  auto read_x = [&](int i, float(&x)[2][4]) {
    UNROLL
    for (int down = 0; down < 2; ++down) {
      const float4 four =
          reinterpret_cast<const float4*>(blocks[i * kWarps].bytes)[lane + down * 32];
      x[down][0] = four.x, x[down][1] = four.y, x[down][2] = four.z, x[down][3] = four.w;
    }
  };
  Range range[2];
  UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    float x[2][4];
    read_x(i, x);
    UNROLL
    for (int j = 0; j < 8; ++j) range[j / 4].add(x[j / 4][j % 4]);
  }
  UNROLL
  for (int down = 0; down < 2; ++down) {
    range[down].add_lane(1), range[down].add_lane(2);
    atomicMax(&smem.largest[row + down * 8], range[down].largest);
    atomicMin(&smem.smallest[row + down * 8], range[down].smallest);
  }
  __syncthreads();
  if (threadIdx.x < kTiles * 16) {
    const Range all{smem.largest[threadIdx.x], smem.smallest[threadIdx.x]};
    smem.undo[threadIdx.x] = all.inverse_scale(fp16x3::scale(all.largest));
  }
  float scale[2];
  UNROLL
  for (int down = 0; down < 2; ++down) scale[down] = fp16x3::scale(smem.largest[row + down * 8]);
  UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    float x[2][4];
    read_x(i, x);
    uint32_t hi[4], lo[4];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float* two = &x[j % 2][j / 2 * 2];
      ptx::split_x2(two[0] * scale[j % 2], two[1] * scale[j % 2], hi[j], lo[j]);
    }
    __syncwarp();  // every lane has read
    uint4* to = reinterpret_cast<uint4*>(blocks[i * kWarps].bytes) + lane;
    to[0] = {hi[0], hi[1], hi[2], hi[3]};
    to[32] = {lo[0], lo[1], lo[2], lo[3]};
  }
}

// The sums of a unit.
template <int kTiles>
struct Sums {
  float total[kTiles][4], low[kTiles][4];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < kTiles * 4; ++i) total[i / 4][i % 4] = low[i / 4][i % 4] = 0;
  }
  __device__ void scale(float factor) {
    const int q = threadIdx.x % 4;
    const float of_col[2] = {__shfl_sync(~0u, factor, q * 8), __shfl_sync(~0u, factor, q * 8 + 4)};
    UNROLL
    for (int i = 0; i < kTiles * 4; ++i) {
      total[i / 4][i % 4] *= of_col[i % 2], low[i / 4][i % 4] *= of_col[i % 2];
    }
  }
};

// What a lane has of a column in a stage: of each 16 of K four, where mma.sync would have it have
// two and two. A sum of 16 products does not depend on their order, and x comes likewise.
template <bool kAlongK>
__device__ void read(const uint8_t* stage, int col, Fours<kK16s>& w) {
  using Stage = TeamStage<kAlongK>;
  const int q = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < kK16s; ++i) {
    if constexpr (kAlongK) {
      const float4 four =
          *reinterpret_cast<const float4*>(stage + Stage::place(col, i * 16 + q * 4));
      w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
    } else {
      const uint8_t* at = stage + Stage::place(col, q * 4) + Stage::place(0, i * 16);
      UNROLL
      for (int j = 0; j < 4; ++j) {
        w[i][j] = *reinterpret_cast<const float*>(at + j * (Stage::kCols * 4));
      }
    }
  }
}

// Multiplies a stage.
template <int kTiles, bool kAlongK, bool kWIsA>
__device__ void multiply(const uint8_t* stage, const XBlock* x, Column<4>& column,
                         Sums<kTiles>& sums) {
  constexpr int kPromoted = fp16x3::promotion(kChunk) / 16;  // of 16 of K
  const int lane = threadIdx.x % 32;
  Fours<kK16s> w;
  Halves<kK16s> w_hi, w_lo;
  read<kAlongK>(stage, threadIdx.x % Tile::kTeamThreads / 4, w);
  split(w, column.scale(), w_hi, w_lo);
  Extent extent;
  extent.add(w_hi, w_lo);
  if (__any_sync(~0u, extent.outgrows())) {
    sums.scale(column.grow(largest_of(w)));
    split(w, column.scale(), w_hi, w_lo);
    extent = {};
    extent.add(w_hi, w_lo);
  }
  if (column.add(extent)) column.add(w);
  float part[kTiles][4];
  UNROLL
  for (int k16 = 0; k16 < kK16s; ++k16) {
    if (k16 % kPromoted == 0) {
      UNROLL
      for (int i = 0; i < kTiles * 4; ++i) part[i / 4][i % 4] = 0;
    }
    uint32_t x_hi[kTiles][4], x_lo[kTiles][4];
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const uint4* at = reinterpret_cast<const uint4*>(x[k16 * kTiles + t].bytes) + lane;
      const uint4 hi = at[0], lo = at[32];
      x_hi[t][0] = hi.x, x_hi[t][1] = hi.y, x_hi[t][2] = hi.z, x_hi[t][3] = hi.w;
      x_lo[t][0] = lo.x, x_lo[t][1] = lo.y, x_lo[t][2] = lo.z, x_lo[t][3] = lo.w;
    }
    // The first of the low products is of A's lo half.
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16(sums.low[t], kWIsA ? x_hi[t] : x_lo[t], kWIsA ? w_lo[k16] : w_hi[k16]);
    }
    UNROLL
    for (int t = 0; t < kTiles; ++t) ptx::mma_m16n8k16(part[t], x_hi[t], w_hi[k16]);
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16(sums.low[t], kWIsA ? x_lo[t] : x_hi[t], kWIsA ? w_hi[k16] : w_lo[k16]);
    }
    if ((k16 + 1) % kPromoted == 0) {
      UNROLL
      for (int i = 0; i < kTiles * 4; ++i) sums.total[i / 4][i % 4] += part[i / 4][i % 4];
    }
  }
}

// Leaves a unit's sums in memory.
template <int kTiles>
__device__ void store_sums(const InFlight& work, const Smem<kTiles>& smem, unsigned unit,
                           const Column<4>& column, Sums<kTiles>& sums) {
  const Stretch stretch(work, unit / work.units);
  const int64_t first_col =
      int64_t{unit % work.units} * Tile::kCols + threadIdx.x % Tile::kTeamThreads / 32 * 8;
  const int lane = threadIdx.x % 32, q = lane % 4;
  const float undo = column.undo();
  const float2 undo_w{__shfl_sync(~0u, undo, q * 8), __shfl_sync(~0u, undo, q * 8 + 4)};
  float* to = sums_of(work, stretch) + first_col + q * 2;
  UNROLL
  for (int t = 0; t < kTiles; ++t) {
    const int row = t * 16 + lane / 4;  // and row + 8
    float undo_x[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
      undo_x[i] = row + i * 8 < stretch.rows ? smem.undo[row + i * 8] : 1.0f;
    }
    finish_chunk<4>(sums.total[t], sums.low[t], undo_x, {undo_w});
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if (row + i * 8 >= stretch.rows) continue;
      __stcg(reinterpret_cast<float2*>(to + (row + i * 8) * work.sums_stride()),
             float2{sums.total[t][i * 2], sums.total[t][i * 2 + 1]});
    }
  }
}

template <int kTiles, bool kAlongK, bool kWIsA>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ InFlight work) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kTiles>*>(smem_bytes);
  constexpr int kStages = Smem<kTiles>::kStages;
  ptx::pdl_launch_dependents();
  const auto [first, end] = Part(work);
  const int team = threadIdx.x / Tile::kTeamThreads, barrier = team + 1;
  ptx::pdl_wait();
  Loader<kAlongK> loader(work, smem.w[team][0]);
  Column<4> column;
  int stage = 0;
  bool begins = true;  // nothing has been asked for
  unsigned x_stretch = first / work.units;
  NO_UNROLL
  for (unsigned unit = first + team;;) {
    const unsigned index = min(unit, end - 1) / work.units;
    auto begin_x = [&] {
      __syncthreads();  // nobody reads what was there
      copy_x(work, smem, Stretch(work, x_stretch));
      __pipeline_commit();
    };
    if (x_stretch <= index) begin_x();  // before w, or it would wait for that
    if (begins) {
      loader.begin(work, unit, end);
      stage = 0;
      NO_UNROLL
      for (int i = 0; i < kStages - 1; ++i) {
        loader.load(work, end, i);
        __pipeline_commit();
      }
    }
    for (int behind = begins ? kStages - 1 : 0; x_stretch <= index; behind = 0) {
      __pipeline_wait_prior(behind);
      __syncthreads();
      split_x(smem);
      __syncthreads();
      if (++x_stretch <= index) begin_x();
    }
    if (unit >= end) break;
    Sums<kTiles> sums;
    sums.clear();
    const XBlock* x = smem.x[0];
    NO_UNROLL
    for (int left = Stretch(work, index).length; left > 0; left -= kStageK) {
      __pipeline_wait_prior(kStages - 2);
      ptx::named_barrier_sync(barrier,
                              Tile::kTeamThreads);  // this stage has come, the last is free
      loader.load(work, end, (stage == 0 ? kStages : stage) - 1);
      __pipeline_commit();
      multiply<kTiles, kAlongK, kWIsA>(smem.w[team][stage], x, column, sums);
      stage = stage == kStages - 1 ? 0 : stage + 1;
      x += kK16s * kTiles;
    }
    begins = ptx::named_barrier_sync_or(barrier, Tile::kTeamThreads, column.failed());
    if (begins) {
      column.begin_again();
      __pipeline_wait_prior(0);
      ptx::named_barrier_sync(barrier, Tile::kTeamThreads);
      continue;
    }
    store_sums(work, smem, unit, column, sums);
    column = {};
    unit += Tile::kTeams;
  }
}

template <int kTiles>
auto kernel_for(const InFlight& work) {
  return work.w_along_k ? (work.w_is_a ? fp16x3_skinny_kernel<kTiles, true, true>
                                       : fp16x3_skinny_kernel<kTiles, true, false>)
                        : (work.w_is_a ? fp16x3_skinny_kernel<kTiles, false, true>
                                       : fp16x3_skinny_kernel<kTiles, false, false>);
}

}  // namespace

// Where memory is short, sub-problems share a smaller workspace for their sums.
bool launch_fp16x3_skinny(const Problem& p, const Plan&, const Context& context) {
  const auto work_of = [](const Problem& part) {
    return in_flight(part, Tile::kCols, Tile::kMaxRows, kMaxSumsBytes);
  };
  const auto bytes = [&](const Problem& part) { return sums_bytes(work_of(part)); };
  const auto run = [&](const Problem& part, uint8_t* sums) {
    InFlight work = work_of(part);
    const bool one_tile = work.x_count <= 16;
    const auto kernel = one_tile ? kernel_for<1>(work) : kernel_for<2>(work);
    const size_t smem_bytes = one_tile ? sizeof(Smem<1>) : sizeof(Smem<2>);
    allow_shared_memory(kernel, smem_bytes);
    run_in_flight(work, Tile::kTeams, context, sums, [&](unsigned blocks) {
      launch_pdl(kernel, blocks, Tile::kThreads, smem_bytes, context, work);
    });
  };
  return run_sub_problems(p, context, kLeastSumsBytes, bytes, run);
}

}  // namespace tiled::cuda
