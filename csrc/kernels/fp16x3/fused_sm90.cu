// 06 fp16x3_fused: the long operand is split in flight, for the tensor cores to find.
//
// Idea:  a warp of fp16x3_skinny reads all of x for eight columns of w, and with more rows that is
//        more than shared memory can give. So splitting and multiplying part: two warpgroups split
//        w from shared memory to shared memory, and two others multiply it by up to 128 rows of x
//        by wgmma, which reads them there once for all. x is split beforehand (fp16x3_split). Both
//        come by the copy engine, w in boxes of a tensor map. Where a column's scale falls
//        (Column), those who split say by what, and those who multiply scale their sums.
// Limit: splitters, who take 14 instructions for a number, and wait for most of them; then shared
//        memory, which wgmma alone reads for half of the time that w takes to come.
// Next:  scales that fall without a second look at the stage; fewer instructions for a number.
//
//   splitters    wait empty, w_full   ask for x; split a stage of w -> w_empty, full; ask for w
//   multipliers  wait full            multiply it                   -> empty

#include <type_traits>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/split.h"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {
namespace {

namespace wgmma = ptx::wgmma;

struct Tile {
  static constexpr int kCols = 128;  // of w
  static constexpr int kWarpgroup = 128;
  static constexpr int kSplitters = 2 * kWarpgroup, kMultipliers = 2 * kWarpgroup;
  static constexpr int kThreads = kSplitters + kMultipliers;
  static constexpr int kSplitterWarps = kSplitters / 32;
  static constexpr int kSplitterCols = kCols / kSplitterWarps;  // of a warp
  static constexpr int kSteps = kStageK / Presplit::kK;         // of a stage
  static constexpr int kPlane = Presplit::plane_bytes(kCols);   // of a step
  static_assert(Presplit::kK == fp16x3::promotion(kChunk));
};

// A turn of a ring: its stage, and the parity of that stage's phase.
template <int kStages>
struct Turn {
  unsigned count = 0;
  __device__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ int parity() const { return static_cast<int>(count / kStages % 2); }
  __device__ void next() { ++count; }
};

__device__ int stages_of(const InFlight& work, unsigned unit) {
  return (Stretch(work, unit / work.units).length + kStageK - 1) / kStageK;
}

// What a thread asks for next, in shared memory, since splitters are short of registers.
template <int kStages>
struct WLoader {
  Turn<kStages> turn;
  int stages_left;  // of the unit; 0: there is nothing left
  int col, k;
  int matrix[kMaxTmaBatchRank];
  unsigned unit, end;  // of the block's part

  __device__ void begin(const InFlight& work, unsigned first) {
    unit = first, stages_left = 0;
    if (unit >= end) return;
    const Stretch stretch(work, unit / work.units);
    stages_left = stages_of(work, unit);
    col = static_cast<int>((work.first_unit + unit % work.units) * Tile::kCols);
    k = static_cast<int>(stretch.chunk * kChunk);
    int64_t index = work.first_matrix + stretch.matrix;
    int used = 0;
    UNROLL
    for (int& each : matrix) each = 0;
    NO_UNROLL
    for (int d = work.p.batch.rank - 1; d >= 0; --d) {
      if (work.w.batch_stride[d] != 0) {
        matrix[used++] = static_cast<int>(index % work.p.batch.size[d]);
      }
      index /= work.p.batch.size[d];
    }
  }
};

struct XLoader {
  const uint8_t* from;
  int step_bytes, steps_left;

  __device__ void begin(const InFlight& work, unsigned unit) {
    const Stretch stretch(work, unit / work.units);
    const Presplit& x = work.presplit_x;
    const int tile = stretch.first_row / Presplit::kRows;
    step_bytes = 2 * Presplit::plane_bytes(x.tile_rows(tile));
    steps_left = (stretch.length + Presplit::kK - 1) / Presplit::kK;
    from = x.hi_lo + x.step_offset(work.first_matrix + stretch.matrix, tile,
                                   int64_t{stretch.chunk} * (kChunk / Presplit::kK));
  }
};

// Two warpgroups of multipliers share a panel of x by columns of w, or by rows of x.
template <int kPanelRows>
struct Panel {
  static constexpr bool kByCols = kPanelRows == 64;
  static constexpr int kRows = 64, kCols = kByCols ? 64 : 128;        // of a warpgroup
  static constexpr int kElements = kRows * kCols / Tile::kWarpgroup;  // of sums a thread
  static constexpr int kWStages = kByCols ? 4 : 3, kStages = 2;
  static constexpr int kFoursAtOnce = kByCols ? 2 : 1;  // that a splitter holds
  static constexpr int kSplitterRegisters = kByCols ? 112 : 56;
  static constexpr int kMultiplierRegisters = kByCols ? 144 : 200;
  static_assert(kPanelRows <= Presplit::kRows, "a stage of x is one copy");

