// 06 fp16x3_narrow: the long operand, split in flight, is wgmma's A.
//
// Idea:  a warp of fp16x3_skinny reads all of x for eight columns of w, and with more rows that is
//        more than shared memory can give. So a warpgroup takes 64 columns: each warp splits
//        sixteen in its registers, and from there they are wgmma's rows, multiplied by up to kRows
//        rows of x, which the tensor cores read from shared memory once for all four warps. x is
//        split beforehand (fp16x3_split) and comes stage by stage beside w. A third warpgroup asks
//        for both, which takes as long as half of the splitting.
// Limit: two warps a scheduler, which wait for what they have computed last; of x, the L2 cache,
//        which brings it once for each kCols columns of w. Where there are more rows than kRows, w
//        comes as often as there are panels.
// Next:  a cluster whose blocks share what they read of x.
//
//   producers  wait empty[s], copy stage s of w and x -> full[s]
//   splitters  wait full[s], split a step while the one before is multiplied -> empty[s]

#include "device/copy_async.cuh"
#include "device/pipeline.cuh"
#include "device/wgmma.cuh"
#include "fp16x3.h"
#include "kernels/fp16x3_chunk.cuh"
#include "kernels/fp16x3_in_flight.cuh"
#include "kernels/fp16x3_parts.h"
#include "launch.h"

namespace tiled::cuda {
namespace {

namespace wgmma = device::wgmma;

static_assert(kStageK == 2 * Packed::kK);

struct Tile {
  static constexpr int kRows = 64, kCols = 128;  // of x, of w
  static constexpr int kGroup = 128;             // threads: one of producers, then two of splitters
  static constexpr int kSplitters = 2 * kGroup, kThreads = kGroup + kSplitters;
  static constexpr int kProducerRegisters = 56, kSplitterRegisters = 224;
  static constexpr int kStages = 4;
  static constexpr int kElements = kRows * kCols / kSplitters;  // a splitter
  static constexpr int kPlane = Packed::plane_bytes(kRows);     // of x, kK of K
  static constexpr int kSteps = kStageK / Packed::kK;           // of a stage
  static constexpr int kK16s = Packed::kK / 16;                 // of a step
};

template <bool kAlongK>
using BlockStage = Stage<kAlongK, Tile::kCols, Lanes::kStandard>;

struct Smem {
  alignas(1024) uint8_t x[Tile::kStages][Tile::kSteps * 2][Tile::kPlane];  // hi, lo
  uint8_t w[Tile::kStages][BlockStage<true>::kBytes];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};
static_assert(sizeof(Smem) <= kMaxSharedMemory);

__device__ int stages_of(const Stretch& stretch) {
  return (stretch.length + kStageK - 1) / kStageK;
}

// How many stages of the unit after this one are asked for before this one is known to be done.
__device__ int stages_ahead(const InFlight& work, unsigned unit, unsigned end) {
  if (unit + 1 >= end) return 0;
  return min(stages_of(Stretch(work, (unit + 1) / work.units)), Tile::kStages - 1);
}

// Brings x of a block's units, stage by stage, as Loader does w; one thread.
class XLoader {
 public:
  __device__ void begin(const InFlight& work, unsigned unit, unsigned end) {
    unit_ = unit, steps_left_ = 0;
    if (unit >= end) return;
    const Stretch stretch(work, unit / work.units);
    const Packed& x = work.packed_x;
    const int64_t tile = stretch.first_row / Packed::kRows;
    plane_bytes_ = Packed::plane_bytes(x.tile_rows(tile));
    const int first_byte = Packed::plane_bytes(stretch.first_row % Packed::kRows);
    bytes_ = min(plane_bytes_ - first_byte, Tile::kPlane);
    from_ = x.halves + first_byte +
            x.step_offset(work.first_matrix + stretch.matrix, tile,
                          int64_t{stretch.chunk} * (kChunk / Packed::kK));
    steps_left_ = (stretch.length + Packed::kK - 1) / Packed::kK;
  }
  // Where a stage has one step only, that comes twice, and meets zeros of w.
  __device__ void load(const InFlight& work, unsigned end, Smem& smem, int slot) {
    device::arrive_expecting(&smem.full[slot], Tile::kSteps * 2 * bytes_);
    UNROLL
    for (int i = 0; i < Tile::kSteps * 2; ++i) {
      const int plane = i / 2 < steps_left_ ? i : i % 2;
      device::copy(smem.x[slot][i], from_ + plane * plane_bytes_, bytes_, &smem.full[slot]);
    }
    from_ += Tile::kSteps * 2 * plane_bytes_;
    steps_left_ -= Tile::kSteps;
    if (steps_left_ <= 0) begin(work, unit_ + 1, end);
  }

