// Grouped float32 products by three float16 products.
//
// Idea:  fp16x3_wgmma with tiles from a list. The kernel that splits an operand writes the rows of
//        a group, or its part of K, to a place of their own, padded to whole steps, so that tiles
//        are loaded by bulk copies wherever a group begins.
// Limit: An operand is written and read once more than it need be, which for short K takes longer
//        than the product. Flagged elements are recomputed by the threads that have them, one after
//        another.
// Next:  a kernel that splits long operands of short K in registers.
//
//   producer    wait empty[s]       load A and B of a step into stage s      -> full[s]
//   consumers   multiply_chunk() of fp16x3_wgmma                             -> empty[s]
//   end of a tile                   add the bias, store; recompute flagged elements

#include <algorithm>
#include <cstdint>

#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/stored_batch.h"
#include "kernels/common/group_tiles.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/fp16x3/descale.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/split.h"
#include "kernels/fp16x3/wgmma_mainloop.cuh"
#include "kernels/fp16x3/wgmma_tile.cuh"
#include "kernels/grouped/launch.h"
#include "ptx/ld_global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace grouped_fp16x3 {

using namespace fp16x3_wgmma;  // Tile, Smem, Consumer, multiply_chunk() and what they need

struct GroupedParams {
  Problem p;
  Presplit a, b;
  int64_t a_stride, b_stride;       // from a group's matrix to the next one's, in stored matrices
  GroupTiles list;                  // tiles of the cut rows or columns, or chunks of K
  int64_t tiles_m, tiles_n, tiles;  // `tiles` is the most that there are
  bool allows_x2_store;             // C takes pairs of a row at once
};

// --- Tiles ---------------------------------------------------------------------------------------

// A tile of an operand in its presplit.
struct OperandTile {
  const uint8_t* steps;
  const float* inverse_scales;  // of the tile's rows in the first chunk
  int64_t scales_pitch;         // from a chunk to the next
  int rows;                     // padded to 8

  __device__ OperandTile(const Presplit& presplit, int64_t matrix, int64_t row, int count,
                         int64_t first_step, int64_t first_chunk)
      : scales_pitch(presplit.padded_rows()), rows((count + 7) / 8 * 8) {
    steps = presplit.hi_lo + matrix * presplit.matrix_bytes() + row * presplit.padded_k() * 4 +
            first_step * step_bytes();
    inverse_scales = presplit.inverse_scales + matrix * presplit.matrix_groups() +
                     first_chunk * scales_pitch + row;
  }
  __device__ int step_bytes() const { return 2 * Presplit::plane_bytes(rows); }
};

// A tile of C. It belongs to one group, and is the product of a tile of A and a tile of B.
template <GroupedSide kSide>
struct WorkTile {
  bool exists = true;
  int group;  // or GroupTile::kNoGroup: the tile is 0
  int64_t row, col;
  int rows, cols;
  int64_t first_k = 0, k;  // of the group
  int first_chunk = 0, chunks;
  int64_t first_step = 0, a_row, b_row;  // in the presplits

  __device__ WorkTile(const GroupedParams& params, int64_t index) {
    const Problem& p = params.p;
    const GroupTiles& list = params.list;
    constexpr bool kCutRows = kSide == GroupedSide::kM;
    if constexpr (kSide == GroupedSide::kK) {
      group = static_cast<int>(index / params.tiles_n / params.tiles_m);
      row = a_row = index / params.tiles_n % params.tiles_m * Tile::kM;
      col = b_row = index % params.tiles_n * Tile::kN;
      const GroupRange range = list.ranges[group];
      first_k = range.begin, k = range.end - range.begin;
      first_chunk = list.first_tile[group];
      chunks = list.first_tile[group + 1] - first_chunk;
      first_step = list.tiles[first_chunk].padded;
    } else {
      const int64_t across = kCutRows ? params.tiles_n : params.tiles_m;
      const GroupTile tile = list.tiles[index / across];
      const int64_t next = index + gridDim.x;
      if (next < params.tiles) ptx::prefetch_l1(&list.tiles[next / across]);
      const int64_t other = index % across * Tile::kM;
      const int64_t cut = int64_t{tile.padded} * CutOperands::kPad;
      group = tile.group, exists = tile.count > 0;
      rows = cols = tile.count;
      row = kCutRows ? tile.first : other, col = kCutRows ? other : tile.first;
      a_row = kCutRows ? cut : other, b_row = kCutRows ? other : cut;
      k = p.k, chunks = static_cast<int>(ceil_div(k, kChunk));
    }
    if (kSide != GroupedSide::kM) rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    if (kSide != GroupedSide::kN) cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  }
  // Returns whether there is something to multiply, and not too little of K.
  __device__ bool has_product() const {
    return group != GroupTile::kNoGroup && (kSide != GroupedSide::kK || k >= fp16x3::kMinK);
  }
  __device__ OperandTile a(const GroupedParams& params) const {
    const int64_t matrix = kSide == GroupedSide::kN ? group * params.a_stride : 0;
    return {params.a, matrix, a_row, rows, first_step, first_chunk};
  }
  __device__ OperandTile b(const GroupedParams& params) const {
    const int64_t matrix = kSide == GroupedSide::kM ? group * params.b_stride : 0;
    return {params.b, matrix, b_row, cols, first_step, first_chunk};
  }
  // The steps of a chunk.
  __device__ int steps(int chunk) const {
    return static_cast<int>(ceil_div(min(k - int64_t{chunk} * kChunk, int64_t{kChunk}), Tile::kK));
  }
};

