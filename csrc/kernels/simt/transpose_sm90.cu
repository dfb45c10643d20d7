// Copies float32 operands so that neighbours lie along rows of A and along columns of B, in lines
// that begin at multiples of 16 bytes. A block copies a square by way of shared memory:
// neighbouring threads read what is close in memory, and write by fours.

#include "kernels/common/launch.h"
#include "kernels/common/stored_batch.h"
#include "kernels/simt/transpose.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kSide = 64, kThreads = 256;
constexpr int kEach = kSide * kSide / kThreads;  // elements a thread

// `outer` are A's rows or B's columns.
struct Job {
  Matrix from;  // row_stride: of outer; col_stride: of K
  Batch batch;  // of matrices that are stored: without broadcast dimensions
  float* to;
  int64_t outer, k, pitch;
  unsigned squares_outer, squares_k, blocks;
};

struct Jobs {
  Job job[2];
  bool next_starts_early;
};

using Square = float[kSide][kSide + 1];  // (K, outer)

// Reads what there is of a square that begins at (first_outer, first_k), and zeros beyond:
// neighbours in memory by neighbouring threads.
__device__ void read_square(const Job& job, unsigned matrix, int64_t first_outer, int64_t first_k,
                            int outers, int ks, Square& square) {
  constexpr int kLines = kThreads / kSide;  // read at once
  const Matrix& from = job.from;
  const bool along_k = from.col_stride < from.row_stride;
  const int near = threadIdx.x % kSide, line = threadIdx.x / kSide;
  const int64_t near_stride = along_k ? from.col_stride : from.row_stride;
  const int64_t far_stride = along_k ? from.row_stride : from.col_stride;
  const float* data = static_cast<const float*>(from.data) + batch_offset(job.batch, from, matrix) +
                      first_outer * from.row_stride + first_k * from.col_stride +
                      near * near_stride + line * far_stride;
  const int lines = near < (along_k ? ks : outers) ? (along_k ? outers : ks) - line : 0;  // left
  float x[kEach];
  UNROLL
  for (int i = 0; i < kEach; ++i, data += kLines * far_stride) {
    x[i] = i * kLines < lines ? *data : 0.0f;
  }
  float* to = along_k ? &square[near][line] : &square[line][near];
  const int apart = along_k ? kLines : kLines * (kSide + 1);
  UNROLL
  for (int i = 0; i < kEach; ++i) to[i * apart] = x[i];
}

__global__ void __launch_bounds__(kThreads, 6) transpose_kernel(const __grid_constant__ Jobs jobs) {
  __shared__ Square square;
  if (jobs.next_starts_early) ptx::pdl_launch_dependents();  // and set up its barriers
  const bool second = blockIdx.x >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  const unsigned block = second ? blockIdx.x - jobs.job[0].blocks : blockIdx.x;
  const unsigned matrix = block / job.squares_outer / job.squares_k;
  const int64_t first_k = int64_t{block / job.squares_outer % job.squares_k} * kSide;
  const int64_t first_outer = int64_t{block % job.squares_outer} * kSide;
  const auto outers = static_cast<int>(min(job.outer - first_outer, int64_t{kSide}));
  const auto ks = static_cast<int>(min(job.k - first_k, int64_t{kSide}));
  read_square(job, matrix, first_outer, first_k, outers, ks, square);
  __syncthreads();

  constexpr int kFours = kSide / 4, kRows = kThreads / kFours;
  const int outer = threadIdx.x % kFours * 4, first = threadIdx.x / kFours;
  if (first_outer + outer >= job.pitch) return;
  float* to = job.to + (matrix * job.k + first_k + first) * job.pitch + first_outer + outer;
  UNROLL
  for (int i = 0; i < kEach / 4; ++i, to += kRows * job.pitch) {
    const float* four = &square[first + i * kRows][outer];
    if (first + i * kRows < ks) {
      __stcg(reinterpret_cast<float4*>(to), make_float4(four[0], four[1], four[2], four[3]));
    }
  }
}

}  // namespace

std::optional<Problem> lay_out(const Problem& p, bool next_starts_early, const Context& context) {
  Problem laid_out = p;
  Matrix operands[] = {p.a, transposed(p.b)};
  const int64_t outers[] = {p.m, p.n};
  Jobs jobs{.job = {}, .next_starts_early = next_starts_early};
  int64_t bytes = 0, begins[2]{};
  for (int i = 0; i < 2; ++i) {
    if (is_tma_aligned_mn_major(p.batch, operands[i])) continue;
    Job& job = jobs.job[i];
    job.outer = outers[i], job.k = p.k, job.pitch = ceil_div(outers[i], 4) * 4;
    Matrix to{.data = nullptr, .row_stride = 1, .col_stride = job.pitch};
    const StoredBatch stored = stored_batch(p.batch, operands[i], job.pitch * p.k, to);
    job.from = stored.from, job.batch = stored.batch, operands[i] = to;
    job.squares_outer = static_cast<unsigned>(ceil_div(job.outer, kSide));
    job.squares_k = static_cast<unsigned>(ceil_div(job.k, kSide));
    job.blocks = static_cast<unsigned>(job.squares_outer * job.squares_k * job.batch.count);
    begins[i] = bytes;
    bytes += job.batch.count * job.k * job.pitch * int64_t{sizeof(float)};
  }
  const unsigned blocks = jobs.job[0].blocks + jobs.job[1].blocks;
  if (blocks > 0) {
    void* workspace = context.allocate(bytes);
    if (workspace == nullptr) return std::nullopt;
    for (int i = 0; i < 2; ++i) {
      if (jobs.job[i].blocks == 0) continue;
      void* to = static_cast<uint8_t*>(workspace) + begins[i];
      operands[i].data = to;
      jobs.job[i].to = static_cast<float*>(to);
    }
    transpose_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(jobs);
    check(cudaGetLastError());
  }
  laid_out.a = operands[0];
  laid_out.b = transposed(operands[1]);
  return laid_out;
}

}  // namespace tiled::cuda