 private:
  const uint8_t* from_ = nullptr;
  int plane_bytes_ = 0, bytes_ = 0, steps_left_ = 0;
  unsigned unit_ = 0;
};

template <bool kAlongK>
__device__ void produce(const InFlight& work, Smem& smem) {
  const auto [first, end] = Part(work);
  Loader<BlockStage<kAlongK>, Tile::kGroup> w_loader(work, smem.w[0]);
  XLoader x_loader;
  // w is as it was before the kernel before this one began, which splits x.
  const int early = min(stages_of(Stretch(work, first / work.units)), Tile::kStages - 1);
  w_loader.begin(work, first, end, 1);
  for (int i = 0; i < early; ++i) {
    w_loader.load(work, end, i);
    device::arrive_when_copied(&smem.full[i]);
  }
  device::wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    x_loader.begin(work, first, end);
    for (int i = 0; i < early; ++i) x_loader.load(work, end, smem, i);
  }
  unsigned stage = early;  // of all units
  int ahead = early;       // stages of the unit that have been asked for
  auto load = [&] {
    const int slot = stage % Tile::kStages;
    const unsigned turn = stage / Tile::kStages;
    if (turn > 0) device::wait(&smem.empty[slot], (turn - 1) % 2);
    if (threadIdx.x == 0) x_loader.load(work, end, smem, slot);
    w_loader.load(work, end, slot);
    device::arrive_when_copied(&smem.full[slot]);
    ++stage;
  };
  NO_UNROLL
  for (unsigned unit = first; unit < end;) {
    if (ahead == 0) {
      w_loader.begin(work, unit, end, 1);
      x_loader.begin(work, unit, end);
    }
    const int stages = stages_of(Stretch(work, unit / work.units)) - ahead;
    ahead = stages_ahead(work, unit, end);
    NO_UNROLL
    for (int i = 0; i < stages + ahead; ++i) load();
    if (__syncthreads_or(false)) {  // the unit is to be computed again
      ahead = 0;
    } else {
      ++unit;
    }
  }
}

// The sums of a unit: element i is of column i / 2 % 2 of the thread's two.
struct Sums {
  float total[Tile::kElements], low[Tile::kElements], part[Tile::kElements];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] = low[i] = part[i] = 0;
  }
  // Waits for the products of the last step.
  __device__ void promote() {
    wgmma::wait<0>();
    wgmma::keep(low), wgmma::keep(part);
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] += part[i];
  }
  __device__ void scale(const float (&factor)[2]) {
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) {
      total[i] *= factor[i / 2 % 2], low[i] *= factor[i / 2 % 2];
    }
  }
};

// What wgmma takes of a step of w: of each 16 of K.
struct Fragments {
  uint32_t hi[Tile::kK16s][4], lo[Tile::kK16s][4];

  __device__ void set(int col, const Halves<Tile::kK16s>& col_hi,
                      const Halves<Tile::kK16s>& col_lo) {
    UNROLL
    for (int i = 0; i < Tile::kK16s * 2; ++i) {
      hi[i / 2][i % 2 * 2 + col] = col_hi[i / 2][i % 2];
      lo[i / 2][i % 2 * 2 + col] = col_lo[i / 2][i % 2];
    }
  }
  __device__ void keep() {
    UNROLL
    for (int i = 0; i < Tile::kK16s; ++i) wgmma::keep(hi[i]), wgmma::keep(lo[i]);
  }
};

