// Recomputes the elements on the recompute list in the chunked order (core/order_chunked.h).
//
// A team takes a region of the list, 64 rows by 128 columns of C, and computes all of it by the
// main loop of simt_cp_async, whichever of its elements are flagged. If at most 512 are, a
// thread sums one to four of them instead, from the same stages. If
// hardly any are, warps sum chunks of single elements (recompute_element.cuh), and different teams
// take the parts that the region's four warps flagged. Only the GPU knows how long the list is, so
// the grid is fixed and strides through it.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/fp16x3/recompute_element.cuh"
#include "kernels/fp16x3/recompute_list.cuh"
#include "kernels/simt/cp_async_kernel.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/store.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace recompute {

// --- Regions with many flagged elements ----------------------------------------------------------

// A team has a region: consumer threads, and after them producer threads.
struct Tile : RegisterTile<RecomputeList::kRows, RecomputeList::kCols, 8, 8, 8> {
  static constexpr int kK = 16;  // of a step
  static constexpr int kStages = 4, kProducers = 64, kTeam = kConsumers + kProducers;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};
using Stages = simt_cp_async::Smem<Tile>;

// A listed region, and which of its elements are flagged. Every warp looks for itself.
struct Region {
  TileIndex first;  // element
  const RecomputeList::Flags& flags;
  unsigned warps;  // that wrote flags
  int flagged;     // elements

  // All threads of a warp call it.
  __device__ Region(const RecomputeList& list, int index)
      : first(first_of_region(list, list.listed[index])),
        flags(list.flags[list.listed[index]]),
        warps(list.flagged_warps[list.listed[index]]),
        flagged(0) {
    const int lane = threadIdx.x % 32;
    UNROLL
    for (int warp = 0; warp < RecomputeList::kWarps; ++warp) {
      flagged += __reduce_add_sync(~0u, __popcll(of(warp, lane)));
    }
  }

  __device__ uint64_t of(int warp, int lane) const {
    return (warps >> warp & 1) != 0 ? flags[warp][lane] : 0;
  }
  __device__ bool is_flagged(int row, int col) const {
    const auto [lane, accumulator] = accumulator_index(row % RecomputeList::kWarpRows, col);
    return (of(row / RecomputeList::kWarpRows, lane) >> accumulator & 1) != 0;
  }
};

// Sums all of the region by the consumers, and stores its flagged elements. `thread` is the team's.
__device__ inline void recompute_all(const Problem& p, bool c_vectorized, const Region& region,
                                     int thread, Stages& stages, ptx::PipelineState& pipe,
                                     TileSums<Tile>& totals) {
  bool is_first = true;
  simt_cp_async::sum_chunks(p.k, thread, stages, pipe,
                            [&](const float(&acc)[Tile::kThreadM][Tile::kThreadN]) {
                              add_to_totals<Tile>(is_first, acc, &totals[0][thread]);
                              is_first = false;
                            });
  const auto& [batch, row, col] = region.first;
  const int64_t c_offset = batch_offset(p.batch, p.c, batch);
  if (region.flagged == Tile::kM * Tile::kN) {
    return store_quads<Tile>(p, c_vectorized, c_offset, row, col, thread, totals);
  }
  NO_UNROLL
  for (int quad = 0; quad < Tile::kQuads; ++quad) {
    const QuadCoord<Tile> at(thread, quad);
    const float4 x4 = totals[quad][thread].swapped;
    const float sums[] = {x4.y, x4.x, x4.w, x4.z};
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (!region.is_flagged(at.row, at.col + j)) continue;
      store_noinline(p, c_offset, row + at.row, col + at.col + j, sums[j]);
    }
  }
}

// The coordinates of a region's flagged elements, in any order.
struct FlaggedElements {
  static constexpr int kMost = 512;
  int count;
  uint16_t at[kMost];  // row * kCols + column