  static __device__ int warpgroup() { return (threadIdx.x - Tile::kSplitters) / Tile::kWarpgroup; }
  static __device__ int first_row() { return kByCols ? 0 : warpgroup() * kRows; }
  static __device__ int first_col() { return kByCols ? warpgroup() * kCols : 0; }
};

template <int kPanelRows>
struct Smem {
  static constexpr int kWStages = Panel<kPanelRows>::kWStages;
  static constexpr int kStages = Panel<kPanelRows>::kStages;

  alignas(1024) uint8_t w[kWStages][Tile::kCols * kStageK * 4];
  uint8_t halves[kStages][Tile::kSteps][2][Tile::kPlane];  // of w: hi, lo
  uint8_t x[kStages]
           [Tile::kSteps * 2 * Presplit::plane_bytes(kPanelRows)];  // of its rows, likewise
  float factor[kStages][Tile::kCols];                               // of sums before
  alignas(8) uint8_t scaled[kStages][Tile::kSplitterWarps];         // is any not 1?
  float undo[2][Tile::kCols];                                       // of units, by turns
  uint64_t w_full[kWStages], w_empty[kWStages];
  uint64_t full[kStages], empty[kStages];
  WLoader<kWStages> w_loader;
  XLoader x_loader;

  __device__ void init(const InFlight& work) {
    ptx::mbarrier_init_stages(kWStages, w_full, 1, w_empty, Tile::kSplitterWarps);
    ptx::mbarrier_init_stages(kStages, full, Tile::kSplitterWarps + 1, empty,
                              Tile::kMultipliers / 32);
    ptx::fence_mbarrier_init();
    w_loader.turn = {};
    w_loader.end = Part(work).end;
  }
};
static_assert(sizeof(Smem<64>) <= kMaxSharedMemory && sizeof(Smem<128>) <= kMaxSharedMemory);

// w as its tensor map brings it, in lines of 128 bytes whose eight pieces of 16 change places:
// along K boxes of 32, a line a column, or else boxes of 32 columns, a line a k.
template <bool kAlongK>
struct Box {
  static constexpr int kCols = kAlongK ? Tile::kCols : 32, kK = kAlongK ? 32 : kStageK;
  static constexpr int kBytes = kCols * kK * 4, kCount = Tile::kCols * kStageK * 4 / kBytes;
};

// Asks for the next stage of w, as soon as there is room; one thread.
template <bool kAlongK, int kPanelRows>
__device__ void request_w(const InFlight& work, const CUtensorMap& map, Smem<kPanelRows>& smem) {
  auto& next = smem.w_loader;
  if (next.stages_left == 0) return;
  const Turn turn = next.turn;
  uint64_t* full = &smem.w_full[turn.stage()];
  ptx::mbarrier_wait(&smem.w_empty[turn.stage()], turn.parity() ^ 1);
  ptx::arrive_expect_tx(full, sizeof smem.w[turn.stage()]);
  // Where there are several panels, w is read again for the next.
  const bool once = work.panels == 1;
  const uint64_t policy = ptx::policy_evict_first();
  UNROLL
  for (int i = 0; i < Box<kAlongK>::kCount; ++i) {
    const int col = next.col + (kAlongK ? 0 : i * Box<kAlongK>::kCols);
    const int k = next.k + (kAlongK ? i * Box<kAlongK>::kK : 0);
    const int at[] = {kAlongK ? k : col, kAlongK ? col : k, next.matrix[0], next.matrix[1],
                      next.matrix[2]};
    ptx::tma_load_policy_if(once, smem.w[turn.stage()] + i * Box<kAlongK>::kBytes, &map, at, full,
                            policy);
  }
  next.turn.next();
  next.k += kStageK;
  if (--next.stages_left == 0) next.begin(work, next.unit + 1);
}

// Asks for the next stage of x; one thread. Where a stage has one step only, that comes twice, and
// meets zeros of w.
template <int kPanelRows>
__device__ void request_x(Smem<kPanelRows>& smem, int stage) {
  XLoader& next = smem.x_loader;
  ptx::arrive_expect_tx(&smem.full[stage], Tile::kSteps * next.step_bytes);
  UNROLL
  for (int i = 0; i < Tile::kSteps; ++i) {
    const uint8_t* from = next.from + (i < next.steps_left ? i * next.step_bytes : 0);
    ptx::bulk_load(smem.x[stage] + i * next.step_bytes, from, next.step_bytes, &smem.full[stage]);
  }
  next.from += Tile::kSteps * next.step_bytes;
  next.steps_left -= Tile::kSteps;
}

// What a splitter has of a stage: a column, with the lane next to it, of each eight of K four. No
// two lanes that access shared memory at a time meet in a bank. Where pieces change places the
// offset of one is another's but for some bits: so few are kept in registers.
template <bool kAlongK>
struct Place {
  static constexpr int kFours = Tile::kCols * kStageK / 4 / Tile::kSplitters;
  uint32_t from, to;  // of its first four in a stage of w, and of halves

