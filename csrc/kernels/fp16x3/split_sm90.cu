// Splits float32 operands for fp16x3: reads each element once, writes two halves.
//
// A block takes eight rows of one chunk, holds them in registers while it looks for the largest
// magnitude of each row, scales, splits and writes them as csrc/presplit.h says. A thread has eight
// neighbours along K at a time, 16 bytes of each plane. Rows lie in neighbouring threads: where
// they are neighbours in memory, eight threads read a line of 32 bytes, and where K is contiguous,
// four times eight threads read eight lines of 128.

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_x8.cuh"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kRows = 8;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kThreadsPerRow = kThreads / kRows;
constexpr int kEights = kChunk / 8 / kThreadsPerRow;  // a thread
static_assert(kThreadsPerRow % (Presplit::kK / 8) == 0, "from eight to eight, whole steps");

struct Job {
  Operand operand;
  bool vectors = false;  // 16-byte reads along K
  unsigned row_blocks = 0, chunks = 0, blocks = 0;
};

struct Jobs {
  Job job[2];
};

__global__ void __launch_bounds__(kThreads, 4)
    split_kernel(const __grid_constant__ Jobs jobs, int* zeroed, int64_t zeros) {
  ptx::pdl_launch_dependents();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < zeros; i += gridDim.x * kThreads) {
    zeroed[i] = 0;
  }
  const bool second = blockIdx.x >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  const Presplit& presplit = job.operand.presplit;
  const Matrix& source = job.operand.matrix;
  const unsigned block = second ? blockIdx.x - jobs.job[0].blocks : blockIdx.x;
  const unsigned matrix = block / job.row_blocks / job.chunks;
  const int64_t chunk = block / job.row_blocks % job.chunks;
  const int in_block = threadIdx.x % kRows;
  const int64_t row = int64_t{block % job.row_blocks} * kRows + in_block;
  const int eight = threadIdx.x / kRows;  // the thread's first
  const int64_t k = chunk * kChunk + eight * 8;

  Range range;
  float x[kEights][8];
  const float* data = static_cast<const float*>(source.data) +
                      batch_offset(job.operand.batch, source, matrix) + row * source.row_stride +
                      k * source.col_stride;
  const int64_t left = row < presplit.rows ? presplit.k - k : 0;
  UNROLL
  for (int j = 0; j < kEights; ++j) {
    load_eight(x[j], data + j * (kThreadsPerRow * 8) * source.col_stride, source.col_stride,
               left - j * (kThreadsPerRow * 8), job.vectors);
  }
  range.add_row<kRows>(x);
  __shared__ uint32_t largest_smem[kWarps][kRows], smallest_smem[kWarps][kRows];
  if (threadIdx.x % 32 < kRows) {
    largest_smem[threadIdx.x / 32][in_block] = range.largest;
    smallest_smem[threadIdx.x / 32][in_block] = range.smallest;
  }
  __syncthreads();
  UNROLL
  for (int warp = 0; warp < kWarps; ++warp) {
    range.largest = max(range.largest, largest_smem[warp][in_block]);
  }

  const float scale = fp16x3::scale(range.largest);
  const int64_t tile = row / Presplit::kRows;
  const int plane_bytes = Presplit::plane_bytes(presplit.tile_rows(tile));
  uint8_t* halves = presplit.hi_lo + presplit.step_offset(matrix, tile, k / Presplit::kK) +
                    Presplit::swizzle(row % Presplit::kRows, eight % (Presplit::kK / 8));
  UNROLL
  for (int j = 0; j < kEights; ++j) {
    if (k + j * (kThreadsPerRow * 8) >= presplit.padded_k()) break;
    uint4 hi, lo;
    ptx::split_x2(x[j][0] * scale, x[j][1] * scale, hi.x, lo.x);
    ptx::split_x2(x[j][2] * scale, x[j][3] * scale, hi.y, lo.y);
    ptx::split_x2(x[j][4] * scale, x[j][5] * scale, hi.z, lo.z);
    ptx::split_x2(x[j][6] * scale, x[j][7] * scale, hi.w, lo.w);
    uint8_t* step = halves + j * (kThreadsPerRow * 8 / Presplit::kK) * 2 * plane_bytes;
    *reinterpret_cast<uint4*>(step) = hi;
    *reinterpret_cast<uint4*>(step + plane_bytes) = lo;
  }
  if (threadIdx.x < kRows) {
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      range.smallest = min(range.smallest, smallest_smem[warp][in_block]);
    }
    presplit
        .inverse_scales[matrix * presplit.matrix_groups() + chunk * presplit.padded_rows() + row] =
        range.inverse_scale(scale);
  }
}

Job make_job(const Operand& operand) {
  const Matrix& matrix = operand.matrix;
  Job job;
  job.operand = operand;
  job.vectors =
      is_vector_aligned<float4>(operand.batch, matrix, matrix.col_stride, matrix.row_stride);
  job.row_blocks = static_cast<unsigned>(operand.presplit.padded_rows() / kRows);
  job.chunks = static_cast<unsigned>(ceil_div(operand.presplit.k, kChunk));
  job.blocks = static_cast<unsigned>(job.row_blocks * job.chunks * operand.batch.count);
  return job;
}

}  // namespace

// A block reads at least 8 * kMinK elements: no memory holds an operand of more blocks than a grid
// can have.
void launch_split(std::span<const Operand> operands, std::span<int> zeroed,
                  const Context& context) {
  Jobs jobs{};
  unsigned blocks = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    jobs.job[i] = make_job(operands[i]);
    blocks += jobs.job[i].blocks;
  }
  split_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
      jobs, zeroed.data(), static_cast<int64_t>(zeroed.size()));
  check(cudaGetLastError());
}

}  // namespace tiled::cuda
