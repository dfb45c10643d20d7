// Scales float32 operands and rounds them to fp16 for tf32_tma.
//
// Idea:  A scale depends on a chunk of 8192 of K. A block keeps an eighth of a chunk, of eight
//        rows, in registers, and the blocks of a cluster exchange the ranges of their rows through
//        distributed shared memory. So each element is read once.
//
// Limit: DRAM latency. A block issues all its loads at once, and then none until it ends.
//
// Next:  persistent blocks that load their next rows early; for few rows, scaling in the kernel
//        that multiplies.
//
//   each block   load 1024 of K of eight rows -> registers; their ranges -> the seven other blocks
//                cluster barrier
//                scale, round, store fp16 and the inverse scales

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

// Adjacent threads have adjacent rows, and eight elements of each along K at a time.
constexpr int kRows = ScaledOperand::kRows;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kNext = kThreads / kRows * 8;  // along K, from a thread's vector to its next
constexpr int kVectors = 4, kBlockK = kNext * kVectors;
using Range = BasicRange</*kHasBits=*/false>;
constexpr int kMaxCluster = mma_order::kChunk / kBlockK;
static_assert(kMaxCluster == 8, "the largest portable cluster");
static_assert(kBlockK % ScaledOperand::kStep == 0, "a row's padding is in its last cluster");

struct OperandParams {
  ScaledOperand x;
  bool vectorized;  // 16-byte loads along K
  unsigned row_blocks, chunks, clusters;
};

struct Params {
  OperandParams operand[2];
  unsigned cluster;
  int* zeroed;
  int64_t zeros;
};

__global__ void __launch_bounds__(kThreads, 4) scale_kernel(const __grid_constant__ Params params) {
  __shared__ uint32_t largest_of[kWarps][kRows], smallest_of[kWarps][kRows];
  __shared__ Range ranges[kMaxCluster][kRows];
  __shared__ float inverse_scales[kRows];
  if (threadIdx.x < kRows) inverse_scales[threadIdx.x] = 0;
  ptx::cluster_arrive();
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();
  unsigned cluster = blockIdx.x / params.cluster;
  const unsigned rank = blockIdx.x % params.cluster;
  const bool second = cluster >= params.operand[0].clusters;
  if (second) cluster -= params.operand[0].clusters;
  const OperandParams& operand = params.operand[second];
  const ScaledOperand& x = operand.x;
  const int64_t matrix = cluster / operand.row_blocks / operand.chunks;
  const int64_t chunk = cluster / operand.row_blocks % operand.chunks;
  const int in_block = threadIdx.x % kRows;
  const int64_t row = int64_t{cluster % operand.row_blocks} * kRows + in_block;
  const int64_t k = chunk * mma_order::kChunk + rank * kBlockK + threadIdx.x / kRows * 8;

  Range range;
  float own[kVectors][8];
  const float* from = static_cast<const float*>(x.from.data) +
                      batch_offset(x.batch, x.from, matrix) + row * x.from.row_stride +
                      k * x.from.col_stride;
  const int64_t left = row < x.rows ? x.k - k : 0;
  UNROLL
  for (int j = 0; j < kVectors; ++j) {
    load_x8(own[j], from + j * kNext * x.from.col_stride, x.from.col_stride, left - j * kNext,
            operand.vectorized);
  }
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < params.zeros;
       i += gridDim.x * kThreads) {
    params.zeroed[i] = 0;
  }
  range.add_row<kRows>(own);
  if (threadIdx.x % 32 < kRows) {
    largest_of[threadIdx.x / 32][in_block] = range.largest;
    smallest_of[threadIdx.x / 32][in_block] = range.smallest;
  }
  __syncthreads();
  ptx::cluster_wait();
  if (threadIdx.x < kRows * params.cluster) {  // the block's ranges, to each block of the cluster
    Range of_row;
    UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      of_row.add({largest_of[warp][in_block], smallest_of[warp][in_block]});
    }
    *ptx::map_shared_rank(&ranges[rank][in_block], threadIdx.x / kRows) = of_row;
  }
  ptx::cluster_sync();
  for (unsigned other = 0; other < params.cluster; ++other) range.add(ranges[other][in_block]);

  const float scale = fp16x3::scale(range.largest);
  if (row < x.rows) {
    uint16_t* to = x.fp16 + matrix * x.matrix_elements() + row * x.pitch() + k;
    UNROLL
    for (int j = 0; j < kVectors; ++j) {
      if (k + j * kNext >= x.pitch()) break;
      uint32_t x2[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        x2[i] = ptx::pack_x2(own[j][i * 2] * scale, own[j][i * 2 + 1] * scale);
      }
      *reinterpret_cast<uint4*>(to + j * kNext) = make_uint4(x2[0], x2[1], x2[2], x2[3]);
    }
  }
  // All blocks of a cluster know the same ranges, and so agree on whether rows are wide.
  if (__syncthreads_or(range.is_wide(scale))) {
    UNROLL
    for (int j = 0; j < kVectors; ++j) {
      add_small_numbers(&inverse_scales[in_block], count_small_numbers(own[j], scale));
    }
    ptx::cluster_sync();
    if (rank == 0 && threadIdx.x < kRows) {
      for (unsigned other = 1; other < params.cluster; ++other) {
        const uint32_t bits = bits_of(*ptx::map_shared_rank(&inverse_scales[in_block], other));
        add_small_numbers(&inverse_scales[in_block], bits & fp16x3::kSmallNumbers);
      }
    }
    ptx::cluster_sync();  // a block may not end while its shared memory is read
  }
  if (rank == 0 && threadIdx.x < kRows) {
    store_inverse_scale(&inverse_scales[in_block], range.largest, /*coarse=*/false);
    x.inverse_scales[matrix * x.matrix_groups() + chunk * x.padded_rows() + row] =
        inverse_scales[in_block];
  }
}

}  // namespace

// The grid is large enough: a block reads 8 * tf32::kMinK elements at least, and no memory holds
// an operand of more than 2^31 such blocks.
void launch_scale(const ScaledOperand& a, const ScaledOperand& b, std::span<int> zeroed,
                  const Context& context) {
  const auto operand_params = [](const ScaledOperand& x) {
    const auto row_blocks = static_cast<unsigned>(x.padded_rows() / kRows);
    const auto chunks = static_cast<unsigned>(ceil_div(x.k, mma_order::kChunk));
    return OperandParams{
        .x = x,
        .vectorized =
            is_vector_aligned<float4>(x.batch, x.from, x.from.col_stride, x.from.row_stride),
        .row_blocks = row_blocks,
        .chunks = chunks,
        .clusters = static_cast<unsigned>(row_blocks * chunks * x.batch.count),
    };
  };
  const Params params{
      .operand = {operand_params(a), operand_params(b)},
      .cluster = static_cast<unsigned>(std::min<int64_t>(ceil_div(a.k, kBlockK), kMaxCluster)),
      .zeroed = zeroed.data(),
      .zeros = static_cast<int64_t>(zeroed.size()),
  };
  const unsigned blocks =
      (params.operand[0].clusters + params.operand[1].clusters) * params.cluster;
  launch_clusters_pdl(scale_kernel, params.cluster, blocks, kThreads, 0, context, params);
}

}  // namespace tiled::cuda