// --- Producer and consumers ----------------------------------------------------------------------

// Loads the steps of all of the block's tiles; one thread.
template <GroupedSide kSide>
__device__ void produce(const GroupedParams& params, Smem& smem) {
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const WorkTile<kSide> tile(params, index);
    if (!tile.exists) break;
    if (!tile.has_product()) continue;
    const OperandTile a = tile.a(params), b = tile.b(params);
    const uint8_t *from_a = a.steps, *from_b = b.steps;
    for (int64_t left = ceil_div(tile.k, Tile::kK); left > 0; --left, pipe.advance()) {
      Smem::Stage& stage = smem.stage[pipe.stage];
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      ptx::arrive_expect_tx(full, a.step_bytes() + b.step_bytes());
      ptx::bulk_load(stage.a, from_a, a.step_bytes(), full);
      ptx::bulk_load(stage.b, from_b, b.step_bytes(), full);
      from_a += a.step_bytes(), from_b += b.step_bytes();
    }
  }
}

// A thread's place in a tile: element i of its accumulators is in row `row + i / 2 % 2 * 8` and
// column `col + i / 4 * 8 + i % 2`.
struct InTile {
  int row, col;
  __device__ explicit InTile(const Consumer& me)
      : row(me.warpgroup * 64 + me.thread / 32 * 16 + me.thread % 32 / 4), col(me.thread % 4 * 2) {}
  __device__ int row_of(int i) const { return row + i / 2 % 2 * 8; }
  __device__ int col_of(int i) const { return col + i / 4 * 8 + i % 2; }
};

// Recomputes an element in the chunked order.
template <GroupedSide kSide>
__device__ float recompute(const Problem& p, const WorkTile<kSide>& tile, int64_t row,
                           int64_t col) {
  if constexpr (kSide == GroupedSide::kK) {
    RowAndColumn from(p, 0, row, col);
    from.advance(tile.first_k);
    return sum_by_thread_noinline(from, tile.k);
  } else {
    return recompute_by_thread(p, tile.group, row, col, nullptr);
  }
}

// Recomputes a thread's sums that are NaN. They go through shared memory, so that the loop
// need not be unrolled.
template <GroupedSide kSide>
__device__ void recompute_flagged(const Problem& p, const WorkTile<kSide>& tile, const InTile& at,
                                  float4 (&staging)[Tile::kElements / 4][Tile::kWarpgroup],
                                  int thread, float (&sum)[Tile::kElements]) {
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    staging[i / 4][thread] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  }
  NO_UNROLL
  for (int i = 0; i < Tile::kElements; ++i) {
    float& x = reinterpret_cast<float*>(&staging[i / 4][thread])[i % 4];
    if (!isnan(x) || at.row_of(i) >= tile.rows || at.col_of(i) >= tile.cols) continue;
    x = recompute(p, tile, tile.row + at.row_of(i), tile.col + at.col_of(i));
  }
  UNROLL
  for (int i = 0; i < Tile::kElements; i += 4) {
    const float4 x4 = staging[i / 4][thread];
    sum[i] = x4.x, sum[i + 1] = x4.y, sum[i + 2] = x4.z, sum[i + 3] = x4.w;
  }
}

