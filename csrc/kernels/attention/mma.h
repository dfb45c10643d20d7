#pragma once
// Attention of 16-bit floats as its kernels take it: q, k and v by tensor maps.

#include <cuda.h>

#include <cstdint>

#include "core/attention.h"
#include "core/context.h"
#include "core/order_attention_mma.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda::attention {

inline constexpr int kMmaRows = attention_mma::kTile;  // queries of a warpgroup, keys of a tile

// A tensor of (batch, heads, rows, columns) by TMA: boxes of kMmaRows rows and 64 columns, swizzled
// by 128 bytes, with zeros beyond the last row and column.
struct HeadsMap {
  CUtensorMap map;
  bool has_heads, has_batch;  // dimensions of more than one element that are not expanded

  // The coordinates of a box.
  HOST_DEVICE void coords(int column, int row, int head, int batch, int (&at)[5]) const {
    at[0] = column, at[1] = row;
    at[2] = has_heads ? head : has_batch ? batch : 0;
    at[3] = has_heads && has_batch ? batch : 0;
    at[4] = 0;
  }
};

// An operand that tensor maps cannot describe is first copied: rows of contiguous columns, padded
// with zeros to a multiple of 8.
bool is_tma_aligned(const Heads& x, int64_t batch, int64_t heads, int64_t rows, int64_t columns);
HeadsMap heads_map(const Heads& x, int64_t batch, int64_t heads, int64_t rows, int64_t columns,
                   DType dtype);

struct HeadsCopy {
  Heads from, to;
  int64_t batch, heads, rows, columns, padded;
};
void launch_copy(const HeadsCopy& copy, const Context& context);

// The states (m, l, o) of each chunk of keys of each query, if blocks share the keys of a query.
struct ChunkStates {
  struct State {
    int exponent;
    float sum;
  };
  int64_t chunks = 0, columns = 0;
  State* states = nullptr;  // (matrices of q, queries, chunks)
  float* out = nullptr;     // (matrices of q, queries, chunks, columns)

  static ChunkStates take(const AttentionProblem& p, Workspace& workspace) {
    const int64_t chunks = ceil_div(p.keys, attention_mma::kChunk);
    const int64_t columns = ceil_div(p.value_size, 4) * 4;
    const int64_t count = p.batch * p.heads * p.queries * chunks;
    return {.chunks = chunks,
            .columns = columns,
            .states = workspace.take<State>(count).data(),
            .out = workspace.take<float>(count * columns).data()};
  }
};

// The kernels of mma_launch.cpp. They launch accepted problems with queries and keys, of which k
// and v (and q, for many queries) are is_tma_aligned().
void launch_mma_large(const AttentionProblem& p, const Context& context);
// Each block takes up to chunks_per_block chunks of keys. They are all, if there are no states.
void launch_mma_decode(const AttentionProblem& p, int64_t chunks_per_block,
                       const ChunkStates& states, const Context& context);

// Launches either one; returns false if there is no memory for the copies of operands.
bool launch_16bit(const AttentionProblem& p, const Context& context);

}  // namespace tiled::cuda::attention