  __device__ Place() {
    const int pair = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const int col = threadIdx.x / 32 * 16 + pair / 8 * 8 + pair % 4 * 2 + pair / 4 % 2;
    to = Presplit::swizzle(col, 0) + half * 8;
    from = kAlongK ? col * 128 + (half ^ col % 8) * 16
                   : col / 32 * Box<false>::kBytes + half * 4 * 128 +
                         (col % 32 / 4 ^ half * 4) * 16 + col % 4 * 4;
  }
  __device__ int col() const { return static_cast<int>(to / Presplit::plane_bytes(1)); }
  // The i-th four, of the stage at an offset from `smem`.
  __device__ void read(const uint8_t* smem, uint32_t stage, int i, float (&four)[4]) const {
    const uint32_t at = stage + from;
    if constexpr (kAlongK) {
      constexpr int kInLine = 128 / 32;  // one of each eight
      const float4 all = *reinterpret_cast<const float4*>(smem + (at ^ i % kInLine * 32) +
                                                          i / kInLine * Box<true>::kBytes);
      four[0] = all.x, four[1] = all.y, four[2] = all.z, four[3] = all.w;
    } else {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        four[j] = *reinterpret_cast<const float*>(smem + (at ^ j * 16) + (i * 8 + j) * 128);
      }
    }
  }
  __device__ void write(uint8_t* smem, uint32_t stage, int i, const uint32_t (&hi)[2],
                        const uint32_t (&lo)[2]) const {
    constexpr int kInStep = Presplit::kK / 8;
    uint8_t* at = smem + ((stage + to) ^ i % kInStep * 16) + i / kInStep * (2 * Tile::kPlane);
    *reinterpret_cast<uint2*>(at) = {hi[0], hi[1]};
    *reinterpret_cast<uint2*>(at + Tile::kPlane) = {lo[0], lo[1]};
  }
};

// Splits a stage of w, at an offset from `smem`, to one of halves. Leaves in `factor` what the
// column's sums before are to be scaled by, and returns whether that is not 1 for any of the warp.
template <int kAtOnce, bool kAlongK>
__device__ bool split_stage(uint8_t* smem, uint32_t w, uint32_t halves, const Place<kAlongK>& at,
                            Column<2>& column, float& factor) {
  constexpr int kFours = Place<kAlongK>::kFours;
  // Before halves are written, which may be w for all that the compiler knows; if registers allow.
  constexpr bool kReadsAhead = kAlongK || kAtOnce > 1;
  Fours<kAtOnce> fours;
  Halves<kAtOnce> hi, lo;
  auto read = [&](int first, float(&to)[kAtOnce][4]) {
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) at.read(smem, w, first + i, to[i]);
  };
  factor = 1;
  bool scaled = false;
  Extent extent;
  NO_UNROLL
  for (;;) {
    Fours<kAtOnce> next;
    if (kReadsAhead) read(0, next);
    UNROLL
    for (int first = 0; first < kFours; first += kAtOnce) {
      if (!kReadsAhead) read(first, next);
      UNROLL
      for (int i = 0; i < kAtOnce * 4; ++i) fours[i / 4][i % 4] = next[i / 4][i % 4];
      if (kReadsAhead && first + kAtOnce < kFours) read(first + kAtOnce, next);
      split(fours, column.scale(), hi, lo);
      extent.add(hi, lo);
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) at.write(smem, halves, first + i, hi[i], lo[i]);
    }
    if (!__any_sync(~0u, extent.outgrows())) break;
    uint32_t largest = 0;
    NO_UNROLL
    for (int first = 0; first < kFours; first += kAtOnce) {
      read(first, fours);
      largest = max(largest, largest_of(fours));
    }
    const float by = column.grow(largest);
    if (__all_sync(~0u, by == 1)) break;
    factor = by;
    scaled = true;
    extent = {};
  }
  if (column.add(extent)) {
    NO_UNROLL
    for (int first = 0; first < kFours; first += kAtOnce) {
      read(first, fours);
      column.add(fours);
    }
  }
  return scaled;
}

