// 10 simt_small: a few threads have a tile to themselves.
//
// Idea:  where there are many small products, nobody has to be clever: latencies are hidden by
//        others. A team of 16 to 64 threads, each with up to 8 x 8 elements of C, computes one
//        tile, alone from beginning to end: it copies a stage of K of its A and B to shared memory
//        by asynchronous copies, as many stages ahead as it has room for, meets, multiplies, and
//        meets again. A multiprocessor holds so many teams that some multiply while others wait. To
//        begin and to end takes few instructions: no barriers to initialise, no divisions where a
//        matrix is one tile, and sums are stored by fours.
// Limit: memory, for products of 32 and less. For larger ones two fragments of 8 for 64
//        multiply-adds, and the instructions that copy.
// Next:  tiles that teams share, where matrices have several.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/load.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/store.cuh"

namespace tiled::cuda {
namespace {

template <int kIndex, int kThreadM_, int kThreadN_, int kLanesM_, int kK_, int kStages_,
          int kTeams_>
struct Tile {
  static constexpr int kM = h200::kSimtSmallTiles[kIndex].m, kN = h200::kSimtSmallTiles[kIndex].n,
                       kK = kK_;
  static constexpr int kStages = kStages_;                          // at most
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;  // elements of C a thread
  static constexpr int kTeam = kM / kThreadM * (kN / kThreadN);     // threads
  static constexpr int kTeams = kTeams_;                            // a block
  static constexpr int kThreads = kTeam * kTeams;
  static constexpr int kBlocks =
      h200::kSimtSmallTiles[kIndex].blocks / kTeams;  // on a multiprocessor
  // Threads of a warp, or of the half of one that is a team.
  static constexpr int kLanesM = kLanesM_, kLanesN = std::min(kTeam, 32) / kLanesM;
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  // Columns of neighbours along K lie in different banks.
  static constexpr int kPitchA = kM + 4, kPitchB = kN + 4;
  // Between teams, in bytes: two of one warp read different banks.
  static constexpr int kApart = kTeam < 32 ? 64 : 0;

  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kThreadM % 4 == 0 && kThreadN % 4 == 0);
  static_assert(kTeam <= 32 || kTeams == 1, "a team is a block, or in a warp");
  static_assert(kThreads % 32 == 0 && h200::kSimtSmallTiles[kIndex].blocks % kTeams == 0);
};

template <class Tile>
struct Stage {
  alignas(16) float a[Tile::kK][Tile::kPitchA];
  alignas(16) float b[Tile::kK][Tile::kPitchB];
};

template <class Tile>
using Sums = Quad[Tile::kM][Tile::kN / 4 + 1];  // of a tile; rows begin at different banks

struct Work {
  Problem p;
  bool a_by_fours, b_by_fours;  // copied, along C's sides
  bool by_fours;                // stores_fours()
  bool stores_sums;             // as they are, and by fours alone
  int64_t tiles;
  int team_bytes;  // of shared memory
};

// tile_index() of launch.h, without divisions where a matrix is one tile.
template <class Tile>
__device__ TileIndex locate(const Problem& p, int64_t index) {
  if (p.m <= Tile::kM && p.n <= Tile::kN) return {.batch = index, .row = 0, .col = 0};
  return tile_index<Tile>(p, index);
}

// batch_offset() of problem.h for all three matrices, without a division where the batch has one
// dimension.
struct Offsets {
  int64_t a = 0, b = 0, c = 0;
  __device__ Offsets(const Problem& p, int64_t index) {
    auto add = [&](int d, int64_t at) {
      a += at * p.a.batch_stride[d];
      b += at * p.b.batch_stride[d];
      c += at * p.c.batch_stride[d];
    };
    NO_UNROLL
    for (int d = p.batch.rank - 1; d > 0; --d) {
      add(d, index % p.batch.size[d]);
      index /= p.batch.size[d];
    }
    add(0, index);
  }
};

// What one thread of the team has written or copied, the others see.
template <class Tile>
__device__ void meet() {
  if constexpr (Tile::kTeam > 32) {
    __syncthreads();
  } else {
    __syncwarp();  // both teams of the warp: they have as many stages
  }
}

// Adds the products of so many steps of K.
template <class Tile>
__device__ void multiply(const Stage<Tile>& stage, const Place<Tile>& place, int steps,
                         float (&acc)[Tile::kThreadM][Tile::kThreadN]) {
  Fragments<Tile> fragments;
  auto read = [&](int buffer, int k) {
    fragments.read(buffer, &stage.a[k][place.row], &stage.b[k][place.col]);
  };
  if (steps >= Tile::kK) {
    read(0, 0);
    UNROLL
    for (int step = 0; step < Tile::kK; ++step) {
      if (step + 1 < Tile::kK) read((step + 1) % 2, step + 1);
      fragments.multiply(step % 2, acc);
    }
  } else {
    NO_UNROLL
    for (int step = 0; step < steps; ++step) {
      read(0, step);
      fragments.multiply(0, acc);
    }
  }
}

// Ends and stores the team's sums, row by row.
template <class Tile>
__device__ void store(const Work& work, int64_t c_offset, const TileIndex& tile, int thread,
                      const Sums<Tile>& sums) {
  constexpr int kLanes = Tile::kN / 4, kRows = Tile::kTeam / kLanes;  // that are stored at once
  const Problem& p = work.p;
  const int first = thread / kLanes, quad = thread % kLanes;
  auto total = [&](int row) {
    Quad total = Quad::empty();
    total.add(sums[row][quad]);
    return total;
  };
  if (!work.stores_sums) {
    const Bias bias(p, tile.col + quad * 4);
    NO_UNROLL
    for (int row = first; row < Tile::kM; row += kRows) {
      store_quad(p, work.by_fours, c_offset, tile.row + row, tile.col + quad * 4, total(row), bias);
    }
    return;
  }
  const int64_t col = tile.col + quad * 4;
  const int rows = col < p.n ? static_cast<int>(min(p.m - tile.row, int64_t{Tile::kM})) : 0;
  float* c = static_cast<float*>(p.c.data) + c_offset + (tile.row + first) * p.c.row_stride + col;
  UNROLL
  for (int row = first; row < first + Tile::kM; row += kRows, c += kRows * p.c.row_stride) {
    if (row >= rows) break;
    const float4 sum = total(row).swapped;
    __stcg(reinterpret_cast<float4*>(c), make_float4(sum.y, sum.x, sum.w, sum.z));
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    simt_small_kernel(const __grid_constant__ Work work, int64_t first_block) {
  extern __shared__ __align__(16) uint8_t dynamic_smem[];
  const Problem& p = work.p;
  const int team = threadIdx.x / Tile::kTeam, thread = threadIdx.x % Tile::kTeam;
  uint8_t* smem = dynamic_smem + team * work.team_bytes;
  auto* stages = reinterpret_cast<Stage<Tile>*>(smem);
  // A team without a tile takes the last one's, too, and does not store it.
  const int64_t own = (first_block + blockIdx.x) * Tile::kTeams + team;
  const int64_t index = min(own, work.tiles - 1);
  const TileIndex tile = locate<Tile>(p, index);
  const Offsets offsets(p, tile.batch);

  Loader<Tile::kM, Tile::kPitchA, Tile::kK, Tile::kTeam> load_a(
      static_cast<const float*>(p.a.data) + offsets.a + tile.row * p.a.row_stride, p.a.row_stride,
      p.a.col_stride, work.a_by_fours, p.m - tile.row, thread);
  Loader<Tile::kN, Tile::kPitchB, Tile::kK, Tile::kTeam> load_b(
      static_cast<const float*>(p.b.data) + offsets.b + tile.col * p.b.col_stride, p.b.col_stride,
      p.b.row_stride, work.b_by_fours, p.n - tile.col, thread);
  const Place<Tile> place(thread, 0);
  float acc[Tile::kThreadM][Tile::kThreadN] = {};

  const bool whole = p.m - tile.row >= Tile::kM && p.n - tile.col >= Tile::kN;

  // A stage is copied, then the one that was kAhead before it is multiplied.
  constexpr unsigned kAhead = Tile::kStages - 1;
  const auto k = static_cast<int>(p.k);
  const unsigned count = static_cast<unsigned>(k + Tile::kK - 1) / Tile::kK;
  auto left = [&](unsigned stage) { return k - static_cast<int>(stage) * Tile::kK; };
  NO_UNROLL
  for (unsigned next = 0; next < count + kAhead; ++next) {
    if (next < count) {
      Stage<Tile>& stage = stages[next % Tile::kStages];
      if (whole && left(next) >= Tile::kK) {
        load_a.load_whole(stage.a);
        load_b.load_whole(stage.b);
      } else {
        load_a.load(stage.a, left(next));
        load_b.load(stage.b, left(next));
      }
    }
    __pipeline_commit();
    if (next < kAhead) continue;
    __pipeline_wait_prior(kAhead);
    meet<Tile>();
    multiply<Tile>(stages[(next - kAhead) % Tile::kStages], place, left(next - kAhead), acc);
    meet<Tile>();
  }

  auto& sums = reinterpret_cast<Sums<Tile>&>(*smem);  // where stages were
  UNROLL
  for (int i = 0; i < Tile::kThreadM; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kThreadN / 4; ++j) {
      const int down = i / 4 * Tile::kLanesM * 4 + i % 4, right = j * Tile::kLanesN;
      sums[place.row + down][place.col / 4 + right] = Quad::of(&acc[i][j * 4]);
    }
  }
  meet<Tile>();
  if (own < work.tiles) store<Tile>(work, offsets.c, tile, thread, sums);
}

template <class Tile>
void run(const Problem& p, const Context& context) {
  const int64_t stages = std::min<int64_t>(ceil_div(p.k, Tile::kK), Tile::kStages);
  const auto stages_bytes = static_cast<size_t>(stages) * sizeof(Stage<Tile>);
  const size_t team_bytes = std::max(stages_bytes, sizeof(Sums<Tile>)) + Tile::kApart;
  static_assert(sizeof(Sums<Tile>) <= Tile::kStages * sizeof(Stage<Tile>));
  static_assert(Tile::kTeams * (Tile::kStages * sizeof(Stage<Tile>) + Tile::kApart) <= 48 << 10,
                "what a block may have unasked");
  const bool by_fours = stores_fours(p);
  const Work work{
      .p = p,
      .a_by_fours = is_a_vectorized(p),
      .b_by_fours = is_b_vectorized(p),
      .by_fours = by_fours,
      .stores_sums = by_fours && p.n % 4 == 0 && p.epilogue.is_identity(),
      .tiles = count_tiles(p, Tile::kM, Tile::kN),
      .team_bytes = static_cast<int>(team_bytes),
  };
  const auto stream = static_cast<cudaStream_t>(context.stream);
  for_grids(ceil_div(work.tiles, Tile::kTeams), [&](int64_t first, unsigned blocks) {
    simt_small_kernel<Tile>
        <<<blocks, Tile::kThreads, Tile::kTeams * team_bytes, stream>>>(work, first);
  });
}

}  // namespace

bool launch_simt_small(const Problem& p, const Plan& plan, const Context& context) {
  using namespace h200;
  return with_tile<std::size(kSimtSmallTiles)>(plan.tile, [&]<int kIndex>() {
    constexpr SimtSmallTile kTile = kSimtSmallTiles[kIndex];
    run<Tile<kIndex, kTile.thread_m, kTile.thread_n, kTile.lanes_m, kTile.k, kTile.stages,
             kTile.teams>>(p, context);
    return true;
  });
}

}  // namespace tiled::cuda
