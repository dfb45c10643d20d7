#pragma once
// k and v as attention_kernel reads them: scaled and split once into float16 parts.

#include <algorithm>
#include <cstdint>

#include "core/attention.h"
#include "core/context.h"
#include "core/order_attention.h"
#include "kernels/common/workspace.h"

namespace tiled::cuda::attention {

// Queries of a warpgroup, and keys of a tile. A warp splits kRows / 4 of them.
inline constexpr int kRows = tiled::attention::kTile;

// What a tile of keys has beside the parts of k, and beside those of v. Both are copied in bulk, in
// multiples of 16 bytes.
struct alignas(16) KeyScales {
  float inverse[kRows];  // 2^-s_k
  float largest[4];      // of inverse[], by the warp that split the rows
};
struct alignas(16) ValueScales {
  int exponent[kRows];    // -s_v
  float scale[kRows];     // 2^(s_v - kSumShift)
  int least[4], most[4];  // of exponent[], by warp
};

// The parts of k or v: (matrices, 2, rows, columns), hi and then lo. Columns are padded with zeros
// to `columns`, whole blocks of 64, the width of a box. Packed sequences have whole tiles of rows,
// also padded with zeros.
struct Parts {
  Half* data = nullptr;
  int64_t matrices = 0, rows = 0, columns = 0;

  static Parts take(int64_t matrices, int64_t rows, int64_t columns, Workspace& workspace) {
    return {workspace.take<Half>(matrices * 2 * rows * columns).data(), matrices, rows, columns};
  }
};

struct SplitOperands {
  Parts k, v;
  uint32_t key_tiles = 0;               // of a matrix
  KeyScales* key_scales = nullptr;      // (matrices, key_tiles)
  ValueScales* value_scales = nullptr;  // the same

  static SplitOperands take(const AttentionProblem& p, Workspace& workspace) {
    const int64_t matrices = p.batch * p.kv_heads, tiles = p.key_tiles(kRows);
    const int64_t columns = ceil_div(p.columns(), 64) * 64;
    const int64_t rows = p.is_packed() ? tiles * kRows : p.keys;
    return {.k = Parts::take(matrices, rows, columns, workspace),
            .v = Parts::take(matrices, rows, columns, workspace),
            .key_tiles = static_cast<uint32_t>(tiles),
            .key_scales = workspace.take<KeyScales>(matrices * tiles).data(),
            .value_scales = workspace.take<ValueScales>(matrices * tiles).data()};
  }
};

// The sums of each tile of keys for each query, if blocks share the keys of a query: m, l and o of
// the order.
struct TileStates {
  struct State {
    int exponent;
    float sum;
  };
  int64_t tiles = 0, columns = 0;
  State* states = nullptr;  // (matrices of q, queries, tiles)
  float* out = nullptr;     // (matrices of q, queries, tiles, columns)

  static TileStates take(const AttentionProblem& p, Workspace& workspace) {
    const int64_t tiles = ceil_div(p.keys, kRows), columns = ceil_div(p.value_size, 4) * 4;
    const int64_t count = p.batch * p.heads * p.query_rows() * tiles;
    return {.tiles = tiles,
            .columns = columns,
            .states = workspace.take<State>(count).data(),
            .out = workspace.take<float>(count * columns).data()};
  }
};

// What the backward kernels have of a query beside its parts and those of dout.
struct alignas(16) QueryStates {
  float inverse[kRows];  // Denominator
  int exponent[kRows];
  float delta[kRows];
};

// q, dout, k and v as the backward kernels read them.
struct BackwardOperands {
  enum Name { kQ, kDout, kK, kV, kCount };

  struct Operand {
    Parts parts;
    uint32_t tiles = 0;           // of a matrix
    KeyScales* scales = nullptr;  // (matrices, tiles)
  };
  Operand operand[kCount];
  QueryStates* states = nullptr;  // (matrices, tiles) of q

  static BackwardOperands take(const AttentionBackward& p, Workspace& workspace) {
    const int64_t columns = ceil_div(p.columns(), 64) * 64;
    BackwardOperands to;
    for (int i = 0; i < kCount; ++i) {
      const bool is_query = i == kQ || i == kDout;
      const int64_t matrices = p.batch * (is_query ? p.heads : p.kv_heads);
      const int64_t tiles = is_query ? p.query_tiles(kRows) : p.key_tiles(kRows);
      const int64_t rows = p.is_packed() ? tiles * kRows : is_query ? p.queries : p.keys;
      to.operand[i] = {.parts = Parts::take(matrices, rows, columns, workspace),
                       .tiles = static_cast<uint32_t>(tiles),
                       .scales = workspace.take<KeyScales>(matrices * tiles).data()};
      if (i == kQ) to.states = workspace.take<QueryStates>(matrices * tiles).data();
    }
    return to;
  }
};

void launch_split(const AttentionProblem& p, const SplitOperands& to, const Context& context);

// The blocks of the kernel of few queries that run at once on an SM.
constexpr int small_blocks_of_sm(int64_t columns) {
  return columns <= 64 ? 3 : columns <= 128 ? 2 : 1;
}

// The kernels of launch.cpp. They launch accepted problems, with sums and keys.
void launch_large(const AttentionProblem& p, const SplitOperands& parts, const Context& context);
// Each block takes up to tiles_per_block tiles of keys. They are all, if there are no states.
void launch_small(const AttentionProblem& p, int64_t tiles_per_block, const TileStates& states,
                  const Context& context);

// The same of the backward pass: dq; dk and dv.
void launch_split(const AttentionBackward& p, const BackwardOperands& to, const Context& context);
void launch_backward_queries(const AttentionBackward& p, const BackwardOperands& operands,
                             const Context& context);
void launch_backward_keys(const AttentionBackward& p, const BackwardOperands& operands,
                          const Context& context);
// The same in one launch, of an accepted problem with few queries and keys.
bool accepts_small_backward(const AttentionBackward& p);
void launch_small_backward(const AttentionBackward& p, const Context& context);

}  // namespace tiled::cuda::attention
