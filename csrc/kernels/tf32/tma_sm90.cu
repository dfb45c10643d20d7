// 14 tf32_tma: float32 products of 11 bits, as products of halves.
//
// Idea:  TF32 has 11 bits of a float32, and so has a half, which tensor cores multiply twice as
//        fast, whichever way it lies; what a half lacks are exponents. So rows of A and columns of
//        B are scaled and rounded to halves first (tf32_halves_sm90.cu), lines along K whatever
//        they were before; mma_tma's kernel multiplies those; and here sums are scaled back.
//        Elements whose scales oppose each other are marked, and computed again by fp16x3's kernel.
// Limit: mma_tma's; and operands are read and rewritten, which takes a third as long at 4096.
// Next:  operands of few rows, which are better rounded where they are multiplied.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_fp16x3.h"
#include "core/order_mma.h"
#include "core/order_tf32.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/sub_problems.h"
#include "kernels/fp16x3/flagged.cuh"
#include "kernels/fp16x3/parts.h"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store.cuh"
#include "kernels/tf32/scale.h"
#include "ptx/named_barrier.cuh"

namespace tiled::cuda {
namespace {

// The scales of an operand's groups, undone: as ScaledHalves has them.
struct Undo {
  const float* data;
  int64_t chunk, matrix;  // from one to the next

  explicit Undo(const ScaledHalves& x)
      : data(x.undo), chunk(x.padded_rows()), matrix(x.matrix_groups()) {}
  Undo() = default;
};

struct EndWork : mma_tma::Work {
  Undo undo_a, undo_b;
  Marks marks;
  bool simple, in_pairs;  // see store_simply()
  bool by_fours;          // C is written by four neighbours of a row, of which none or all exist
};

template <class Tile>
struct End {
  static constexpr int kHeld = 128, kSpare = mma_tma::kSpareIn<SumsOfRows>;

  using Work = EndWork;
  struct Smem {
    SumsOfRows rows[Tile::kConsumers * 4];  // a warp's
    // Of a warpgroup's columns:
    alignas(16) float undo[Tile::kConsumers][Tile::kN], bias[Tile::kConsumers][Tile::kN];
  };
  static constexpr int kOwn = ceil_div(Tile::kN, Tile::kWarpgroup);  // columns a thread looks up
  static constexpr int kElements = Tile::kElements;

  const Work& work;
  Smem& smem;
  const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kWarpgroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ End(const Work& work, Smem& smem) : work(work), smem(smem) {}

  // Maps have one dimension for the batch, and p's matrices count what is stored.
  __device__ static TmaCoords place(const Problem& p, const Matrix& matrix, int64_t index) {
    return TmaCoords(static_cast<int>(batch_offset(p.batch, matrix, index)));
  }

  __device__ static TileCoord of_warp(TileCoord tile) {
    tile.row += static_cast<int>(threadIdx.x) / 32 * 16 - Tile::kWarpgroup / 32 * 16;
    return tile;
  }

  __device__ float4* spare() const {
    return reinterpret_cast<float4*>(&smem.rows[threadIdx.x / 32 - Tile::kWarpgroup / 32]) + lane;
  }
  __device__ void begin_tile(const TileCoord& tile) const {
    if (work.p.epilogue.bias == nullptr) return;
    load_bias<float>(work.p, tile.col, 1 + warpgroup, smem.bias[warpgroup]);
  }

