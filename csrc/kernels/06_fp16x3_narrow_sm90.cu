// 06 fp16x3_narrow: the long operand, split in flight, is wgmma's A.
//
// Idea:  with more rows of x than fp16x3_skinny takes, what a warp multiplies its eight columns of
// w
//        by is more than shared memory can give. So a warpgroup takes 64 columns: each warp splits
//        sixteen in its registers, and from there they are wgmma's rows, multiplied by up to kRows
//        rows of x, which the tensor cores read from shared memory once for all four warps. x is
//        split beforehand (fp16x3_split) and comes stage by stage beside w.
// Limit: the L2 cache, which brings x once for each kCols columns of w; where there are more rows
//        than kRows, w as often as there are panels.
// Next:  a cluster whose blocks share what they read of x.

#include <cuda_pipeline_primitives.h>

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

struct Tile {
  static constexpr int kRows = 64, kCols = 128;  // of x, of w
  static constexpr int kThreads = 256;           // two warpgroups, of 64 columns each
  static constexpr int kStages = 4;
  static constexpr int kElements = kRows * kCols / kThreads;  // a thread
  static constexpr int kPlane = Packed::plane_bytes(kRows);   // of x, kK of K
  static constexpr int kSteps = kStageK / Packed::kK;
};

template <bool kAlongK>
using BlockStage = Stage<kAlongK, Tile::kCols, Lanes::kStandard>;

struct Smem {
  alignas(1024) uint8_t x[Tile::kStages][Tile::kSteps * 2][Tile::kPlane];  // hi, lo
  uint8_t w[Tile::kStages][BlockStage<true>::kBytes];
};
static_assert(sizeof(Smem) <= kMaxSharedMemory);

// Copies a block's units of x, stage by stage, as Loader does those of w.
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
    const int byte = first_byte + static_cast<int>(threadIdx.x) * 16;
    is_there_ = byte < plane_bytes_;
    from_ = x.halves +
            x.step_offset(work.first_matrix + stretch.matrix, tile,
                          int64_t{stretch.chunk} * (kChunk / Packed::kK)) +
            (is_there_ ? byte : 0);
    steps_left_ = (stretch.length + Packed::kK - 1) / Packed::kK;
  }
  __device__ void load(const InFlight& work, unsigned end, uint8_t* to) {
    static_assert(Tile::kPlane == Tile::kThreads * 16);
    if (steps_left_ <= 0) return;
    UNROLL
    for (int i = 0; i < Tile::kSteps * 2; ++i) {
      device::copy_16(to + i * Tile::kPlane + threadIdx.x * 16, from_,
                      is_there_ && i / 2 < steps_left_ ? 16 : 0);
      from_ += plane_bytes_;
    }
    steps_left_ -= Tile::kSteps;
    if (steps_left_ <= 0) begin(work, unit_ + 1, end);
  }

 private:
  const uint8_t* from_ = nullptr;
  int plane_bytes_ = 0, steps_left_ = 0;
  bool is_there_ = false;
  unsigned unit_ = 0;
};

// The sums of a unit: element i is of column i / 2 % 2 of the thread's two.
struct Sums {
  float total[Tile::kElements], low[Tile::kElements], part[Tile::kSteps][Tile::kElements];

  __device__ void clear() {
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) {
      total[i] = low[i] = 0;
      UNROLL
      for (int step = 0; step < Tile::kSteps; ++step) part[step][i] = 0;
    }
  }
  // Waits for all products.
  __device__ void promote() {
    wgmma::wait<0>();
    wgmma::keep(low);
    UNROLL
    for (int step = 0; step < Tile::kSteps; ++step) {
      wgmma::keep(part[step]);
      UNROLL
      for (int i = 0; i < Tile::kElements; ++i) total[i] += part[step][i];
    }
  }
  __device__ void scale(const float (&factor)[2]) {
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) {
      total[i] *= factor[i / 2 % 2], low[i] *= factor[i / 2 % 2];
    }
  }
};

// What wgmma takes of a stage of w: of each 16 of K.
struct Fragments {
  uint32_t hi[kK16s][4], lo[kK16s][4];

  __device__ void set(int col, const Halves& col_hi, const Halves& col_lo) {
    UNROLL
    for (int i = 0; i < kK16s * 2; ++i) {
      hi[i / 2][i % 2 * 2 + col] = col_hi[i / 2][i % 2];
      lo[i / 2][i % 2 * 2 + col] = col_lo[i / 2][i % 2];
    }
  }
  __device__ void keep() {
    UNROLL
    for (int i = 0; i < kK16s; ++i) wgmma::keep(hi[i]), wgmma::keep(lo[i]);
  }
};

