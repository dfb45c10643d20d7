// simt_small: a team of a few threads computes a tile by itself.
//
// Idea:  With many small products, occupancy hides latency. A team of 16 to 64 threads, each with
//        up to 8 x 8 elements of C, computes one tile from beginning to end: it loads a stage of A
//        and B by cp.async, as many stages ahead as it has room for, synchronizes, multiplies, and
//        synchronizes again. An SM holds so many teams that some multiply while others wait. A tile
//        begins and ends in few instructions: without mbarriers, without divisions if a matrix
//        is one tile, and with 128-bit stores or stores of adjacent elements by adjacent threads.
//        A complex B is read in place: a stage has its numbers, and each stands for two
//        columns and two k (core/complex.h).
// Limit: DRAM bandwidth, for products of 32 x 32 x 32 and less. Larger ones read 16 numbers
//        from shared memory for 64 FMAs, and issue cp.async beside them.
// Next:  teams that share the tiles of A and B if a matrix has several tiles.
//
//   team   cp.async a stage, commit
//          wait for the oldest stage, sync_team(): the copies of all threads are visible
//          multiply it
//          sync_team(): no thread reads it any more, so the next copies overwrite it

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/cp_async_loader.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/plan.h"
#include "kernels/simt/register_tile.cuh"
#include "kernels/simt/store.cuh"

namespace tiled::cuda {
namespace {

inline constexpr const auto& kTiles = h200::kSimtSmallTiles;

template <int kIndex, bool kComplex>
struct Tile : RegisterTile<kTiles[kIndex].m, kTiles[kIndex].n, kTiles[kIndex].thread_m,
                           kTiles[kIndex].thread_n, kTiles[kIndex].lanes_m, kComplex> {
  static constexpr int kK = kTiles[kIndex].k;            // of a stage
  static constexpr int kStages = kTiles[kIndex].stages;  // at most
  static constexpr int kTeamThreads = Tile::kConsumers;  // all of them load, too
  static constexpr int kTeams = kTiles[kIndex].teams;    // of a block
  static constexpr int kThreads = kTeamThreads * kTeams;
  static constexpr int kBlocksPerSm = kTiles[kIndex].blocks / kTeams;
  // Bytes between the shared memory of teams: two teams of one warp use different banks.
  static constexpr int kTeamPad = kTeamThreads < 32 ? 64 : 0;

  static_assert(kTeamThreads <= 32 || kTeams == 1, "a team is a whole block, or within a warp");
  static_assert(kThreads % 32 == 0 && kTiles[kIndex].blocks % kTeams == 0);
};

// The sums of a tile by rows, in shared memory. A quad more shifts each row to other banks.
template <class Tile>
using Staging = Quad[Tile::kM][Tile::kN / 4 + 1];

struct Params {
  Problem p;
  bool a_vectorized, b_vectorized, c_vectorized;
  bool stores_plain;        // C is the sums unchanged, by rows
  bool stores_plain_quads;  // and in 128-bit vectors, none of them partial
  int64_t tiles;
  int team_bytes;       // of shared memory
  SignsOfB signs_of_b;  // of a complex B
};

// tile_index() without divisions if a matrix is one tile.
template <class Tile>
__device__ TileIndex fast_tile_index(const Problem& p, int64_t index) {
  if (p.m <= Tile::kM && p.n <= Tile::kN) return {.batch = index, .row = 0, .col = 0};
  return tile_index<Tile>(p, index);
}

// Synchronizes the team and makes each thread's writes and completed copies visible to the others.
template <class Tile>
__device__ void sync_team() {
  if constexpr (Tile::kTeamThreads > 32) {
    __syncthreads();
  } else {
    __syncwarp();  // two teams of a warp synchronize together: they have equally many stages
  }
}

// Adds the products of the first `length` of a stage's kK.
template <class Tile>
__device__ void multiply_stage(const PaddedStage<Tile>& stage, const QuadCoord<Tile>& first,
                               int length, const SignsOfB& signs_of_b,
                               float (&acc)[Tile::kThreadM][Tile::kThreadN]) {
  Fragments<Tile> fragments(signs_of_b);
  auto load = [&](int place, int kk) {
    fragments.load(place, stage.a_at(kk, first.row), stage.b_at(kk, first.col));
  };
  if (length >= Tile::kK) {
    load(0, 0);
    UNROLL
    for (int kk = 0; kk < Tile::kK; ++kk) {
      if (kk + 1 < Tile::kK) load(kk + 1, kk + 1);
      fragments.multiply(kk, acc);
    }
  } else {
    NO_UNROLL
    for (int kk = 0; kk < length; kk += Tile::kParts) {
      UNROLL
      for (int i = 0; i < Tile::kParts; ++i) {
        load(i, kk + i);
        fragments.multiply(i, acc);
      }
    }
  }
}

// Stores the team's sums unchanged and element by element: adjacent threads store adjacent columns,
// and threads beyond a row's columns store the next rows.
template <class Tile>
__device__ void store_elements(const Params& params, int64_t c_offset, const TileIndex& tile,
                               int thread, const Staging<Tile>& staging) {
  const Problem& p = params.p;
  constexpr int kMostLanes = Tile::kN < Tile::kTeamThreads ? Tile::kN : Tile::kTeamThreads;
  const int rows = static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM}));
  const int cols = static_cast<int>(min(p.n - tile.col, int64_t{Tile::kN}));
  const int lanes_log2 = 32 - __clz(min(cols, kMostLanes) - 1);  // of a row
  const int lanes = 1 << lanes_log2, first = thread >> lanes_log2;
  const int rows_at_once = Tile::kTeamThreads >> lanes_log2;
  const auto* sums = reinterpret_cast<const float*>(staging[0]);
  constexpr int kPitch = sizeof(staging[0]) / sizeof(float);
  float* c = static_cast<float*>(p.c.data) + c_offset + tile.row * p.c.row_stride +
             tile.col * p.c.col_stride;
  NO_UNROLL
  for (int col = thread & (lanes - 1); col < cols; col += lanes) {
    float* to = c + first * p.c.row_stride + col * p.c.col_stride;
    const float* from = sums + first * kPitch + (col ^ 1);  // pairs are exchanged
    _Pragma("unroll 4") for (int row = first; row < rows; row += rows_at_once) {
      __stcg(to, kAddIdentity<float> + *from);
      to += rows_at_once * p.c.row_stride, from += rows_at_once * kPitch;
    }
  }
}