  // Scales sums back.
  __device__ void end_chunk(const TileCoord& of_block, int64_t chunk,
                            float (&sums)[kElements]) const {
    const Problem& p = work.p;
    const TileCoord tile = of_warp(of_block);
    const auto groups = [&](const Undo& undo, const Matrix& matrix) {
      return undo.data + batch_offset(p.batch, matrix, tile.batch) * undo.matrix +
             chunk / mma_order::kChunk * undo.chunk;
    };
    const float* of_a = groups(work.undo_a, p.a);
    const float* of_b = groups(work.undo_b, p.b);
    float undo_a[2], undo_b[kOwn];  // of the thread's rows, and of some columns
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = tile.row + lane / 4 + i * 8;
      undo_a[i] = row < p.m ? __ldg(of_a + row) : 1.0f;
    }
    UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int in_tile = thread + i * Tile::kWarpgroup, col = tile.col + in_tile;
      undo_b[i] = in_tile < Tile::kN && col < p.n ? __ldg(of_b + col) : 1.0f;
    }
    bool plain = true;  // tf32::chunk_sum() is then two multiplications, the first of them exact
    UNROLL
    for (const float each : undo_a) plain &= each >= 0x1p-60f && each <= 0x1p60f;
    UNROLL
    for (const float each : undo_b) plain &= each > 0;
    float(&undo)[Tile::kN] = smem.undo[warpgroup];
    ptx::named_barrier_sync(1 + warpgroup, Tile::kWarpgroup);  // the last chunk's have been read
    UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int in_tile = thread + i * Tile::kWarpgroup;
      if (in_tile < Tile::kN) undo[in_tile] = undo_b[i];
    }
    const bool any = ptx::named_barrier_sync_or(1 + warpgroup, Tile::kWarpgroup, !plain);
    const auto of_columns = [&](int i) {
      return *reinterpret_cast<const float2*>(&undo[lane % 4 * 2 + i * 2]);
    };
    if (!any) {
      UNROLL
      for (int i = 0; i < kElements; i += 4) {
        const float2 two = of_columns(i);
        UNROLL
        for (int j = 0; j < 4; ++j) {
          sums[i + j] = sums[i + j] * undo_a[j / 2] * (j % 2 == 0 ? two.x : two.y);
        }
      }
    } else {
      constexpr int kTurn = 16;  // sums, which go round, so that the loop stays one
      NO_UNROLL
      for (int first = 0; first < kElements; first += kTurn) {
        float ended[kTurn];
        UNROLL
        for (int i = 0; i < kTurn; ++i) {
          const float undo_col = undo[lane % 4 * 2 + (first + i) / 4 * 8 + i % 2];
          ended[i] = tf32::chunk_sum(sums[i], undo_a[i / 2 % 2], undo_col);
        }
        UNROLL
        for (int i = 0; i < kElements; ++i) {
          sums[i] = i + kTurn < kElements ? sums[(i + kTurn) % kElements]
                                          : ended[(i + kTurn) % kElements % kTurn];
        }
      }
    }
  }

  // From sums to C, where all are inside, none is marked, and little is to be asked.
  template <bool kInPairs>
  __device__ void store_simply(const TileCoord& tile, float (&sums)[kElements]) const {
    const Problem& p = work.p;
    const int64_t row = tile.row + lane / 4, col = tile.col + lane % 4 * 2;
    float* data = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, tile.batch) +
                  row * p.c.row_stride + col;
    UNROLL
    for (int i = 0; i < kElements; i += 2) {
      float x = sums[i], y = sums[i + 1];
      if (p.epilogue.bias != nullptr) {
        const float* bias = &smem.bias[warpgroup][lane % 4 * 2 + i / 4 * 8];
        x += bias[0], y += bias[1];
      }
      if (p.epilogue.activation == Activation::kRelu) {
        x = activate(Activation::kRelu, x), y = activate(Activation::kRelu, y);
      }
      float* to = data + i / 2 % 2 * 8 * p.c.row_stride + i / 4 * 8;
      if constexpr (kInPairs) {
        *reinterpret_cast<float2*>(to) = {x, y};
      } else {
        to[0] = x, to[1] = y;
      }
    }
  }

  // Appends those of the warp's elements to the list that are NaN.
  __device__ void list(const TileCoord& tile, const float (&sums)[kElements]) const {
    constexpr int kPiece = Marks::kCols / 2;  // elements
    UNROLL
    for (int first = 0; first < kElements; first += kPiece) {
      uint64_t marked = 0;
      UNROLL
      for (int i = first; i < min(first + kPiece, kElements); ++i) {
        const int row = tile.row + lane / 4 + i / 2 % 2 * 8;
        const int col = tile.col + lane % 4 * 2 + i / 4 * 8 + i % 2;
        const bool exists = row < work.p.m && col < work.p.n;
        if (exists && isnan(sums[i])) marked |= uint64_t{1} << (i - first);
      }
      list_marked(work.marks, tile.batch, tile.row, tile.col + first * 2, marked);
    }
  }

  __device__ void end_tile(const TileCoord& of_block, float (&sums)[kElements]) const {
    const Problem& p = work.p;
    const TileCoord tile = of_warp(of_block);
    bool simple = work.simple && tile.row + 16 <= p.m && tile.col + Tile::kN <= p.n;
    UNROLL
    for (const float sum : sums) simple &= !isnan(sum);
    if (__all_sync(~0u, simple)) {
      work.in_pairs ? store_simply<true>(tile, sums) : store_simply<false>(tile, sums);
      return;
    }
    list(tile, sums);
    float* c = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, tile.batch);
    store_rows<true>(p, work.by_fours, work.simple, c, tile.row, tile.col, sums,
                     smem.rows[threadIdx.x / 32 - Tile::kWarpgroup / 32], smem.bias[warpgroup],
                     [](int i) { return i; });
  }
  __device__ void finish() const {}
};