// Splits a stage of the thread's two columns.
template <bool kAlongK>
__device__ void split_stage(const uint8_t* stage, int first_col, Column (&columns)[2],
                            Fragments& fragments, Sums& sums) {
  Fours w[2];
  Halves hi[2], lo[2];
  bool outgrown = false;
  UNROLL
  for (int i = 0; i < 2; ++i) {
    read<BlockStage<kAlongK>>(stage, first_col + i * 8, w[i]);
    split(w[i], columns[i].scale(), hi[i], lo[i]);
    outgrown |= Column::outgrown_by(hi[i]);
  }
  if (__any_sync(~0u, outgrown)) {
    float factor[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
      factor[i] = columns[i].grow(w[i]);
      split(w[i], columns[i].scale(), hi[i], lo[i]);
    }
    sums.scale(factor);
  }
  UNROLL
  for (int i = 0; i < 2; ++i) {
    columns[i].add(w[i], lo[i]);
    fragments.set(i, hi[i], lo[i]);
  }
}

// Asks for the products of a stage.
template <bool kWIsA>
__device__ void multiply(const Fragments& w, const uint8_t* x, Sums& sums) {
  static_assert(fp16x3::promotion(kChunk) == Packed::kK);
  const uint32_t x_hi = wgmma::low_word(x), x_lo = x_hi + Tile::kPlane / 16;
  wgmma::fence();
  UNROLL
  for (int k16 = 0; k16 < kK16s; ++k16) {
    const int step = k16 / 2, at = step * 2 * Tile::kPlane / 16 + k16 % 2 * 2;
    const uint64_t hi = wgmma::describe(x_hi + at), lo = wgmma::describe(x_lo + at);
    wgmma::multiply_add(sums.part[step], w.hi[k16], hi, k16 % 2 > 0);
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
  const int64_t group = int64_t{stretch.matrix} * work.chunks + stretch.chunk;
  float* to = work.sums + (group * work.x_count + stretch.first_row) * work.sums_stride() +
              int64_t{unit % work.units} * Tile::kCols + first_col;
  UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    const int row = i / 4 * 8 + q * 2 + i % 2;
    if (row < stretch.rows) __stcg(to + row * work.sums_stride() + i / 2 % 2 * 8, sums.total[i]);
  }
}

template <bool kAlongK, bool kWIsA>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_narrow_kernel(const __grid_constant__ InFlight work) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Smem*>(smem_bytes);
  constexpr int kStages = Tile::kStages;
  device::let_next_kernel_start();
  const auto [first, end] = Part(work);
  const int first_col = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // and 8 further
  device::wait_for_previous_kernel();
  Loader<BlockStage<kAlongK>, Tile::kThreads> w_loader(work, smem.w[0]);
  XLoader x_loader;
  auto load = [&](int stage) {
    w_loader.load(work, end, stage);
    x_loader.load(work, end, smem.x[stage][0]);
    __pipeline_commit();
  };
  Column columns[2];
  Fragments fragments;
  int stage = 0;
  bool begins = true;  // nothing has been asked for
  NO_UNROLL
  for (unsigned unit = first; unit < end;) {
    if (begins) {
      w_loader.begin(work, unit, end, 1);
      x_loader.begin(work, unit, end);
      stage = 0;
      NO_UNROLL
      for (int i = 0; i < kStages - 1; ++i) load(i);
    }
    Sums sums;
    sums.clear();
    NO_UNROLL
    for (int left = Stretch(work, unit / work.units).length; left > 0; left -= kStageK) {
      sums.promote();
      fragments.keep();
      __pipeline_wait_prior(kStages - 2);
      device::publish_writes();
      __syncthreads();  // this stage has come, the last is free
      load((stage == 0 ? kStages : stage) - 1);
      split_stage<kAlongK>(smem.w[stage], first_col, columns, fragments, sums);
      multiply<kWIsA>(fragments, smem.x[stage][0], sums);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    sums.promote();
    fragments.keep();
    begins = __syncthreads_or(columns[0].failed() || columns[1].failed());
    if (begins) {
      columns[0].begin_again(), columns[1].begin_again();
      __pipeline_wait_prior(0);
      __syncthreads();
      continue;
    }
    store_sums(work, unit, first_col, columns, sums);
    columns[0] = {}, columns[1] = {};
    ++unit;
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