  // All consumers call it.
  __device__ void find(const Region& region, int thread, int barrier) {
    ptx::named_barrier_sync(barrier, Tile::kConsumers);  // the last region's have been read
    if (thread == 0) count = 0;
    ptx::named_barrier_sync(barrier, Tile::kConsumers);
    const int warp = thread / 32, lane = thread % 32;
    for (uint64_t left = region.of(warp, lane); left != 0; left &= left - 1) {
      const auto [row, col] = accumulator_coord(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      at[atomicAdd(&count, 1)] =
          static_cast<uint16_t>((warp * RecomputeList::kWarpRows + row) * Tile::kN + col);
    }
    ptx::named_barrier_sync(barrier, Tile::kConsumers);
  }
};

// Sums the flagged elements by the consumers, at most kEach by each thread, and stores them.
template <int kEach>
__device__ void recompute_each(const Problem& p, const Region& region, int thread,
                               const FlaggedElements& elements, Stages& stages,
                               ptx::PipelineState& pipe) {
  int row[kEach], col[kEach];
  float total[kEach];
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int index = min(i * Tile::kConsumers + thread, elements.count - 1);
    row[i] = elements.at[index] / Tile::kN, col[i] = elements.at[index] % Tile::kN;
    total[i] = kAddIdentity<float>;
  }
  for (int64_t k_left = p.k; k_left > 0; k_left -= kChunk) {
    float acc[kEach] = {};
    for (int in_chunk = static_cast<int>(min(k_left, int64_t{kChunk})); in_chunk > 0;
         in_chunk -= Tile::kK, pipe.advance()) {
      ptx::mbarrier_wait(&stages.full[pipe.stage], pipe.parity);
      const auto& stage = stages.stage[pipe.stage];
      const int steps = min(in_chunk, Tile::kK);
      _Pragma("unroll 8") for (int kk = 0; kk < steps; ++kk) {
        UNROLL
        for (int i = 0; i < kEach; ++i) {
          acc[i] = fused_multiply_add(stage.a[kk][row[i]], stage.b[kk][col[i]], acc[i]);
        }
      }
      __syncwarp();  // all lanes have read the stage
      if (thread % 32 == 0) ptx::mbarrier_arrive(&stages.empty[pipe.stage]);
    }
    UNROLL
    for (int i = 0; i < kEach; ++i) total[i] += acc[i];
  }
  const int64_t c_offset = batch_offset(p.batch, p.c, region.first.batch);
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (i * Tile::kConsumers + thread >= elements.count) continue;
    store_noinline(p, c_offset, region.first.row + row[i], region.first.col + col[i], total[i]);
  }
}

// --- Regions with few, and the kernel ------------------------------------------------------------

// The flagged elements of a warp in a region that has few, and the sums of chunks of one from each
// warp of the team.
struct FewFlagged {
  static constexpr int kMost = 16, kWarps = Tile::kTeam / 32;
  int count;
  AccumulatorCoord coords[kMost];
  float sums[kWarps][kChunksPerWarp];
};

struct TeamSmem {
  Stages stages;
  alignas(16) TileSums<Tile> totals;
  FlaggedElements elements;
  FewFlagged few;
};

// A block has an SM to itself, and each SM gets one region before any gets two. Blocks of one team
// would not see to that: the last blocks of the product hold some SMs when the grid is launched.
constexpr int kTeams = 2;
static_assert(kTeams * sizeof(TeamSmem) <= kMaxSharedMemory);

struct Team {
  int index, thread;
  __device__ Team() : index(threadIdx.x / Tile::kTeam), thread(threadIdx.x % Tile::kTeam) {}
  __device__ int first() const { return index * gridDim.x + blockIdx.x; }  // of its regions
  __device__ int stride() const { return kTeams * gridDim.x; }
  __device__ int consumer_barrier() const { return 1 + kTeams + index; }
  __device__ void sync() const { ptx::named_barrier_sync(1 + index, Tile::kTeam); }
};