// Applies the epilogue to the team's sums and stores them row by row.
template <class Tile>
__device__ void store_staged(const Params& params, int64_t c_offset, const TileIndex& tile,
                             int thread, const Staging<Tile>& staging) {
  constexpr int kLanesN = Tile::kN / 4, kRowsAtOnce = Tile::kTeamThreads / kLanesN;
  const Problem& p = params.p;
  const int first = thread / kLanesN, quad = thread % kLanesN;
  auto total = [&](int row) {
    Quad total = Quad::identity();
    total.add(staging[row][quad]);
    return total;
  };
  if (!params.stores_plain_quads) {
    if (params.stores_plain) return store_elements<Tile>(params, c_offset, tile, thread, staging);
    const BiasX4 bias(p, tile.col + quad * 4);
    NO_UNROLL
    for (int row = first; row < Tile::kM; row += kRowsAtOnce) {
      store_quad(p, params.c_vectorized, c_offset, tile.row + row, tile.col + quad * 4, total(row),
                 bias);
    }
    return;
  }
  const int64_t col = tile.col + quad * 4;
  const int rows = col < p.n ? static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM})) : 0;
  float* c = static_cast<float*>(p.c.data) + c_offset + (tile.row + first) * p.c.row_stride + col;
  UNROLL
  for (int row = first; row < first + Tile::kM;
       row += kRowsAtOnce, c += kRowsAtOnce * p.c.row_stride) {
    if (row >= rows) break;
    const float4 sum = total(row).swapped;
    __stcg(reinterpret_cast<float4*>(c), make_float4(sum.y, sum.x, sum.w, sum.z));
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    simt_small_kernel(const __grid_constant__ Params params, int64_t first_block) {
  using Stage = PaddedStage<Tile>;
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  const Problem& p = params.p;
  const int team = threadIdx.x / Tile::kTeamThreads, thread = threadIdx.x % Tile::kTeamThreads;
  uint8_t* smem = dynamic_smem + team * params.team_bytes;
  auto* stages = reinterpret_cast<Stage*>(smem);
  // A team beyond the last tile computes that tile, too, so that warps stay whole, and does not
  // store it.
  const int64_t own = (first_block + blockIdx.x) * Tile::kTeams + team;
  const int64_t index = min(own, params.tiles - 1);
  const TileIndex tile = fast_tile_index<Tile>(p, index);
  BatchOffsets offsets;
  offsets.add_batch(p, tile.batch);

  CpAsyncLoader<float, Tile::kM, Stage::kPitchA, Tile::kK, Tile::kTeamThreads> load_a(
      static_cast<const float*>(p.a.data) + offsets.a + tile.row * p.a.row_stride, p.a.row_stride,
      p.a.col_stride, params.a_vectorized, p.m - tile.row, thread);
  LoaderOfB<Tile, Tile::kTeamThreads> load_b(
      p.b, static_cast<const float*>(p.b.data) + offsets.b + tile.col * p.b.col_stride,
      params.b_vectorized, p.n - tile.col, thread);
  const QuadCoord<Tile> first(thread, 0);
  float acc[Tile::kThreadM][Tile::kThreadN] = {};

  const bool whole = p.m - tile.row >= Tile::kM && p.n - tile.col >= Tile::kN;

  // Each iteration loads a stage and multiplies the one that was loaded kAhead iterations before.
  constexpr unsigned kAhead = Tile::kStages - 1;
  const auto k = static_cast<int>(p.k);
  const unsigned count = static_cast<unsigned>(k + Tile::kK - 1) / Tile::kK;
  auto k_left = [&](unsigned stage) { return k - static_cast<int>(stage) * Tile::kK; };
  NO_UNROLL
  for (unsigned next = 0; next < count + kAhead; ++next) {
    if (next < count) {
      Stage& stage = stages[next % Tile::kStages];
      if (whole && k_left(next) >= Tile::kK) {
        load_a.load_whole(stage.a);
        load_b.load_whole(stage);
      } else {
        load_a.load(stage.a, k_left(next));
        load_b.load(stage, k_left(next));
      }
    }
    __pipeline_commit();
    if (next < kAhead) continue;
    __pipeline_wait_prior(kAhead);
    sync_team<Tile>();
    multiply_stage<Tile>(stages[(next - kAhead) % Tile::kStages], first, k_left(next - kAhead),
                         params.signs_of_b, acc);
    sync_team<Tile>();
  }

  auto& staging = reinterpret_cast<Staging<Tile>&>(*smem);  // overwrites the stages
  UNROLL
  for (int i = 0; i < Tile::kThreadM; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kThreadN / 4; ++j) {
      const int down = i / 4 * Tile::kLanesM * 4 + i % 4, right = j * Tile::kLanesN;
      staging[first.row + down][first.col / 4 + right] = Quad::of(&acc[i][j * 4]);
    }
  }
  sync_team<Tile>();
  if (own < params.tiles) store_staged<Tile>(params, offsets.c, tile, thread, staging);
}

