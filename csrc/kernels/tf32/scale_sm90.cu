// Rounds float32 operands to halves for tf32_tma: reads each element once.
//
// A scale depends on 8192 of K, of which a block has an eighth, of eight rows, in registers; the
// blocks of a cluster tell one another what their rows' largest magnitudes are, in shared memory.
// Threads lie as in fp16x3_split_sm90.cu, and write 16 bytes at a time.

#include <algorithm>
#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/common/load_x8.cuh"
#include "kernels/fp16x3/range.cuh"
#include "kernels/tf32/scale.h"
#include "ptx/cluster.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kRows = ScaledHalves::kRows;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kApart = kThreads / kRows * 8;  // along K, from a thread's eight to its next
constexpr int kEights = 4, kOwn = kApart * kEights;
constexpr int kMaxCluster = mma_order::kChunk / kOwn;
static_assert(kMaxCluster == 8, "the largest cluster that every GPU has");
static_assert(kOwn % ScaledHalves::kStep == 0, "lines end within a cluster");

struct Job {
  ScaledHalves x;
  bool vectors;  // 16-byte reads along K
  unsigned row_blocks, chunks, clusters;
};

struct Jobs {
  Job job[2];
  unsigned cluster;
  int* zeroed;
};

__global__ void __launch_bounds__(kThreads, 4) scale_kernel(const __grid_constant__ Jobs jobs) {
  __shared__ uint32_t largest_of[kWarps][kRows], smallest_of[kWarps][kRows];
  __shared__ Range ranges[kMaxCluster][kRows];
  ptx::cluster_arrive();
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *jobs.zeroed = 0;
  unsigned cluster = blockIdx.x / jobs.cluster;
  const unsigned rank = blockIdx.x % jobs.cluster;
  const bool second = cluster >= jobs.job[0].clusters;
  if (second) cluster -= jobs.job[0].clusters;
  const Job& job = jobs.job[second];
  const ScaledHalves& x = job.x;
  const int64_t matrix = cluster / job.row_blocks / job.chunks;
  const int64_t chunk = cluster / job.row_blocks % job.chunks;
  const int in_block = threadIdx.x % kRows;
  const int64_t row = int64_t{cluster % job.row_blocks} * kRows + in_block;
  const int64_t k = chunk * mma_order::kChunk + rank * kOwn + threadIdx.x / kRows * 8;

  Range range;
  float own[kEights][8];
  const float* from = static_cast<const float*>(x.from.data) +
                      batch_offset(x.batch, x.from, matrix) + row * x.from.row_stride +
                      k * x.from.col_stride;
  const int64_t left = row < x.rows ? x.k - k : 0;
  UNROLL
  for (int j = 0; j < kEights; ++j) {
    load_eight(own[j], from + j * kApart * x.from.col_stride, x.from.col_stride, left - j * kApart,
               job.vectors);
  }
  range.add_row<kRows>(own);
  if (threadIdx.x % 32 < kRows) {
    largest_of[threadIdx.x / 32][in_block] = range.largest;
    smallest_of[threadIdx.x / 32][in_block] = range.smallest;
  }
  __syncthreads();
  ptx::cluster_wait();
  if (threadIdx.x < kRows * jobs.cluster) {  // a block's rows for each of the others
    Range of_row;
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      of_row.add({largest_of[warp][in_block], smallest_of[warp][in_block]});
    }
    *ptx::map_shared_rank(&ranges[rank][in_block], threadIdx.x / kRows) = of_row;
  }
  ptx::cluster_sync();
  for (unsigned other = 0; other < jobs.cluster; ++other) range.add(ranges[other][in_block]);

  const float scale = fp16x3::scale(range.largest);
  if (row < x.rows) {
    uint16_t* to = x.halves + matrix * x.matrix_elements() + row * x.pitch() + k;
    UNROLL
    for (int j = 0; j < kEights; ++j) {
      if (k + j * kApart >= x.pitch()) break;
      uint32_t two[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        two[i] = ptx::pack_x2(own[j][i * 2] * scale, own[j][i * 2 + 1] * scale);
      }
      *reinterpret_cast<uint4*>(to + j * kApart) = make_uint4(two[0], two[1], two[2], two[3]);
    }
  }
  if (rank == 0 && threadIdx.x < kRows) {
    x.undo[matrix * x.matrix_groups() + chunk * x.padded_rows() + row] = range.inverse_scale(scale);
  }
}

}  // namespace

// A block reads at least 8 * tf32::kMinK elements: no memory holds an operand of more blocks than a
// grid can have.
void launch_scale(const ScaledHalves& a, const ScaledHalves& b, int* zeroed,
                  const Context& context) {
  const auto make_job = [](const ScaledHalves& x) {
    const auto row_blocks = static_cast<unsigned>(x.padded_rows() / kRows);
    const auto chunks = static_cast<unsigned>(ceil_div(x.k, mma_order::kChunk));
    return Job{
        .x = x,
        .vectors = is_vector_aligned<float4>(x.batch, x.from, x.from.col_stride, x.from.row_stride),
        .row_blocks = row_blocks,
        .chunks = chunks,
        .clusters = static_cast<unsigned>(row_blocks * chunks * x.batch.count),
    };
  };
  const Jobs jobs{
      .job = {make_job(a), make_job(b)},
      .cluster = static_cast<unsigned>(std::min<int64_t>(ceil_div(a.k, kOwn), kMaxCluster)),
      .zeroed = zeroed,
  };
  const unsigned blocks = (jobs.job[0].clusters + jobs.job[1].clusters) * jobs.cluster;
  launch_clusters_pdl(scale_kernel, jobs.cluster, blocks, kThreads, 0, context, jobs);
}

}  // namespace tiled::cuda