// At a unit's end: whether it is to be computed again; all threads of the block, wherever they are.
__device__ bool any_says(bool again) {
  return ptx::named_barrier_sync_or(1, Tile::kThreads, again);
}

template <bool kAlongK, int kPanelRows>
__device__ void split_units(const InFlight& work, const CUtensorMap& map, Smem<kPanelRows>& smem) {
  using S = Smem<kPanelRows>;
  const bool asks_for_w = threadIdx.x == 0, asks_for_x = threadIdx.x == Tile::kWarpgroup;
  const Place<kAlongK> place;
  Turn<S::kWStages> w_turn;
  Turn<S::kStages> turn;
  auto begin_w = [&](unsigned unit) {
    if (!asks_for_w) return;
    smem.w_loader.begin(work, unit);
    NO_UNROLL
    for (int i = 0; i < S::kWStages - 1; ++i) request_w<kAlongK>(work, map, smem);
  };
  begin_w(Part(work).first);
  // w is as it was before the kernel before this one began, which splits x.
  if (asks_for_x) ptx::pdl_wait();
  Column<2> column;
  NO_UNROLL
  for (unsigned unit = Part(work).first; unit < smem.w_loader.end;) {
    if (asks_for_x) smem.x_loader.begin(work, unit);
    NO_UNROLL
    for (int left = stages_of(work, unit); left > 0; --left) {
      ptx::mbarrier_wait(&smem.empty[turn.stage()], turn.parity() ^ 1);
      if (asks_for_x) request_x(smem, turn.stage());
      ptx::mbarrier_wait(&smem.w_full[w_turn.stage()], w_turn.parity());
      __syncwarp();
      const auto w = static_cast<uint32_t>(offsetof(S, w) + w_turn.stage() * sizeof smem.w[0]);
      const auto halves =
          static_cast<uint32_t>(offsetof(S, halves) + turn.stage() * sizeof smem.halves[0]);
      const bool scaled = split_stage<Panel<kPanelRows>::kFoursAtOnce>(
          reinterpret_cast<uint8_t*>(&smem), w, halves, place, column,
          smem.factor[turn.stage()][place.col()]);
      ptx::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        smem.scaled[turn.stage()][threadIdx.x / 32] = scaled;
        ptx::mbarrier_arrive(&smem.full[turn.stage()]);
        ptx::mbarrier_arrive(&smem.w_empty[w_turn.stage()]);
      }
      if (asks_for_w) request_w<kAlongK>(work, map, smem);
      w_turn.next(), turn.next();
    }
    __syncwarp();
    smem.undo[unit % 2][place.col()] = column.undo();
    if (any_says(column.failed())) {
      column.begin_again();
      // What has been asked for of the units after it is in the way.
      int ahead = 0;
      for (unsigned next = unit + 1; next < smem.w_loader.end && ahead < S::kWStages - 1; ++next) {
        ahead += stages_of(work, next);
      }
      for (int i = min(ahead, S::kWStages - 1); i > 0; --i, w_turn.next()) {
        ptx::mbarrier_wait(&smem.w_full[w_turn.stage()], w_turn.parity());
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.w_empty[w_turn.stage()]);
      }
      begin_w(unit);
    } else {
      column = {};
      ++unit;
    }
  }
}