// Adds the bias, if there is one, and stores a thread's sums.
template <GroupedSide kSide>
__device__ void store(const GroupedParams& params, const WorkTile<kSide>& tile, const InTile& at,
                      float (&sum)[Tile::kElements]) {
  const Problem& p = params.p;
  const int cols_left = tile.cols - at.col;
  if (p.epilogue.bias != nullptr && tile.group != GroupTile::kNoGroup) {
    const auto* bias = static_cast<const float*>(p.epilogue.bias) +
                       tile.group * p.epilogue.bias_batch_stride +
                       (tile.col + at.col) * p.epilogue.bias_stride;
    UNROLL
    for (int i = 0; i < Tile::kElements; i += 4) {
      UNROLL
      for (int j = 0; j < 2; ++j) {
        if (i * 2 + j >= cols_left) continue;
        const float of_col = __ldg(bias + (i * 2 + j) * p.epilogue.bias_stride);
        sum[i + j] += of_col, sum[i + j + 2] += of_col;
      }
    }
  }
  const int64_t matrix = kSide == GroupedSide::kK ? tile.group : 0;
  float* c = static_cast<float*>(p.c.data) + matrix * p.c.batch_stride[0] +
             (tile.row + at.row) * p.c.row_stride + (tile.col + at.col) * p.c.col_stride;
  UNROLL
  for (int down = 0; down < 2; ++down, c += 8 * p.c.row_stride) {
    if (at.row + down * 8 >= tile.rows) break;
    float* to = c;
    UNROLL
    for (int i = down * 2; i < Tile::kElements; i += 4, to += 8 * p.c.col_stride) {
      const int col = i / 4 * 8;
      if (params.allows_x2_store && col + 1 < cols_left) {
        *reinterpret_cast<float2*>(to) = {sum[i], sum[i + 1]};
      } else {
        if (col < cols_left) to[0] = sum[i];
        if (col + 1 < cols_left) to[p.c.col_stride] = sum[i + 1];
      }
    }
  }
}

template <GroupedSide kSide>
__device__ void consume(const GroupedParams& params, Smem& smem) {
  const Consumer me;
  const InTile at(me);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  Accumulators& totals = smem.totals[me.warpgroup];
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const WorkTile<kSide> tile(params, index);
    if (!tile.exists) break;
    float low[Tile::kElements], total[Tile::kElements];
    if (tile.has_product()) {
      const OperandTile a = tile.a(params), b = tile.b(params);
      const LoPlanes lo_planes{Presplit::plane_bytes(a.rows), Presplit::plane_bytes(b.rows)};
      const int promotion = fp16x3::promotion(tile.k);
      for (int chunk = 0; chunk < tile.chunks; ++chunk) {
        const int steps = tile.steps(chunk);
        const int last =
            promotion == 16
                ? multiply_chunk<16, true, true>(smem, pipe, steps, lo_planes, me, low, total)
                : multiply_chunk<32, true, true>(smem, pipe, steps, lo_planes, me, low, total);
        float row_scales[2];
        float2 col_scales[Tile::kElements / 4];
        UNROLL
        for (int i = 0; i < 2; ++i) {
          const int row = at.row + i * 8;
          row_scales[i] = row < a.rows ? a.inverse_scales[chunk * a.scales_pitch + row] : 1.0f;
        }
        UNROLL
        for (int j = 0; j < Tile::kElements / 4; ++j) {
          const int col = at.col + j * 8;
          const float* of_cols = b.inverse_scales + chunk * b.scales_pitch + col;
          col_scales[j] = col < b.rows ? *reinterpret_cast<const float2*>(of_cols) : float2{1, 1};
        }
        wgmma::wait_group<0>();
        wgmma::fence_operand(low);
        me.release(smem, last);
        descale_chunk(total, low, row_scales, col_scales, promotion);
        add_to_totals(totals, me.thread, chunk > 0, chunk < tile.chunks - 1, total);
      }
      bool flagged = false;
      UNROLL
      for (const float each : total) flagged |= isnan(each);
      if (flagged) recompute_flagged(params.p, tile, at, totals, me.thread, total);
    } else if (tile.group == GroupTile::kNoGroup) {
      UNROLL
      for (float& each : total) each = 0;
    } else {
      continue;
    }
    store(params, tile, at, total);
  }
}

