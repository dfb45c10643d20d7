// Splits float32 operands into hi and lo fp16 parts, reading each element once.
//
// A block takes kRows rows of one chunk. It keeps them in registers while it finds the largest
// magnitude of each row; then it scales, splits and writes them as core/presplit.h lays them out. A
// thread takes eight elements along K at a time, which are 16 bytes of each plane. Adjacent threads
// take adjacent rows, so MN-major operands are read by whole 32-byte sectors; of K-major ones the
// four groups of eight threads of a warp read a cache line of each of eight rows.

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
constexpr int kVectors = kChunk / 8 / kThreadsPerRow;  // of eight elements, a thread
static_assert(kThreadsPerRow % (Presplit::kK / 8) == 0, "a thread's vectors are whole steps apart");

struct OperandParams {
  OperandToSplit operand;
  bool vectorized = false;  // 128-bit loads along K
  unsigned row_blocks = 0, chunks = 0, blocks = 0;
};

struct SplitParams {
  OperandParams operands[2];
};

__global__ void __launch_bounds__(kThreads, 4)
    split_kernel(const __grid_constant__ SplitParams params, int* zeroed, int64_t zeros) {
  ptx::pdl_launch_dependents();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < zeros; i += gridDim.x * kThreads) {
    zeroed[i] = 0;
  }
  const bool second = blockIdx.x >= params.operands[0].blocks;
  const OperandParams& own = params.operands[second];
  const Presplit& presplit = own.operand.presplit;
  const Matrix& source = own.operand.matrix;
  const unsigned block = second ? blockIdx.x - params.operands[0].blocks : blockIdx.x;
  const unsigned matrix = block / own.row_blocks / own.chunks;
  const int64_t chunk = block / own.row_blocks % own.chunks;
  const int block_row = threadIdx.x % kRows;
  const int64_t row = int64_t{block % own.row_blocks} * kRows + block_row;
  const int k8 = threadIdx.x / kRows;  // the thread's first vector of the chunk
  const int64_t k = chunk * kChunk + k8 * 8;

  Range range;
  float x[kVectors][8];
  const float* data = static_cast<const float*>(source.data) +
                      batch_offset(own.operand.batch, source, matrix) + row * source.row_stride +
                      k * source.col_stride;
  const int64_t left = row < presplit.rows ? presplit.k - k : 0;
  UNROLL
  for (int j = 0; j < kVectors; ++j) {
    load_x8(x[j], data + j * (kThreadsPerRow * 8) * source.col_stride, source.col_stride,
            left - j * (kThreadsPerRow * 8), own.vectorized);
  }
  range.add_row<kRows>(x);
  __shared__ uint32_t largest_smem[kWarps][kRows], smallest_smem[kWarps][kRows];
  if (threadIdx.x % 32 < kRows) {
    largest_smem[threadIdx.x / 32][block_row] = range.largest;
    smallest_smem[threadIdx.x / 32][block_row] = range.smallest;
  }
  __shared__ float inverse_scales[kRows];
  if (threadIdx.x < kRows) inverse_scales[block_row] = 0;
  __syncthreads();
  UNROLL
  for (int warp = 0; warp < kWarps; ++warp) {
    range.add({largest_smem[warp][block_row], smallest_smem[warp][block_row]});
  }

  const float scale = fp16x3::scale(range.largest);
  if (__syncthreads_or(range.is_wide(scale))) {
    UNROLL
    for (int j = 0; j < kVectors; ++j) {
      add_small_numbers(&inverse_scales[block_row], count_small_numbers(x[j], scale));
    }
    __syncthreads();
  }
  const int64_t tile = row / Presplit::kRows;
  const int plane_bytes = Presplit::plane_bytes(presplit.tile_rows(tile));
  uint8_t* first_step = presplit.hi_lo + presplit.step_offset(matrix, tile, k / Presplit::kK) +
                        Presplit::swizzle(row % Presplit::kRows, k8 % (Presplit::kK / 8));
  UNROLL
  for (int j = 0; j < kVectors; ++j) {
    if (k + j * (kThreadsPerRow * 8) >= presplit.padded_k()) break;
    uint4 hi, lo;
    ptx::split_x8(x[j], scale, hi, lo);
    uint8_t* step = first_step + j * (kThreadsPerRow * 8 / Presplit::kK) * 2 * plane_bytes;
    *reinterpret_cast<uint4*>(step) = hi;
    *reinterpret_cast<uint4*>(step + plane_bytes) = lo;
  }
  if (threadIdx.x < kRows) {
    store_inverse_scale(&inverse_scales[block_row], range.largest);
    presplit
        .inverse_scales[matrix * presplit.matrix_groups() + chunk * presplit.padded_rows() + row] =
        inverse_scales[block_row];
  }
}

OperandParams make_params(const OperandToSplit& operand) {
  const Matrix& matrix = operand.matrix;
  OperandParams params;
  params.operand = operand;
  params.vectorized =
      is_vector_aligned<float4>(operand.batch, matrix, matrix.col_stride, matrix.row_stride);
  params.row_blocks = static_cast<unsigned>(operand.presplit.padded_rows() / kRows);
  params.chunks = static_cast<unsigned>(ceil_div(operand.presplit.k, kChunk));
  params.blocks = static_cast<unsigned>(params.row_blocks * params.chunks * operand.batch.count);
  return params;
}

}  // namespace

// A block reads at least 8 * kMinK elements, so an operand that fits in memory never needs more
// blocks than a grid can have.
void launch_split(std::span<const OperandToSplit> operands, std::span<int> zeroed,
                  const Context& context) {
  SplitParams params{};
  unsigned blocks = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    params.operands[i] = make_params(operands[i]);
    blocks += params.operands[i].blocks;
  }
  split_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
      params, zeroed.data(), static_cast<int64_t>(zeroed.size()));
  check(cudaGetLastError());
}

}  // namespace tiled::cuda
