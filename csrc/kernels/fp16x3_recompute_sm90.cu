// Computes the elements again that fp16x3 has marked, in the order of csrc/sum.h.
//
// A piece of the list is 16 x 128 elements of C; a block works on a quarter of its columns. Rows of
// A and columns of B come to shared memory by asynchronous copies, two steps ahead, through any
// strides; a thread sums four rows of one column. How many pieces there are, only the GPU knows:
// the grid is fixed and walks the list.

#include <cuda_pipeline.h>

#include "device/pipeline.cuh"
#include "epilogue.h"
#include "kernels/fp16x3_parts.h"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = Marks::kRows, kN = 32, kK = 64;
  static constexpr int kQuarters = Marks::kCols / kN;
  static constexpr int kPerThread = 4;  // rows
  static constexpr int kThreads = kM * kN / kPerThread;
  static constexpr int kStages = 3;
  static constexpr int kBlocks = 5;  // on a multiprocessor
  static constexpr int kPitchA = kK + 4, kPitchB = kN + 1;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

struct Smem {
  alignas(16) float a[Tile::kStages][Tile::kM][Tile::kPitchA];  // (kM, kK)
  float b[Tile::kStages][Tile::kK][Tile::kPitchB];              // (kK, kN)
};

// Copies (outers, kK) elements at `data`; of them outer_left and k_left are in the matrix, and no
// others are touched. Neighbouring threads follow the smaller stride.
template <int kOuters, typename To>
__device__ void copy_step(const float* data, int64_t outer_stride, int64_t k_stride,
                          int outer_left, int k_left, To to) {
  const bool along_k = k_stride < outer_stride;
  _Pragma("unroll 4") for (int i = threadIdx.x; i < kOuters * Tile::kK; i += Tile::kThreads) {
    const int outer = along_k ? i / Tile::kK : i % kOuters;
    const int k = along_k ? i % Tile::kK : i / kOuters;
    if (outer < outer_left && k < k_left) {
      __pipeline_memcpy_async(to(outer, k), data + outer * outer_stride + k * k_stride,
                              sizeof(float));
    }
  }
}

// The thread's elements of the quarter that are marked, as bits.
__device__ int marked_rows(const Marks::Piece& piece, int quarter, int first_row, int col) {
  int rows = 0;
  UNROLL
  for (int r = 0; r < Tile::kPerThread; ++r) {
    const int row = first_row + r;
    const int lane = row % 8 * 4 + col % 8 / 2;
    const int element = quarter * 16 + col / 8 * 4 + row / 8 * 2 + col % 2;
    rows |= static_cast<int>(piece.elements[lane] >> element & 1) << r;
  }
  return rows;
}

__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recompute_kernel(const __grid_constant__ Problem p, Marks marks) {
  __shared__ Smem smem;
  device::wait_for_previous_kernel();
  const int64_t units = int64_t{*marks.count} * Tile::kQuarters;
  const int first_row = threadIdx.x / Tile::kN * Tile::kPerThread;
  const int col = threadIdx.x % Tile::kN;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Marks::Piece& piece = marks.pieces[unit / Tile::kQuarters];
    const int quarter = static_cast<int>(unit % Tile::kQuarters);
    const int rows = marked_rows(piece, quarter, first_row, col);
    if (!__syncthreads_or(rows)) continue;
    const bool warp_has_work = __any_sync(~0u, rows != 0);

    const int64_t tile_row = piece.row, tile_col = piece.col + quarter * Tile::kN;
    const int rows_left = static_cast<int>(min(p.m - tile_row, int64_t{Tile::kM}));
    const int cols_left = static_cast<int>(min(p.n - tile_col, int64_t{Tile::kN}));
    const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, piece.batch) +
                     tile_row * p.a.row_stride;
    const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, piece.batch) +
                     tile_col * p.b.col_stride;
    const int64_t steps = ceil_div(p.k, Tile::kK);
    auto steps_of = [&](int64_t step) {
      return static_cast<int>(min(p.k - step * Tile::kK, int64_t{Tile::kK}));
    };
    auto load = [&](int64_t step) {
      if (step < steps) {
        const int stage = static_cast<int>(step % Tile::kStages);
        copy_step<Tile::kM>(a + step * Tile::kK * p.a.col_stride, p.a.row_stride, p.a.col_stride,
                            rows_left, steps_of(step),
                            [&](int row, int k) { return &smem.a[stage][row][k]; });
        copy_step<Tile::kN>(b + step * Tile::kK * p.b.row_stride, p.b.col_stride, p.b.row_stride,
                            cols_left, steps_of(step),
                            [&](int n, int k) { return &smem.b[stage][k][n]; });
      }
      __pipeline_commit();
    };

    float total[Tile::kPerThread], acc[Tile::kPerThread] = {};
    UNROLL
    for (float& each : total) each = kEmptyTotal<float>;
    for (int step = 0; step < Tile::kStages - 1; ++step) load(step);
    for (int64_t step = 0; step < steps; ++step) {
      __pipeline_wait_prior(Tile::kStages - 2);
      __syncthreads();  // the step is there, and the one before has been read
      load(step + Tile::kStages - 1);
      const int stage = static_cast<int>(step % Tile::kStages);
      if (warp_has_work) {
        auto multiply = [&](int k) {
          UNROLL
          for (int r = 0; r < Tile::kPerThread; ++r) {
            acc[r] = multiply_add(smem.a[stage][first_row + r][k], smem.b[stage][k][col], acc[r]);
          }
        };
        if (steps_of(step) == Tile::kK) {
          _Pragma("unroll 16") for (int k = 0; k < Tile::kK; ++k) multiply(k);
        } else {
          _Pragma("unroll 1") for (int k = 0; k < steps_of(step); ++k) multiply(k);
        }
      }
      if ((step + 1) % (kChunk / Tile::kK) == 0 || step + 1 == steps) {
        UNROLL
        for (int r = 0; r < Tile::kPerThread; ++r) total[r] += acc[r], acc[r] = 0;
      }
    }
    const int64_t c_offset = batch_offset(p.batch, p.c, piece.batch);
    UNROLL
    for (int r = 0; r < Tile::kPerThread; ++r) {
      if (rows >> r & 1) {
        store<float>(p, c_offset, tile_row + first_row + r, tile_col + col, total[r]);
      }
    }
    __syncthreads();  // the last step has been read
  }
}

}  // namespace

void launch_recompute(const Problem& p, const Marks& marks, const Context& context) {
  const int64_t most = Marks::capacity(p) * Tile::kQuarters;
  const int64_t fit = int64_t{context.processors} * Tile::kBlocks;
  launch_after(recompute_kernel, static_cast<unsigned>(std::min(most, fit)), Tile::kThreads, 0,
               context, p, marks);
}

}  // namespace tiled::cuda
