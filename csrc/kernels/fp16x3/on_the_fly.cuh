#pragma once
// Work tiles of the kernels that split the long operand on the fly (on_the_fly.h), on the GPU.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.h"

namespace tiled::cuda {

// A stage holds kStageK of K of a work tile's columns.
inline constexpr int kK16s = 4, kStageK = kK16s * 16;

// A panel of the short operand in one chunk of one matrix. All work tiles that multiply it follow
// each other: work tile i belongs to panel chunk i / col_tiles.
struct PanelChunk {
  unsigned matrix, chunk;  // matrix: of the launch
  int first_row, rows;     // of the panel
  int length;              // of the chunk

  __device__ PanelChunk(const OnTheFlyParams& params, unsigned index)
      : matrix(index / params.panels / params.chunks),
        chunk(index / params.panels % params.chunks),
        first_row(static_cast<int>(index % params.panels) * params.panel_rows),
        rows(static_cast<int>(min(params.short_count - first_row, int64_t{params.panel_rows}))),
        length(static_cast<int>(min(params.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}))) {}
};

// The work tiles of a block.
struct BlockTiles {
  unsigned first, end;

  __device__ explicit BlockTiles(const OnTheFlyParams& params) {
    const uint64_t tiles = uint64_t{params.panel_chunks()} * params.col_tiles;
    first = static_cast<unsigned>(tiles * blockIdx.x / gridDim.x);
    end = static_cast<unsigned>(tiles * (blockIdx.x + 1) / gridDim.x);
  }
};

// The sums of a panel chunk, from its first row and the launch's first column on.
__device__ inline float* partial_sums(const OnTheFlyParams& params, const PanelChunk& panel_chunk) {
  const int64_t group = int64_t{panel_chunk.matrix} * params.chunks + panel_chunk.chunk;
  return params.partial_sums +
         (group * params.short_count + panel_chunk.first_row) * params.sums_pitch();
}

}  // namespace tiled::cuda
