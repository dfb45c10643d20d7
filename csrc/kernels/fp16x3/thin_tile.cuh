#pragma once
// fp16x3_thin: its tiles, their order, and its shared memory.

#include <cstdint>

#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda::fp16x3_thin {

// A tile has kRows rows of the long operand and kCols of the short one.
inline constexpr int kRows = kFp16x3ThinRows, kCols = kFp16x3ThinCols;
inline constexpr int kSteps = 8;  // of 16 along K, for each warp that loads
inline constexpr int kSlice = kSteps * 16;

// A chunk of the long operand, which warps keep in shared memory: they have no registers for it.
struct LongChunk {
  const float* first;  // of the launch's first row
  int length;
};

// The shared memory of a block. kWarps of its warps load.
template <int kWarps>
struct Smem {
  static constexpr int kThreads = (kWarps + 1) * 32;  // one warp multiplies
  // Fragments of the long operand: for each step hi, then lo, of each lane row g and row g + 8.
  static constexpr int kStepBytes = 2 * 32 * 16 + 64;  // fewer bank conflicts
  uint8_t long_operand[kWarps * kSteps][kStepBytes];
  uint8_t zeros[16];
  float inverse_scales[kRows + kCols];
  Range ranges[kWarps][kRows];           // of the long operand's slices
  uint8_t small_numbers[kWarps][kRows];  // in slices of wide rows
  LongChunk long_chunk[kWarps];
  // Fragments of the short operand, which has `cols` rows: for each step, row and q hi, then lo.
  uint8_t short_operand[];

  // The fragments of one step more are loaded, and not used.
  static constexpr int bytes(int cols) {
    return static_cast<int>(sizeof(Smem)) + (kWarps * kSteps + 1) * cols * 64;
  }
};

// The lane and the warp, read anew each time, so that a loop keeps no addresses that depend on them
// in registers.
__device__ inline int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ inline int warp_id() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return ptx::warp_uniform(static_cast<unsigned>(thread) / 32);
}

// The long operand's rows are columns of the sums, as in all kernels that split on the fly.
struct Params : OnTheFlyParams {
  unsigned tiles, tiles_of_block;                // in all, and at most
  unsigned group;                                // blocks that take tiles in turn
  unsigned panel_chunks_apart, col_tiles_apart;  // a block's tile and its next one
};

// The tiles of a block. A group of blocks has adjacent tiles, so that each block seldom enters
// another panel chunk and loads its rows of the short operand.
struct Tiles {
  unsigned panel_chunk, col_tile;  // of this tile
  unsigned left;                   // with this one
  bool enters_panel_chunk = true;

  __device__ explicit Tiles(const Params& params) {
    const unsigned group = blockIdx.x / params.group, member = blockIdx.x % params.group;
    const unsigned first = group * params.group * params.tiles_of_block + member;
    panel_chunk = first / params.col_tiles, col_tile = first % params.col_tiles;
    left = min(params.tiles_of_block, (params.tiles - first + params.group - 1) / params.group);
  }
  // Goes on to the next tile. Returns whether there is one.
  __device__ bool advance(const Params& params) {
    unsigned next = panel_chunk + params.panel_chunks_apart;
    col_tile += params.col_tiles_apart;
    if (col_tile >= params.col_tiles) col_tile -= params.col_tiles, ++next;
    enters_panel_chunk = next != panel_chunk;
    panel_chunk = next;
    return --left > 0;
  }
  // The first row of the long operand, and how many there are.
  __device__ int64_t first_row(const Params& params) const {
    return (params.first_col_tile + col_tile) * kRows;
  }
  __device__ int rows(const Params& params) const {
    return static_cast<int>(min(params.long_count - first_row(params), int64_t{kRows}));
  }
};

}  // namespace tiled::cuda::fp16x3_thin