// Splits a step of the thread's two columns. Returns whether sums are to be scaled, and by what.
template <bool kAlongK, int kStep>
__device__ bool split_step(const uint8_t* stage, int first_col, Column (&columns)[2],
                           Fragments& fragments, float (&factor)[2]) {
  Fours<Tile::kK16s> w[2];
  Halves<Tile::kK16s> hi[2], lo[2];
  bool outgrown = false;
  UNROLL
  for (int i = 0; i < 2; ++i) {
    read<BlockStage<kAlongK>, kStep * Tile::kK16s>(stage, first_col + i * 8, w[i]);
    split(w[i], columns[i].scale(), hi[i], lo[i]);
    outgrown |= Column::outgrown_by(hi[i]);
  }
  outgrown = __any_sync(~0u, outgrown);
  if (outgrown) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      factor[i] = columns[i].grow(w[i]);
      split(w[i], columns[i].scale(), hi[i], lo[i]);
    }
  }
  UNROLL
  for (int i = 0; i < 2; ++i) {
    columns[i].add(w[i], lo[i]);
    fragments.set(i, hi[i], lo[i]);
  }
  return outgrown;
}

// Asks for the products of a step.
template <bool kWIsA>
__device__ void multiply(const Fragments& w, const uint8_t* x, Sums& sums) {
  static_assert(fp16x3::promotion(kChunk) == Packed::kK);
  const uint32_t x_hi = wgmma::low_word(x), x_lo = x_hi + Tile::kPlane / 16;
  wgmma::fence();
  UNROLL
  for (int k16 = 0; k16 < Tile::kK16s; ++k16) {
    const uint64_t hi = wgmma::describe(x_hi + k16 * 2), lo = wgmma::describe(x_lo + k16 * 2);
    wgmma::multiply_add(sums.part, w.hi[k16], hi, k16 > 0);
    // The first of the low products is of A's lo half.
    wgmma::multiply_add(sums.low, kWIsA ? w.lo[k16] : w.hi[k16], kWIsA ? hi : lo, true);
    wgmma::multiply_add(sums.low, kWIsA ? w.hi[k16] : w.lo[k16], kWIsA ? lo : hi, true);
  }
  wgmma::commit();
}

// Leaves a unit's sums in memory.
__device__ void store_sums(const InFlight& work, unsigned unit, int first_col,
                           const Column (&columns)[2], Sums& sums) {
  const Stretch stretch(work, unit / work.units);
  const int q = threadIdx.x % 4;
  const float undo_w[2] = {columns[0].undo(), columns[1].undo()};
  const int64_t matrix = work.first_matrix + stretch.matrix;
  const int64_t padded_rows = work.packed_x.padded_rows();
  const float* undo = work.packed_x.undo + (matrix * work.chunks + stretch.chunk) * padded_rows +
                      stretch.first_row + q * 2;
  float2 undo_x[Tile::kElements / 4];
  UNROLL
  for (int i = 0; i < Tile::kElements / 4; ++i) {
    undo_x[i] =
        i * 8 < stretch.rows ? *reinterpret_cast<const float2*>(undo + i * 8) : float2{1, 1};
  }
  finish_chunk(sums.total, sums.low, undo_w, undo_x);
  float* to = sums_of(work, stretch) + int64_t{unit % work.units} * Tile::kCols + first_col;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const int row = i / 4 * 8 + q * 2 + i % 2;
    if (row < stretch.rows) __stcg(to + row * work.sums_stride() + i / 2 % 2 * 8, sums.total[i]);
  }
}

