// Copies float32 operands so that neighbours lie along rows of A and along columns of B, in lines
// that begin at multiples of 16 bytes. A block copies a square by way of shared memory:
// neighbouring threads read what is close in memory, and write by fours.

#include <stdexcept>

#include "device/pipeline.cuh"
#include "kernels/simt_layout.h"
#include "launch.h"

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

__global__ void __launch_bounds__(kThreads) lay_out_kernel(const __grid_constant__ Jobs jobs) {
  __shared__ float square[kSide][kSide + 1];                    // (K, outer)
  if (jobs.next_starts_early) device::let_next_kernel_start();  // and set up its barriers
  const bool second = blockIdx.x >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  const unsigned block = second ? blockIdx.x - jobs.job[0].blocks : blockIdx.x;
  const unsigned matrix = block / job.squares_outer / job.squares_k;
  const int64_t first_k = int64_t{block / job.squares_outer % job.squares_k} * kSide;
  const int64_t first_outer = int64_t{block % job.squares_outer} * kSide;
  const Matrix& from = job.from;
  const bool along_k = from.col_stride < from.row_stride;
  const float* data = static_cast<const float*>(from.data) + batch_offset(job.batch, from, matrix) +
                      first_outer * from.row_stride + first_k * from.col_stride;

  const int near = threadIdx.x % kSide;
  float x[kEach];
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int far = threadIdx.x / kSide + i * (kThreads / kSide);
    const int outer = along_k ? far : near, k = along_k ? near : far;
    const bool inside = first_outer + outer < job.outer && first_k + k < job.k;
    x[i] = inside ? data[outer * from.row_stride + k * from.col_stride] : 0.0f;
  }
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int far = threadIdx.x / kSide + i * (kThreads / kSide);
    square[along_k ? near : far][along_k ? far : near] = x[i];
  }
  __syncthreads();

  constexpr int kFours = kSide / 4;
  const int outer = threadIdx.x % kFours * 4;
  float* to = job.to + (matrix * job.k + first_k) * job.pitch + first_outer + outer;
  UNROLL
  for (int i = 0; i < kEach / 4; ++i) {
    const int k = threadIdx.x / kFours + i * (kThreads / kFours);
    if (first_k + k < job.k && first_outer + outer < job.pitch) {
      const float* four = &square[k][outer];
      *reinterpret_cast<float4*>(to + k * job.pitch) =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// A copy of `from`, but for where it is, and in `batch` what of it is stored.
Matrix compact(const Batch& all, const Matrix& from, int64_t pitch, int64_t k, Job& job) {
  Matrix to{.data = nullptr, .row_stride = 1, .col_stride = pitch};
  int64_t stride = pitch * k;
  Batch& stored = job.batch;
  job.from = from;
  for (int d = 0; d < all.rank; ++d) {
    if (from.batch_stride[d] == 0) continue;
    stored.size[stored.rank] = all.size[d];
    stored.count *= all.size[d];
    job.from.batch_stride[stored.rank++] = from.batch_stride[d];
  }
  for (int d = all.rank - 1; d >= 0; --d) {
    if (from.batch_stride[d] == 0) continue;
    to.batch_stride[d] = stride;
    stride *= all.size[d];
  }
  return to;
}

}  // namespace

std::optional<Problem> lay_out(const Problem& p, bool next_starts_early, const Context& context) {
  Problem laid_out = p;
  Matrix operands[] = {p.a, transposed(p.b)};
  const int64_t outers[] = {p.m, p.n};
  Jobs jobs{.job = {}, .next_starts_early = next_starts_early};
  int64_t bytes = 0, begins[2]{};
  for (int i = 0; i < 2; ++i) {
    if (in_boxes_of_rows(p.batch, operands[i])) continue;
    Job& job = jobs.job[i];
    job.outer = outers[i], job.k = p.k, job.pitch = ceil_div(outers[i], 4) * 4;
    operands[i] = compact(p.batch, operands[i], job.pitch, p.k, job);
    job.squares_outer = static_cast<unsigned>(ceil_div(job.outer, kSide));
    job.squares_k = static_cast<unsigned>(ceil_div(job.k, kSide));
    job.blocks = static_cast<unsigned>(job.squares_outer * job.squares_k * job.batch.count);
    begins[i] = bytes;
    bytes += job.batch.count * job.k * job.pitch * int64_t{sizeof(float)};
  }
  const unsigned blocks = jobs.job[0].blocks + jobs.job[1].blocks;
  if (blocks > 0) {
    void* workspace;
    try {
      workspace = context.allocate(bytes);
    } catch (const std::runtime_error&) {
      return std::nullopt;
    }
    for (int i = 0; i < 2; ++i) {
      if (jobs.job[i].blocks == 0) continue;
      operands[i].data = static_cast<uint8_t*>(workspace) + begins[i];
      jobs.job[i].to = static_cast<float*>(operands[i].data);
    }
    lay_out_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(jobs);
    check(cudaGetLastError());
  }
  laid_out.a = operands[0];
  laid_out.b = transposed(operands[1]);
  return laid_out;
}

}  // namespace tiled::cuda