// What a problem needs besides its operands, and where that lies in one workspace.
struct Layout {
  ScaledHalves a, b;
  int64_t count_at, a_at, b_at, a_undo_at, b_undo_at, pieces_at, totals_at, bytes;

  Layout(const Problem& p, const Context& context)
      : a(scaled_halves(p.batch, p.a, p.m, p.k)),
        b(scaled_halves(p.batch, transposed(p.b), p.n, p.k)) {
    constexpr int kLeastCols = 48;  // of a piece, in the mean: tiles of 96 have two
    WorkspaceLayout layout;
    count_at = layout.reserve(sizeof(int));
    a_at = layout.reserve(a.halves_bytes()), b_at = layout.reserve(b.halves_bytes());
    a_undo_at = layout.reserve(a.undo_bytes()), b_undo_at = layout.reserve(b.undo_bytes());
    pieces_at = layout.reserve(Marks::capacity(p, kLeastCols) * int64_t{sizeof(Marks::Piece)});
    constexpr int64_t kTotals = 128 * 256 * sizeof(float);  // of the largest tile
    totals_at = layout.reserve(p.k > mma_order::kChunk ? context.sms * kTotals : 0);
    bytes = layout.bytes;
  }
};

template <int kIndex, int kStages>
void run_tile(const Problem& p, const ScaledHalves& a, const ScaledHalves& b, const Marks& marks,
              float4* totals, int64_t ranges, const Context& context) {
  using Tile = mma_tma::Tile<Half, kIndex, kStages, false, false>;
  const auto lines = [](const ScaledHalves& x) {
    mma_tma::Lines lines;
    lines.batch = {.rank = 1, .count = x.batch.count, .size = {x.batch.count}};
    lines.matrix = {.data = x.halves,
                    .row_stride = x.pitch(),
                    .col_stride = 1,
                    .batch_stride = {x.matrix_elements()}};
    return lines;
  };
  EndWork work{};
  work.p = p;
  work.p.a = a.index, work.p.b = b.index;
  work.undo_a = Undo(a), work.undo_b = Undo(b);
  work.marks = marks;
  work.totals = totals;
  work.simple = p.c.col_stride == 1 && p.epilogue.is_bias_relu_at_most();
  work.in_pairs = is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  work.by_fours =
      p.n % 4 == 0 && is_vector_aligned<float4>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  mma_tma::launch<Tile, End>(work, ranges, lines(a), lines(b), context);
}

void run(const Problem& p, const Plan& plan, uint8_t* workspace, const Context& context) {
  const Layout layout(p, context);
  ScaledHalves a = layout.a, b = layout.b;
  a.halves = reinterpret_cast<uint16_t*>(workspace + layout.a_at);
  b.halves = reinterpret_cast<uint16_t*>(workspace + layout.b_at);
  a.undo = reinterpret_cast<float*>(workspace + layout.a_undo_at);
  b.undo = reinterpret_cast<float*>(workspace + layout.b_undo_at);
  const Marks marks{reinterpret_cast<int*>(workspace + layout.count_at),
                    reinterpret_cast<Marks::Piece*>(workspace + layout.pieces_at)};
  auto* totals = reinterpret_cast<float4*>(workspace + layout.totals_at);
  launch_scale(a, b, marks.count, context);
  with_tile<std::size(h200::kMmaTmaTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr int kStages = h200::kMmaTmaTiles[kIndex].tf32_stages;
    if constexpr (kStages == 0) {
      fail_no_tile("tf32_tma", kIndex);
    } else {
      run_tile<kIndex, kStages>(p, a, b, marks, totals, plan.k_splits, context);
    }
    return true;
  });
  launch_recompute(p, marks, context);
}

}  // namespace

// Where memory is short, sub-problems share a smaller workspace.
bool launch_tf32_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  if (std::max(p.m, p.n) > tf32::kMaxK) {  // more rows than a tensor map holds
    const auto parts = *split_in_two(p);
    return launch_tf32_tma(parts.first, plan, context) &&
           launch_tf32_tma(parts.second, plan, context);
  }
  const auto bytes = [&](const Problem& part) { return Layout(part, context).bytes; };
  return run_sub_problems(p, context, 0, bytes, [&](const Problem& part, uint8_t* workspace) {
    run(part, plan, workspace, context);
  });
}

}  // namespace tiled::cuda