// A complex B is stored as in_place_b() describes it.
template <class Tile>
void run(const Problem& p, const SignsOfB& signs_of_b, const Context& context) {
  using Stage = PaddedStage<Tile>;
  const int64_t stages = std::min<int64_t>(ceil_div(p.k, Tile::kK), Tile::kStages);
  const auto stages_bytes = static_cast<size_t>(stages) * sizeof(Stage);
  const size_t team_bytes = std::max(stages_bytes, sizeof(Staging<Tile>)) + Tile::kTeamPad;
  static_assert(sizeof(Staging<Tile>) <= Tile::kStages * sizeof(Stage));
  static_assert(Tile::kTeams * (Tile::kStages * sizeof(Stage) + Tile::kTeamPad) <= 48 << 10,
                "a block has at most 48 KiB of shared memory without allow_shared_memory()");
  const bool c_vectorized = is_c_vectorized(p);
  const Params params{
      .p = p,
      .a_vectorized = is_a_vectorized(p),
      .b_vectorized = Tile::kComplex ? is_b_vectorized(with_parts_of_b(p)) : is_b_vectorized(p),
      .c_vectorized = c_vectorized,
      .stores_plain = p.epilogue.is_identity() && p.c.col_stride <= p.c.row_stride,
      .stores_plain_quads = c_vectorized && p.n % 4 == 0 && p.epilogue.is_identity(),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .team_bytes = static_cast<int>(team_bytes),
      .signs_of_b = signs_of_b,
  };
  const auto stream = static_cast<cudaStream_t>(context.stream);
  for_grids(ceil_div(params.tiles, Tile::kTeams), [&](int64_t first, unsigned blocks) {
    simt_small_kernel<Tile>
        <<<blocks, Tile::kThreads, Tile::kTeams * team_bytes, stream>>>(params, first);
  });
}

template <bool kComplex>
bool run_tile(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b,
              const Context& context) {
  return with_tile<std::size(kTiles)>(plan.tile, [&]<int kIndex>() {
    run<Tile<kIndex, kComplex>>(p, signs_of_b, context);
    return true;
  });
}

}  // namespace

bool launch_simt_small(const Problem& p, const Plan& plan, const Context& context) {
  return run_tile<false>(p, plan, {}, context);
}

bool launch_simt_small_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                               const Context& context) {
  return run_tile<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