// The sums of a unit: element i is of row i / 2 % 2 of the thread's two, and of column i / 4 * 8 +
// i % 2 from its first.
template <int kElements>
struct Sums {
  float total[kElements], low[kElements], part[kElements];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] = low[i] = part[i] = 0;
  }
  // Where columns' scales fell: of each splitter warp's, whether of any.
  __device__ void scale(const float* factor, const uint8_t* scaled) {
    constexpr int kWarps = kElements * 2 / Tile::kSplitterCols, kOfWarp = kElements / kWarps;
    using Flags = std::conditional_t<kWarps == 8, uint64_t, uint32_t>;
    static_assert(sizeof(Flags) == kWarps);
    const auto flags = *reinterpret_cast<const Flags*>(scaled);
    if (flags == 0) return;
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      if ((flags >> warp * 8 & 0xff) == 0) continue;
      UNROLL
      for (int i = warp * kOfWarp; i < (warp + 1) * kOfWarp; i += 4) {
        const float2 two = *reinterpret_cast<const float2*>(&factor[i * 2 + threadIdx.x % 4 * 2]);
        UNROLL
        for (int j = i; j < i + 4; ++j) {
          total[j] *= j % 2 == 0 ? two.x : two.y, low[j] *= j % 2 == 0 ? two.x : two.y;
        }
      }
    }
  }
  // Of a step, whose operands are given as low words. What was before is finished when it returns,
  // and its own small products are not.
  template <bool kWIsA>
  __device__ void multiply(uint32_t x_hi, uint32_t x_lo, uint32_t w_hi, uint32_t w_lo) {
    wgmma::fence_operand(part);
    wgmma::fence_operand(low);
    wgmma::fence();
    constexpr int kNext = 2, kEnd = Presplit::kK / 16 * kNext;  // of 16 along K
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      wgmma::mma(part, wgmma::descriptor(x_hi + k), wgmma::descriptor(w_hi + k), k > 0);
    }
    wgmma::commit_group();
    // The first of the small products is of A's lo half.
    const uint32_t x[] = {kWIsA ? x_hi : x_lo, kWIsA ? x_lo : x_hi};
    const uint32_t w[] = {kWIsA ? w_lo : w_hi, kWIsA ? w_hi : w_lo};
    UNROLL
    for (int k = 0; k < kEnd; k += kNext) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        wgmma::mma(low, wgmma::descriptor(x[i] + k), wgmma::descriptor(w[i] + k), true);
      }
    }
    wgmma::commit_group();
    wgmma::wait_group<1>();
    wgmma::fence_operand(part);
    UNROLL
    for (int i = 0; i < kElements; ++i) total[i] += part[i];
  }
  __device__ void finish() {
    wgmma::wait_group<0>();
    wgmma::fence_operand(low);
  }
};

// Leaves a unit's sums in memory.
template <int kPanelRows>
__device__ void store_sums(const InFlight& work, unsigned unit, const float* undo_w,
                           Sums<Panel<kPanelRows>::kElements>& sums) {
  using P = Panel<kPanelRows>;
  constexpr int kElements = P::kElements;
  const Stretch stretch(work, unit / work.units);
  const int col = P::first_col() + threadIdx.x % 4 * 2;
  const int row = P::first_row() + threadIdx.x % Tile::kWarpgroup / 32 * 16 +
                  threadIdx.x % 32 / 4;  // and row + 8
  const int64_t matrix = work.first_matrix + stretch.matrix;
  const float* undo = work.presplit_x.inverse_scales + stretch.first_row +
                      (matrix * work.chunks + stretch.chunk) * work.presplit_x.padded_rows();
  float undo_x[2];
  UNROLL
  for (int i = 0; i < 2; ++i) {
    undo_x[i] = row + i * 8 < stretch.rows ? undo[row + i * 8] : 1.0f;
  }
  float2 undo_two[kElements / 4];
  UNROLL
  for (int i = 0; i < kElements / 4; ++i) {
    undo_two[i] = *reinterpret_cast<const float2*>(&undo_w[col + i * 8]);
  }
  finish_chunk(sums.total, sums.low, undo_x, undo_two);
  float* to = sums_of(work, stretch) + row * work.sums_stride() +
              int64_t{unit % work.units} * Tile::kCols + col;
  UNROLL
  for (int down = 0; down < 2; ++down, to += 8 * work.sums_stride()) {
    if (row + down * 8 >= stretch.rows) break;
    UNROLL
    for (int i = down * 2; i < kElements; i += 4) {
      __stcg(reinterpret_cast<float2*>(to + i / 4 * 8), float2{sums.total[i], sums.total[i + 1]});
    }
  }
}