// Recomputes what one warp flagged of a region that has few flagged elements: a task of a warp is
// kChunksPerWarp chunks of one of them, and one thread adds the sums of the tasks in order.
__device__ inline void recompute_few(const Problem& p, const Region& region, int part,
                                     const Team& team, FewFlagged& few) {
  const int warp = team.thread / 32, lane = team.thread % 32;
  const int64_t first_row = region.first.row + part * RecomputeList::kWarpRows;
  if (team.thread == 0) few.count = 0;
  team.sync();
  if (warp == 0) {
    for (uint64_t left = region.of(part, lane); left != 0; left &= left - 1) {
      const auto coord = accumulator_coord(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      few.coords[atomicAdd(&few.count, 1)] = coord;
    }
  }
  team.sync();
  const int chunks = static_cast<int>(ceil_div(p.k, kChunk)),
            tasks_each = ceil_div(chunks, kChunksPerWarp);
  const int tasks = few.count * tasks_each;
  float total;
  NO_UNROLL
  for (int first = 0; first < tasks; first += FewFlagged::kWarps) {
    if (first + warp < tasks) {
      const auto [row, col] = few.coords[(first + warp) / tasks_each];
      const int64_t k = int64_t{(first + warp) % tasks_each} * kChunksPerWarp * kChunk;
      const float sum =
          sum_chunks(p, region.first.batch, first_row + row, region.first.col + col, k);
      if (lane % kLanesPerChunk == 0) few.sums[warp][lane / kLanesPerChunk] = sum;
    }
    team.sync();
    NO_UNROLL
    for (int i = 0; team.thread == 0 && i < FewFlagged::kWarps && first + i < tasks; ++i) {
      const int index = (first + i) / tasks_each, task = (first + i) % tasks_each;
      if (task == 0) total = kAddIdentity<float>;
      for (int j = 0; j < kChunksPerWarp && task * kChunksPerWarp + j < chunks; ++j)
        total += few.sums[i][j];
      if (task < tasks_each - 1) continue;
      const auto [row, col] = few.coords[index];
      const int64_t c_offset = batch_offset(p.batch, p.c, region.first.batch);
      store_noinline(p, c_offset, first_row + row, region.first.col + col, total);
    }
    team.sync();
  }
}

__global__ void __launch_bounds__(kTeams* Tile::kTeam, 1)
    recompute_kernel(const __grid_constant__ Problem p, const __grid_constant__ RecomputeList list,
                     simt_cp_async::Vectorized vectorized, bool c_vectorized) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  const Team team;
  TeamSmem& smem = reinterpret_cast<TeamSmem*>(smem_bytes)[team.index];
  ptx::pdl_wait();
  const int regions = *list.count;
  if (regions == 0) return;
  for (int index = team.first(); index < regions * RecomputeList::kWarps; index += team.stride()) {
    const Region region(list, index / RecomputeList::kWarps);
    const int part = index % RecomputeList::kWarps;
    if (region.flagged <= FewFlagged::kMost) recompute_few(p, region, part, team, smem.few);
  }
  if (team.thread == 0) smem.stages.init_barriers();
  team.sync();

  const int producer = team.thread - Tile::kConsumers;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = producer >= 0 ? 1 : 0};
  for (int index = team.first(); index < regions; index += team.stride()) {
    const Region region(list, index);
    if (region.flagged <= FewFlagged::kMost) continue;
    if (producer >= 0) {
      simt_cp_async::produce(p, vectorized, region.first, 0, p.k, producer, smem.stages, pipe);
    } else if (region.flagged > FlaggedElements::kMost) {
      recompute_all(p, c_vectorized, region, team.thread, smem.stages, pipe, smem.totals);
    } else {
      smem.elements.find(region, team.thread, team.consumer_barrier());
      if (region.flagged <= Tile::kConsumers) {
        recompute_each<1>(p, region, team.thread, smem.elements, smem.stages, pipe);
      } else {
        recompute_each<4>(p, region, team.thread, smem.elements, smem.stages, pipe);
      }
    }
  }
}

// Makes the listed elements NaN. A warp has the rows of one warp of a region.
__global__ void keep_flagged_kernel(const __grid_constant__ Problem p,
                                    const __grid_constant__ RecomputeList list) {
  ptx::pdl_wait();
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32, regions = *list.count;
  for (int index = static_cast<int>(blockIdx.x); index < regions;
       index += static_cast<int>(gridDim.x)) {
    const Region region(list, index);
    float* c = static_cast<float*>(p.c.data) + batch_offset(p.batch, p.c, region.first.batch) +
               (region.first.row + part * RecomputeList::kWarpRows) * p.c.row_stride +
               region.first.col * p.c.col_stride;
    for (uint64_t left = region.of(part, lane); left != 0; left &= left - 1) {
      const auto [row, col] = accumulator_coord(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      c[row * p.c.row_stride + col * p.c.col_stride] = NAN;
    }
  }
}

namespace {

template <class T>
std::vector<T> read(const T* from, int64_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  check(cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return values;
}

// Counts the flagged elements of a list, when the stream has come to here.
int64_t count_listed(const Problem& p, const RecomputeList& list, cudaStream_t stream) {
  struct Words {
    uint64_t of[RecomputeList::kWarps][32];
  };
  if (read(list.count, 1, stream)[0] == 0) return 0;
  const auto warps = read(list.flagged_warps, list.regions(p), stream);
  const auto flags = read(reinterpret_cast<const Words*>(list.flags), list.regions(p), stream);
  int64_t count = 0;
  for (size_t region = 0; region < warps.size(); ++region) {
    for (int warp = 0; warp < RecomputeList::kWarps; ++warp) {
      if ((warps[region] >> warp & 1) == 0) continue;
      for (const uint64_t each : flags[region].of[warp]) count += std::popcount(each);
    }
  }
  return count;
}

}  // namespace
}  // namespace recompute

void launch_recompute(const Problem& p, const RecomputeList& list, const Context& context) {
  using namespace recompute;
  if (p.keeps_flagged) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(list.regions(p), context.sms));
    launch_pdl(keep_flagged_kernel, blocks, RecomputeList::kWarps * 32, 0, context, p, list);
    return;
  }
  allow_shared_memory(recompute_kernel, kTeams * sizeof(TeamSmem));
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(list.regions(p) * RecomputeList::kWarps, context.sms));
  const simt_cp_async::Vectorized vectorized{is_a_vectorized(p), is_b_vectorized(p)};
  launch_pdl(recompute_kernel, blocks, kTeams * Tile::kTeam, kTeams * sizeof(TeamSmem), context, p,
             list, vectorized, is_c_vectorized(p));
  if (context.recomputed != nullptr) {
    *context.recomputed += count_listed(p, list, static_cast<cudaStream_t>(context.stream));
  }
}

}  // namespace tiled::cuda
