// Computes the elements again that fp16x3 has marked, in the order of csrc/sum.h.
//
// A block takes a piece of the list, 16 rows x 128 columns of C, and a thread one column of it.
// Rows of A and columns of B come to shared memory by asynchronous copies, some steps ahead,
// through any strides; rows without a mark are left out. How many pieces there are, only the GPU
// knows: the grid is fixed and walks the list.

#include <cuda_pipeline.h>

#include "device/pipeline.cuh"
#include "epilogue.h"
#include "kernels/fp16x3_parts.h"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = Marks::kRows, kN = Marks::kCols, kK = 32;
  static constexpr int kThreads = kN;
  static constexpr int kStages = 3;
  static constexpr int kBlocks = 4;  // on a multiprocessor
  static constexpr int kUnroll = 8;  // of K
  static constexpr int kPitchA = kK + 4, kPitchB = kN + 1;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

struct Smem {
  alignas(16) float a[Tile::kStages][Tile::kM][Tile::kPitchA];  // (kM, kK)
  float b[Tile::kStages][Tile::kK][Tile::kPitchB];              // (kK, kN)
};

// Copies steps of (kOuters, kK) elements along K to shared memory, where element (outer, k) lies
// at outer * kOuterPitch + k * kKPitch. Neighbouring threads follow the smaller stride. What is
// beyond the matrix is not touched, here or there.
template <int kOuters, int kOuterPitch, int kKPitch>
class Copier {
 public:
  __device__ Copier(const float* data, int64_t outer_stride, int64_t k_stride, int64_t outer_left)
      : k_stride_(k_stride) {
    const bool along_k = k_stride < outer_stride;
    const int thread = threadIdx.x;
    outer_ = along_k ? thread / Tile::kK : thread % kOuters;
    k_ = along_k ? thread % Tile::kK : thread / kOuters;
    outer_step_ = along_k ? Tile::kThreads / Tile::kK : 0;
    k_step_ = along_k ? 0 : Tile::kThreads / kOuters;
    outer_left_ = static_cast<int>(min(outer_left, int64_t{kOuters}));
    data_ = data + outer_ * outer_stride + k_ * k_stride;
    step_ = outer_step_ * outer_stride + k_step_ * k_stride;
  }

  // Copies the next step, of which k_left are in the matrix.
  __device__ void copy(float* smem, int k_left) {
    const float* from = data_;
    _Pragma("unroll 4") for (int i = 0; i < kOuters * Tile::kK / Tile::kThreads; ++i) {
      const int outer = outer_ + i * outer_step_, k = k_ + i * k_step_;
      if (outer < outer_left_ && k < k_left) {
        __pipeline_memcpy_async(smem + outer * kOuterPitch + k * kKPitch, from, sizeof(float));
      }
      from += step_;
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  static_assert(Tile::kThreads % kOuters == 0 && Tile::kThreads % Tile::kK == 0);
  const float* data_;
  int64_t k_stride_, step_;
  int outer_, k_, outer_step_, k_step_, outer_left_;
};

// The rows in which the thread's column has a mark, as bits.
__device__ unsigned marked_rows(const Marks::Piece& piece, int col) {
  unsigned rows = 0;
  UNROLL
  for (int row = 0; row < Tile::kM; ++row) {
    const uint64_t elements = piece.elements[row % 8 * 4 + col % 8 / 2];
    rows |= static_cast<unsigned>(elements >> (col / 8 * 4 + row / 8 * 2 + col % 2) & 1) << row;
  }
  return rows;
}

__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recompute_kernel(const __grid_constant__ Problem p, Marks marks) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  __shared__ unsigned block_rows;
  device::wait_for_previous_kernel();
  const int pieces = *marks.count;
  const int col = threadIdx.x;
  for (int index = blockIdx.x; index < pieces; index += gridDim.x) {
    const Marks::Piece& piece = marks.pieces[index];
    const unsigned own_rows = marked_rows(piece, col);
    if (threadIdx.x == 0) block_rows = 0;
    __syncthreads();
    atomicOr(&block_rows, own_rows);
    __syncthreads();
    const unsigned rows = block_rows;

    const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, piece.batch);
    const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, piece.batch);
    Copier<Tile::kM, Tile::kPitchA, 1> copy_a(a + piece.row * p.a.row_stride, p.a.row_stride,
                                              p.a.col_stride, p.m - piece.row);
    Copier<Tile::kN, 1, Tile::kPitchB> copy_b(b + piece.col * p.b.col_stride, p.b.col_stride,
                                              p.b.row_stride, p.n - piece.col);
    const int64_t steps = ceil_div(p.k, Tile::kK);
    auto left = [&](int64_t step) {
      return static_cast<int>(min(p.k - step * Tile::kK, int64_t{Tile::kK}));
    };
    int to_fill = 0;
    auto load = [&](int64_t step) {
      if (step < steps) {
        copy_a.copy(&smem.a[to_fill][0][0], left(step));
        copy_b.copy(&smem.b[to_fill][0][0], left(step));
      }
      __pipeline_commit();
      to_fill = to_fill + 1 == Tile::kStages ? 0 : to_fill + 1;
    };