template <bool kWIsA, int kPanelRows>
__device__ void multiply_units(const InFlight& work, Smem<kPanelRows>& smem) {
  using P = Panel<kPanelRows>;
  const auto [first, end] = Part(work);
  const uint32_t first_w =
      wgmma::descriptor_low_word(smem.halves[0][0][0]) + Presplit::plane_bytes(P::first_col()) / 16;
  const uint32_t first_x =
      wgmma::descriptor_low_word(smem.x[0]) + Presplit::plane_bytes(P::first_row()) / 16;
  Turn<P::kStages> turn;
  NO_UNROLL
  for (unsigned unit = first; unit < end;) {
    const Stretch stretch(work, unit / work.units);
    const uint32_t x_plane =
        Presplit::plane_bytes(work.presplit_x.tile_rows(stretch.first_row / Presplit::kRows)) / 16;
    Sums<P::kElements> sums;
    sums.clear();
    NO_UNROLL
    for (int left = stretch.length; left > 0; left -= kStageK, turn.next()) {
      const int stage = turn.stage();
      ptx::mbarrier_wait(&smem.full[stage], turn.parity());
      sums.scale(smem.factor[stage] + P::first_col(),
                 &smem.scaled[stage][P::first_col() / Tile::kSplitterCols]);
      uint32_t x = first_x + stage * static_cast<uint32_t>(sizeof smem.x[0] / 16);
      uint32_t w = first_w + stage * static_cast<uint32_t>(sizeof smem.halves[0] / 16);
      constexpr uint32_t kPlane = Tile::kPlane / 16;
      NO_UNROLL
      for (int step = 0; step < Tile::kSteps; ++step, x += 2 * x_plane, w += 2 * kPlane) {
        sums.template multiply<kWIsA>(x, x + x_plane, w, w + kPlane);
      }
      sums.finish();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
    }
    if (any_says(false)) continue;
    store_sums<kPanelRows>(work, unit, smem.undo[unit % 2], sums);
    ++unit;
  }
}

template <bool kAlongK, bool kWIsA, int kPanelRows>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_fused_kernel(const __grid_constant__ InFlight work,
                        const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem<kPanelRows>*>(smem_bytes);
  ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) smem.init(work);
  __syncthreads();
  if (threadIdx.x < Tile::kSplitters) {
    ptx::setmaxnreg_dec<Panel<kPanelRows>::kSplitterRegisters>();
    split_units<kAlongK>(work, map, smem);
  } else {
    ptx::setmaxnreg_inc<Panel<kPanelRows>::kMultiplierRegisters>();
    ptx::pdl_wait();
    multiply_units<kWIsA>(work, smem);
  }
}

template <int kPanelRows>
void launch(InFlight& work, void* sums, const Context& context) {
  const auto kernel = work.w_along_k
                          ? (work.w_is_a ? fp16x3_fused_kernel<true, true, kPanelRows>
                                         : fp16x3_fused_kernel<true, false, kPanelRows>)
                          : (work.w_is_a ? fp16x3_fused_kernel<false, true, kPanelRows>
                                         : fp16x3_fused_kernel<false, false, kPanelRows>);
  constexpr int kSmemBytes = sizeof(Smem<kPanelRows>);
  allow_shared_memory(kernel, kSmemBytes);
  const Problem& p = work.p;
  const CUtensorMap map = work.w_along_k
                              ? tensor_map(p.batch, work.w, work.w_count, p.k, Box<true>::kCols,
                                           Box<true>::kK, CU_TENSOR_MAP_SWIZZLE_128B)
                              : tensor_map(p.batch, work.w, work.w_count, p.k, Box<false>::kCols,
                                           Box<false>::kK, CU_TENSOR_MAP_SWIZZLE_128B);
  run_in_flight(work, 1, context, sums, [&](unsigned blocks) {
    launch_pdl(kernel, blocks, Tile::kThreads, kSmemBytes, context, work, map);
  });
}

}  // namespace

bool launch_fp16x3_fused(const Problem& p, const Plan&, const Context& context) {
  const bool few_rows = std::min(p.m, p.n) <= 64;
  InFlight work = in_flight(p, Tile::kCols, few_rows ? 64 : 128, kMaxSumsBytes);
  WorkspaceLayout layout;
  const int64_t sums_at = layout.reserve(sums_bytes(work));
  const int64_t x_at = layout.reserve(work.presplit_x.matrix_bytes() * p.batch.count);
  const int64_t undo_at =
      layout.reserve(work.presplit_x.matrix_groups() * p.batch.count * int64_t{sizeof(float)});
  auto* workspace = static_cast<uint8_t*>(context.allocate(layout.bytes));
  if (workspace == nullptr) return false;
  work.presplit_x.hi_lo = workspace + x_at;
  work.presplit_x.inverse_scales = reinterpret_cast<float*>(workspace + undo_at);
  const Operand x{work.x, p.batch, work.presplit_x};
  launch_split({&x, 1}, {}, context);
  few_rows ? launch<64>(work, workspace + sums_at, context)
           : launch<128>(work, workspace + sums_at, context);
  return true;
}

}  // namespace tiled::cuda