template <bool kAlongK, bool kWIsA>
__device__ void split_and_multiply(const InFlight& work, Smem& smem) {
  const auto [first, end] = Part(work);
  const int warp = threadIdx.x / 32 - Tile::kGroup / 32;
  const int first_col = warp * 16 + threadIdx.x % 32 / 4;
  Column columns[2];  // that, and 8 further
  Fragments fragments[Tile::kSteps];
  unsigned stage = 0;  // of all units
  auto wait = [&] { device::wait(&smem.full[stage % Tile::kStages], stage / Tile::kStages % 2); };
  auto give_back = [&](unsigned of_stage) {
    if (threadIdx.x % 32 == 0) device::arrive(&smem.empty[of_stage % Tile::kStages]);
  };
  NO_UNROLL
  for (unsigned unit = first; unit < end;) {
    Sums sums;
    sums.clear();
    const int stages = stages_of(Stretch(work, unit / work.units));
    NO_UNROLL
    for (int i = 0; i < stages; ++i, ++stage) {
      const uint8_t* w = smem.w[stage % Tile::kStages];
      const auto& x = smem.x[stage % Tile::kStages];
      wait();
      float factor[2];
      bool grown = split_step<kAlongK, 0>(w, first_col, columns, fragments[0], factor);
      sums.promote();
      fragments[1].keep();
      if (i > 0) give_back(stage - 1);
      if (grown) sums.scale(factor);
      multiply<kWIsA>(fragments[0], x[0], sums);

      grown = split_step<kAlongK, 1>(w, first_col, columns, fragments[1], factor);
      sums.promote();
      fragments[0].keep();
      if (grown) sums.scale(factor);
      multiply<kWIsA>(fragments[1], x[2], sums);
    }
    sums.promote();
    fragments[0].keep(), fragments[1].keep();
    give_back(stage - 1);
    if (__syncthreads_or(columns[0].failed() || columns[1].failed())) {
      columns[0].begin_again(), columns[1].begin_again();
      // What has been asked for of the next unit is in the way.
      for (int i = stages_ahead(work, unit, end); i > 0; --i, ++stage) wait(), give_back(stage);
    } else {
      store_sums(work, unit, first_col, columns, sums);
      columns[0] = {}, columns[1] = {};
      ++unit;
    }
  }
}

template <bool kAlongK, bool kWIsA>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_narrow_kernel(const __grid_constant__ InFlight work) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem*>(smem_bytes);
  device::let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      device::init_barrier(&smem.full[i], Tile::kGroup + 1);
      device::init_barrier(&smem.empty[i], Tile::kSplitters / 32);
    }
    device::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < Tile::kGroup) {
    wgmma::give_registers<Tile::kProducerRegisters>();
    produce<kAlongK>(work, smem);
  } else {
    wgmma::take_registers<Tile::kSplitterRegisters>();
    device::wait_for_previous_kernel();
    split_and_multiply<kAlongK, kWIsA>(work, smem);
  }
}

}  // namespace

void launch_fp16x3_narrow(const Problem& p, const Context& context) {
  InFlight work = in_flight(p, Tile::kCols, Tile::kRows, kMaxSumsBytes);
  WorkspaceLayout layout;
  const int64_t sums_at = layout.reserve(sums_bytes(work));
  const int64_t x_at = layout.reserve(work.packed_x.matrix_bytes() * p.batch.count);
  const int64_t undo_at =
      layout.reserve(work.packed_x.matrix_groups() * p.batch.count * int64_t{sizeof(float)});
  auto* workspace = static_cast<uint8_t*>(context.allocate(layout.bytes));
  work.packed_x.halves = workspace + x_at;
  work.packed_x.undo = reinterpret_cast<float*>(workspace + undo_at);
  const Operand x{work.x, p.batch, work.packed_x};
  launch_split({&x, 1}, {}, context);

  const auto kernel =
      work.w_along_k
          ? (work.w_is_a ? fp16x3_narrow_kernel<true, true> : fp16x3_narrow_kernel<true, false>)
          : (work.w_is_a ? fp16x3_narrow_kernel<false, true> : fp16x3_narrow_kernel<false, false>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(Smem))));
  run_in_flight(work, 1, context, workspace + sums_at, [&](unsigned blocks) {
    launch_after(kernel, blocks, Tile::kThreads, sizeof(Smem), context, work);
  });
}

}  // namespace tiled::cuda