    float total[Tile::kM], acc[Tile::kM];
    UNROLL
    for (int row = 0; row < Tile::kM; ++row) total[row] = kEmptyTotal<float>, acc[row] = 0;
    for (int step = 0; step < Tile::kStages - 1; ++step) load(step);
    int stage = 0;
    for (int64_t step = 0; step < steps; ++step) {
      __pipeline_wait_prior(Tile::kStages - 2);
      __syncthreads();  // the step is there, and the one before has been read
      load(step + Tile::kStages - 1);
      // kCount of K, for all rows that have a mark.
      auto multiply = [&]<int kCount>(int k) {
        float b_frag[kCount];
        UNROLL
        for (int i = 0; i < kCount; ++i) b_frag[i] = smem.b[stage][k + i][col];
        UNROLL
        for (int row = 0; row < Tile::kM; ++row) {
          if ((rows >> row & 1) == 0) continue;
          float a_frag[kCount];
          UNROLL
          for (int i = 0; i < kCount; ++i) a_frag[i] = smem.a[stage][row][k + i];
          UNROLL
          for (int i = 0; i < kCount; ++i) acc[row] = multiply_add(a_frag[i], b_frag[i], acc[row]);
        }
      };
      const int count = left(step);
      int k = 0;
      NO_UNROLL
      for (; k + Tile::kUnroll <= count; k += Tile::kUnroll) {
        multiply.template operator()<Tile::kUnroll>(k);
      }
      NO_UNROLL
      for (; k < count; ++k) multiply.template operator()<1>(k);
      stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
      if ((step + 1) % (kChunk / Tile::kK) == 0 || step + 1 == steps) {
        UNROLL
        for (int row = 0; row < Tile::kM; ++row) total[row] += acc[row], acc[row] = 0;
      }
    }

    // By way of shared memory, so that the loop stays a loop.
    __syncthreads();  // the last step has been read
    float(&sums)[Tile::kM][Tile::kN] = *reinterpret_cast<float(*)[Tile::kM][Tile::kN]>(&smem);
    UNROLL
    for (int row = 0; row < Tile::kM; ++row) sums[row][col] = total[row];
    const int64_t c_offset = batch_offset(p.batch, p.c, piece.batch);
    NO_UNROLL
    for (int row = 0; row < Tile::kM; ++row) {
      if ((own_rows >> row & 1) == 0) continue;
      store<float>(p, c_offset, piece.row + row, piece.col + col, sums[row][col]);
    }
    __syncthreads();  // the sums have been read
  }
}

}  // namespace

void launch_recompute(const Problem& p, const Marks& marks, const Context& context) {
  check(cudaFuncSetAttribute(recompute_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Smem)));
  const int64_t fit = int64_t{context.processors} * Tile::kBlocks;
  launch_after(recompute_kernel, static_cast<unsigned>(std::min(Marks::capacity(p), fit)),
               Tile::kThreads, sizeof(Smem), context, p, marks);
}

}  // namespace tiled::cuda
