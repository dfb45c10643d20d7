// Splits float32 operands for fp16x3: reads each element once, writes two halves.
//
// A block takes some rows of one chunk, holds them in registers while it looks for the largest
// magnitude of each row, scales, splits and writes them as csrc/packed.h says. A thread has eight
// neighbours along K at a time, 16 bytes of each plane.

#include <algorithm>

#include "device/pipeline.cuh"
#include "fp16x3.h"
#include "kernels/fp16x3_parts.h"
#include "launch.h"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kEights = kChunk / 8;

// Where K is contiguous, few rows read long lines; elsewhere more rows do.
constexpr int kRowsAlongK = 8, kRowsAcrossK = 16;

struct Job {
  Operand operand;
  bool along_k = false;
  bool vectors = false;  // 16-byte reads along K
  int64_t blocks = 0;

  HOST_DEVICE int rows() const { return along_k ? kRowsAlongK : kRowsAcrossK; }
};

struct Jobs {
  Job job[2];
};

__device__ void load_eight(float (&x)[8], const float* data, int64_t stride, int64_t left,
                           bool vectors) {
  if (vectors && left >= 8) {
    UNROLL
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(data + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  } else {
    UNROLL
    for (int i = 0; i < 8; ++i) x[i] = i < left ? data[i * stride] : 0.0f;
  }
}

template <int kRows>
__device__ void split(const Job& job, int64_t block) {
  constexpr int kGroups = kThreads / kRows;           // threads that share a row
  constexpr int kPerThread = kEights / kGroups;       // eights a thread
  __shared__ uint32_t largest[kRows];
  __shared__ bool wide[kRows];

  const Packed& packed = job.operand.packed;
  const int64_t row_blocks = ceil_div(packed.padded_rows(), kRows);
  const int64_t chunk = block / row_blocks % ceil_div(packed.k, kChunk);
  const int64_t matrix = block / row_blocks / ceil_div(packed.k, kChunk);
  const int in_block = threadIdx.x % kRows;
  const int64_t row = block % row_blocks * kRows + in_block;
  const Matrix& source = job.operand.matrix;
  const float* data = static_cast<const float*>(source.data) +
                      batch_offset(job.operand.batch, source, matrix) + row * source.row_stride;
  if (threadIdx.x < kRows) largest[threadIdx.x] = 0, wide[threadIdx.x] = false;
  __syncthreads();

  float x[kPerThread][8];
  uint32_t own_largest = 0;
  UNROLL
  for (int j = 0; j < kPerThread; ++j) {
    const int64_t k = chunk * kChunk + (threadIdx.x / kRows + j * kGroups) * 8;
    const int64_t left = row < packed.rows ? packed.k - k : 0;
    load_eight(x[j], data + k * source.col_stride, source.col_stride, left, job.vectors);
  }
  UNROLL
  for (int j = 0; j < kPerThread; ++j) {
    UNROLL
    for (int i = 0; i < 8; ++i) own_largest = max(own_largest, fp16x3::magnitude_bits(x[j][i]));
  }
  UNROLL
  for (int lanes = kRows; lanes < 32; lanes *= 2) {
    own_largest = max(own_largest, __shfl_xor_sync(~0u, own_largest, lanes));
  }
  if (threadIdx.x % 32 < kRows) atomicMax(&largest[in_block], own_largest);
  __syncthreads();

  const float scale = fp16x3::scale(largest[in_block]);
  const int64_t tile = row / Packed::kRows;
  const int tile_rows = packed.tile_rows(tile);
  bool own_wide = false;
  UNROLL
  for (int j = 0; j < kPerThread; ++j) {
    const int eight = threadIdx.x / kRows + j * kGroups;
    alignas(16) Half hi[8], lo[8];
    UNROLL
    for (int i = 0; i < 8; ++i) {
      const float scaled = x[j][i] * scale;
      own_wide |= fp16x3::is_wide(x[j][i], scaled);
      const fp16x3::Split halves = fp16x3::split(scaled);
      hi[i] = halves.hi, lo[i] = halves.lo;
    }
    const int64_t k = chunk * kChunk + eight * 8;
    if (row >= packed.padded_rows() || k >= packed.padded_k()) continue;
    uint8_t* step = packed.halves + packed.step_offset(matrix, tile, k / Packed::kK) +
                    Packed::swizzle(row % Packed::kRows, eight % (Packed::kK / 8));
    *reinterpret_cast<uint4*>(step) = *reinterpret_cast<const uint4*>(hi);
    *reinterpret_cast<uint4*>(step + Packed::plane_bytes(tile_rows)) =
        *reinterpret_cast<const uint4*>(lo);
  }
  if (own_wide) wide[in_block] = true;
  __syncthreads();
  if (threadIdx.x < kRows && row < packed.padded_rows()) {
    packed.undo[matrix * packed.matrix_groups() + chunk * packed.padded_rows() + row] =
        fp16x3::undo_scale(largest[in_block], wide[in_block]);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    split_kernel(const __grid_constant__ Jobs jobs, int64_t first_block, int* zeroed) {
  device::let_next_kernel_start();
  int64_t block = first_block + blockIdx.x;
  if (block == 0 && threadIdx.x == 0 && zeroed != nullptr) *zeroed = 0;
  const bool second = block >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  if (second) block -= jobs.job[0].blocks;
  if (job.along_k) {
    split<kRowsAlongK>(job, block);
  } else {
    split<kRowsAcrossK>(job, block);
  }
}

Job make_job(const Operand& operand) {
  const Matrix& matrix = operand.matrix;
  Job job;
  job.operand = operand;
  job.along_k = matrix.col_stride < matrix.row_stride;
  auto by_four = [](int64_t stride) { return stride % 4 == 0; };
  job.vectors = matrix.col_stride == 1 && by_four(matrix.row_stride) &&
                std::all_of(matrix.batch_stride, matrix.batch_stride + operand.batch.rank, by_four) &&
                reinterpret_cast<uintptr_t>(matrix.data) % sizeof(float4) == 0;
  job.blocks = ceil_div(operand.packed.padded_rows(), job.rows()) *
               ceil_div(operand.packed.k, kChunk) * operand.batch.count;
  return job;
}

}  // namespace

void launch_split(std::span<const Operand> operands, int* zeroed, const Context& context) {
  Jobs jobs{};
  int64_t blocks = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    jobs.job[i] = make_job(operands[i]);
    blocks += jobs.job[i].blocks;
  }
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  for (int64_t first = 0; first < blocks; first += kMaxGrid) {
    const auto grid = static_cast<unsigned>(std::min(blocks - first, kMaxGrid));
    split_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(jobs, first,
                                                                                  zeroed);
    check(cudaGetLastError());
  }
}

}  // namespace tiled::cuda