template <GroupedSide kSide>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    grouped_fp16x3_kernel(const __grid_constant__ GroupedParams params) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1, smem.empty,
                              Tile::kConsumers * Tile::kWarpgroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  if (threadIdx.x >= Tile::kWarpgroup) {
    ptx::setmaxnreg_inc<240>();
    consume<kSide>(params, smem);
  } else {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x < 32 && ptx::elect_one()) produce<kSide>(params, smem);
  }
}

// --- The host's side -----------------------------------------------------------------------------

namespace {

struct Buffers {
  Presplit a, b;
  GroupTiles list;

  Buffers(const Problem& p, Workspace& workspace)
      : a{.rows = p.m, .k = p.k}, b{.rows = p.n, .k = p.k} {
    const bool cuts_k = p.groups.side == GroupedSide::kK;
    list = GroupTiles::take(p, cuts_k ? kChunk : Tile::kM, workspace);
    const auto take = [&](Presplit& presplit, const Matrix& matrix, bool is_cut) {
      if (is_cut) {
        (cuts_k ? presplit.k : presplit.rows) =
            padded_length(p, cuts_k ? Presplit::kK : CutOperands::kPad);
      }
      const int64_t matrices = stored_matrices(p.batch, matrix);
      const int64_t chunks = is_cut && cuts_k ? list.most : ceil_div(presplit.k, kChunk);
      presplit.hi_lo = workspace.take<uint8_t>(presplit.matrix_bytes() * matrices).data();
      presplit.inverse_scales =
          workspace.take<float>(presplit.padded_rows() * chunks * matrices).data();
    };
    take(a, p.a, p.groups.side != GroupedSide::kN);
    take(b, p.b, p.groups.side != GroupedSide::kM);
  }
};

// A cut operand is one matrix; the other one has a matrix for each group.
OperandToSplit operand(const Problem& p, const Matrix& matrix, const Presplit& presplit,
                       int64_t& stride) {
  Matrix index;
  const StoredBatch stored = stored_batch(p.batch, matrix, 1, index);
  stride = index.batch_stride[0];
  return {.matrix = stored.from, .batch = stored.batch, .presplit = presplit};
}

template <GroupedSide kSide>
void launch(const GroupedParams& params, const Context& context) {
  const auto kernel = grouped_fp16x3_kernel<kSide>;
  allow_shared_memory(kernel, sizeof(Smem));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(params.tiles, context.sms));
  launch_pdl(kernel, blocks, Tile::kThreads, sizeof(Smem), context, params);
}

}  // namespace
}  // namespace grouped_fp16x3

bool launch_grouped_fp16x3(const Problem& p, const Context& context) {
  using namespace grouped_fp16x3;
  using enum GroupedSide;
  void* memory = context.allocate(workspace_bytes([&](Workspace& each) { Buffers(p, each); }));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const Buffers buffers(p, workspace);
  const GroupedSide side = p.groups.side;
  const bool cuts_k = side == kK;
  launch_group_tiles(p, cuts_k ? kChunk : Tile::kM, cuts_k ? Presplit::kK : CutOperands::kPad,
                     buffers.list, context);
  GroupedParams params{};
  params.p = p, params.a = buffers.a, params.b = buffers.b, params.list = buffers.list;
  const OperandToSplit operands[] = {operand(p, p.a, buffers.a, params.a_stride),
                                     operand(p, transposed(p.b), buffers.b, params.b_stride)};
  launch_split(operands, {}, context,
               {.tiles = buffers.list, .of = {side != kN, side != kM}, .side = side});
  params.tiles_m = ceil_div(p.m, Tile::kM), params.tiles_n = ceil_div(p.n, Tile::kN);
  params.tiles = side == kM   ? buffers.list.most * params.tiles_n
                 : side == kN ? buffers.list.most * params.tiles_m
                              : p.batch.count * params.tiles_m * params.tiles_n;
  // The columns of a group may begin anywhere.
  params.allows_x2_store =
      side != kN && is_vector_aligned<float2>(p.batch, p.c, p.c.col_stride, p.c.row_stride);
  switch (side) {
    case kM: launch<kM>(params, context); break;
    case kN: launch<kN>(params, context); break;
    default: launch<kK>(params, context);
  }
  return true;
}

}  // namespace tiled::cuda
