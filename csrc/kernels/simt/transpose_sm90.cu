// transpose: copies float32 operands to MN-major ones with 16-byte aligned rows, for simt_tma.
//
// Idea:  A block copies a square by way of shared memory. Adjacent threads read elements that are
//        adjacent in memory, along K or along M or N, and write 128-bit vectors along M or N.
// Limit: DRAM bandwidth, and the time of one launch more.
// Next:  a main loop that reads K-major operands in place.

#include "core/stored_batch.h"
#include "kernels/common/launch.h"
#include "kernels/simt/transpose.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kSide = 64, kThreads = 256;
constexpr int kPerThread = kSide * kSide / kThreads;  // elements

// One operand to copy. `mn` counts A's rows or B's columns.
struct OperandCopy {
  Matrix from;  // row_stride: along M or N; col_stride: along K
  Batch batch;  // of the matrices that are stored: without broadcast dimensions
  float* to;
  int64_t mn, k, pitch;
  unsigned squares_mn, squares_k, blocks;
};

struct Params {
  OperandCopy operand[2];  // one with 0 blocks is not copied
  bool next_starts_early;
};

using Square = float[kSide][kSide + 1];  // (K, MN), padded against bank conflicts

// Reads the square at (first_mn, first_k) of a matrix, with mn_left by k_left elements
// inside; zeros beyond. Adjacent threads read along `near`, the dimension with the smaller stride.
__device__ void load_square(const OperandCopy& operand, unsigned matrix, int64_t first_mn,
                            int64_t first_k, int mn_left, int k_left, Square& square) {
  constexpr int kAtOnce = kThreads / kSide;  // along the far dimension
  const Matrix& from = operand.from;
  const bool k_major = from.col_stride < from.row_stride;
  const int near = threadIdx.x % kSide, far = threadIdx.x / kSide;
  const int64_t near_stride = k_major ? from.col_stride : from.row_stride;
  const int64_t far_stride = k_major ? from.row_stride : from.col_stride;
  const float* data = static_cast<const float*>(from.data) +
                      batch_offset(operand.batch, from, matrix) + first_mn * from.row_stride +
                      first_k * from.col_stride + near * near_stride + far * far_stride;
  const int far_left = near < (k_major ? k_left : mn_left) ? (k_major ? mn_left : k_left) - far : 0;
  float x[kPerThread];
  UNROLL
  for (int i = 0; i < kPerThread; ++i, data += kAtOnce * far_stride) {
    x[i] = i * kAtOnce < far_left ? *data : 0.0f;
  }
  float* to = k_major ? &square[near][far] : &square[far][near];
  const int step = k_major ? kAtOnce : kAtOnce * (kSide + 1);
  UNROLL
  for (int i = 0; i < kPerThread; ++i) to[i * step] = x[i];
}

__global__ void __launch_bounds__(kThreads, 6)
    transpose_kernel(const __grid_constant__ Params params) {
  __shared__ Square square;
  if (params.next_starts_early) ptx::pdl_launch_dependents();
  const bool is_b = blockIdx.x >= params.operand[0].blocks;
  const OperandCopy& operand = params.operand[is_b];
  const unsigned block = is_b ? blockIdx.x - params.operand[0].blocks : blockIdx.x;
  const unsigned matrix = block / operand.squares_mn / operand.squares_k;
  const int64_t first_k = int64_t{block / operand.squares_mn % operand.squares_k} * kSide;
  const int64_t first_mn = int64_t{block % operand.squares_mn} * kSide;
  const auto mn_left = static_cast<int>(min(operand.mn - first_mn, int64_t{kSide}));
  const auto k_left = static_cast<int>(min(operand.k - first_k, int64_t{kSide}));
  load_square(operand, matrix, first_mn, first_k, mn_left, k_left, square);
  __syncthreads();

  constexpr int kVectors = kSide / 4, kAtOnce = kThreads / kVectors;  // along K
  const int mn = threadIdx.x % kVectors * 4, first = threadIdx.x / kVectors;
  if (first_mn + mn >= operand.pitch) return;
  float* to = operand.to + (matrix * operand.k + first_k + first) * operand.pitch + first_mn + mn;
  UNROLL
  for (int i = 0; i < kPerThread / 4; ++i, to += kAtOnce * operand.pitch) {
    const float* x4 = &square[first + i * kAtOnce][mn];
    if (first + i * kAtOnce < k_left) {
      __stcg(reinterpret_cast<float4*>(to), make_float4(x4[0], x4[1], x4[2], x4[3]));
    }
  }
}

}  // namespace

std::optional<Problem> make_mn_major(const Problem& p, bool next_starts_early,
                                     const Context& context) {
  Matrix operands[] = {p.a, transposed(p.b)};
  const int64_t mn[] = {p.m, p.n};
  Params params{.operand = {}, .next_starts_early = next_starts_early};
  int64_t bytes = 0, offset[2]{};  // of the workspace
  for (int i = 0; i < 2; ++i) {
    if (is_tma_aligned_mn_major(p.batch, operands[i])) continue;
    OperandCopy& operand = params.operand[i];
    operand.mn = mn[i], operand.k = p.k, operand.pitch = ceil_div(mn[i], 4) * 4;
    Matrix to{.data = nullptr, .row_stride = 1, .col_stride = operand.pitch};
    const StoredBatch stored = stored_batch(p.batch, operands[i], operand.pitch * p.k, to);
    operand.from = stored.from, operand.batch = stored.batch, operands[i] = to;
    operand.squares_mn = static_cast<unsigned>(ceil_div(operand.mn, kSide));
    operand.squares_k = static_cast<unsigned>(ceil_div(operand.k, kSide));
    operand.blocks =
        static_cast<unsigned>(operand.squares_mn * operand.squares_k * operand.batch.count);
    offset[i] = bytes;
    bytes += operand.batch.count * operand.k * operand.pitch * int64_t{sizeof(float)};
  }
  const unsigned blocks = params.operand[0].blocks + params.operand[1].blocks;
  if (blocks > 0) {
    void* workspace = context.allocate(bytes);
    if (workspace == nullptr) return std::nullopt;
    for (int i = 0; i < 2; ++i) {
      if (params.operand[i].blocks == 0) continue;
      void* to = static_cast<uint8_t*>(workspace) + offset[i];
      operands[i].data = to;
      params.operand[i].to = static_cast<float*>(to);
    }
    transpose_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(params);
    check(cudaGetLastError());
  }
  Problem mn_major = p;
  mn_major.a = operands[0];
  mn_major.b = transposed(operands[1]);
  return mn_major;
}

}  // namespace tiled::cuda
