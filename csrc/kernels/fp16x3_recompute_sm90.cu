// Computes the elements again that fp16x3 has marked, in the order of csrc/sum.h.
//
// A block takes a piece of the list, 16 rows x 128 columns of C. Its four teams of threads take a
// chunk of K each and a thread one column; then the chunks' sums are added in order, and the teams
// take the next four chunks. Rows of A and columns of B come to shared memory by asynchronous
// copies, some steps ahead, through any strides; rows without a mark are left out. How many pieces
// there are, only the GPU knows: the grid is fixed and walks the list.

#include <cuda_pipeline.h>

#include "device/pipeline.cuh"
#include "epilogue.h"
#include "kernels/fp16x3_parts.h"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = Marks::kRows, kN = Marks::kCols, kK = 16;
  static constexpr int kTeams = 4, kTeam = kN;
  static constexpr int kThreads = kTeams * kTeam;
  static constexpr int kRowsPerTeam = kM / kTeams;  // where chunks are added
  static constexpr int kStages = 5;
  // Rows are longer than they need be, so that a column's elements lie in different banks.
  static constexpr int kPitchA = kK + 4, kPitchB = kN + 4;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

struct Smem {
  alignas(16) float a[Tile::kTeams][Tile::kStages][Tile::kM][Tile::kPitchA];  // (kM, kK)
  alignas(16) float b[Tile::kTeams][Tile::kStages][Tile::kK][Tile::kPitchB];  // (kK, kN)
  float sums[Tile::kTeams][Tile::kM][Tile::kN];                               // of a chunk each
};

// Copies steps of (kOuters, kK) elements along K to shared memory, where element (outer, k) lies
// at outer * kOuterPitch + k * kKPitch. Neighbouring threads follow the smaller stride. What is
// beyond the matrix is not touched, here or there.
template <int kOuters, int kOuterPitch, int kKPitch>
class Copier {
 public:
  __device__ Copier(const float* data, int64_t outer_stride, int64_t k_stride, int64_t outer_left,
                    bool four_outers)
      : k_stride_(k_stride), outer_left_(min(outer_left, int64_t{kOuters})) {
    const int thread = threadIdx.x % Tile::kTeam;
    four_ = four_outers && outer_left >= kOuters;
    const bool along_k = k_stride < outer_stride;
    const int width = four_ ? 4 : 1;
    outer_ = along_k ? thread / Tile::kK : thread % (kOuters / width) * width;
    k_ = along_k ? thread % Tile::kK : thread / (kOuters / width);
    outer_step_ = along_k ? Tile::kTeam / Tile::kK : 0;
    k_step_ = along_k ? 0 : Tile::kTeam / (kOuters / width);
    data_ = data + outer_ * outer_stride + k_ * k_stride;
    step_ = outer_step_ * outer_stride + k_step_ * k_stride;
  }

  // Copies the next step, of which k_left are in the matrix.
  __device__ void copy(float* smem, int k_left) {
    const float* from = data_;
    float* to = smem + outer_ * kOuterPitch + k_ * kKPitch;
    const int to_step = outer_step_ * kOuterPitch + k_step_ * kKPitch;
    int outer = outer_, k = k_;
    auto each = [&]<int kWidth>() {
      UNROLL
      for (int i = 0; i < kOuters * Tile::kK / Tile::kTeam / kWidth; ++i) {
        if (outer < outer_left_ && k < k_left) {
          __pipeline_memcpy_async(to, from, kWidth * sizeof(float));
        }
        from += step_, to += to_step, outer += outer_step_, k += k_step_;
      }
    };
    if (four_) {
      each.template operator()<4>();
    } else {
      each.template operator()<1>();
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  static_assert(Tile::kTeam % kOuters == 0 && Tile::kTeam % Tile::kK == 0);
  const float* data_;
  int64_t k_stride_, step_;
  int outer_, k_, outer_step_, k_step_;
  int64_t outer_left_;
  bool four_;  // neighbours at a time, aligned
};

// The rows in which a column has a mark, as bits.
__device__ unsigned marked_rows(const Marks::Piece& piece, int col) {
  unsigned rows = 0;
  UNROLL
  for (int row = 0; row < Tile::kM; ++row) {
    const uint64_t elements = piece.elements[row % 8 * 4 + col % 8 / 2];
    rows |= static_cast<unsigned>(elements >> (col / 8 * 4 + row / 8 * 2 + col % 2) & 1) << row;
  }
  return rows;
}

// A team's chunk of the sums of one column, to smem.sums.
__device__ void sum_chunk(const Problem& p, const Marks::Piece& piece, int64_t chunk, unsigned rows,
                          bool four_columns, Smem& smem) {
  const int team = threadIdx.x / Tile::kTeam, col = threadIdx.x % Tile::kTeam;
  const int64_t begin = chunk * kChunk;
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, piece.batch) +
                   piece.row * p.a.row_stride + begin * p.a.col_stride;
  const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, piece.batch) +
                   piece.col * p.b.col_stride + begin * p.b.row_stride;
  Copier<Tile::kM, Tile::kPitchA, 1> copy_a(a, p.a.row_stride, p.a.col_stride, p.m - piece.row,
                                            false);
  Copier<Tile::kN, 1, Tile::kPitchB> copy_b(b, p.b.col_stride, p.b.row_stride, p.n - piece.col,
                                            four_columns);
  const int length = static_cast<int>(min(p.k - begin, int64_t{kChunk}));
  int loaded = 0, to_fill = 0;
  auto load_step = [&] {
    if (loaded < length) {
      copy_a.copy(&smem.a[team][to_fill][0][0], length - loaded);
      copy_b.copy(&smem.b[team][to_fill][0][0], length - loaded);
    }
    __pipeline_commit();
    loaded += Tile::kK;
    to_fill = to_fill + 1 == Tile::kStages ? 0 : to_fill + 1;
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) load_step();

  float(&sums)[Tile::kM][Tile::kN] = smem.sums[team];
  for (unsigned left = rows; left != 0; left &= left - 1) sums[__ffs(left) - 1][col] = 0;
  int stage = 0;
  for (int step = 0; step < length; step += Tile::kK) {
    __pipeline_wait_prior(Tile::kStages - 2);
    device::sync_threads(1 + team, Tile::kTeam);  // the step is there, the one before was read
    load_step();
    // kCount of K, for all rows that have a mark.
    auto multiply = [&]<int kCount>(int k) {
      float b_frag[kCount];
      UNROLL
      for (int i = 0; i < kCount; ++i) b_frag[i] = smem.b[team][stage][k + i][col];
      for (unsigned left = rows; left != 0; left &= left - 1) {
        const int row = __ffs(left) - 1;
        float acc = sums[row][col];
        UNROLL
        for (int i = 0; i < kCount; ++i) {
          acc = multiply_add(smem.a[team][stage][row][k + i], b_frag[i], acc);
        }
        sums[row][col] = acc;
      }
    };
    if (length - step >= Tile::kK) {
      multiply.template operator()<Tile::kK>(0);
    } else {
      NO_UNROLL
      for (int k = 0; k < length - step; ++k) multiply.template operator()<1>(k);
    }
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    recompute_kernel(const __grid_constant__ Problem p, Marks marks, bool four_columns) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  __shared__ unsigned block_rows;
  device::wait_for_previous_kernel();
  const int pieces = *marks.count;
  const int team = threadIdx.x / Tile::kTeam, col = threadIdx.x % Tile::kTeam;
  const int64_t chunks = ceil_div(p.k, kChunk);
  for (int index = blockIdx.x; index < pieces; index += gridDim.x) {
    const Marks::Piece& piece = marks.pieces[index];
    const unsigned col_rows = marked_rows(piece, col);
    if (threadIdx.x == 0) block_rows = 0;
    __syncthreads();
    atomicOr(&block_rows, col_rows);
    __syncthreads();

    float total[Tile::kRowsPerTeam];  // of rows team * kRowsPerTeam and on
    UNROLL
    for (float& each : total) each = kEmptyTotal<float>;
    for (int64_t first = 0; first < chunks; first += Tile::kTeams) {
      if (first + team < chunks) {
        sum_chunk(p, piece, first + team, block_rows, four_columns, smem);
      }
      __syncthreads();  // the sums are there
      for (int i = 0; i < Tile::kTeams && first + i < chunks; ++i) {
        UNROLL
        for (int r = 0; r < Tile::kRowsPerTeam; ++r) {
          total[r] += smem.sums[i][team * Tile::kRowsPerTeam + r][col];
        }
      }
      __syncthreads();  // they have been read
    }

    // By way of shared memory, so that the loop stays a loop.
    UNROLL
    for (int r = 0; r < Tile::kRowsPerTeam; ++r) smem.sums[team][r][col] = total[r];
    const int64_t c_offset = batch_offset(p.batch, p.c, piece.batch);
    NO_UNROLL
    for (int r = 0; r < Tile::kRowsPerTeam; ++r) {
      const int row = team * Tile::kRowsPerTeam + r;
      if ((col_rows >> row & 1) == 0) continue;
      store<float>(p, c_offset, piece.row + row, piece.col + col, smem.sums[team][r][col]);
    }
  }
}

// Whether four neighbouring columns of B can be read at once, wherever four begin.
bool reads_four_columns(const Problem& p) {
  bool by_four = p.b.col_stride == 1 && p.b.row_stride % 4 == 0;
  for (int d = 0; d < p.batch.rank; ++d) by_four &= p.b.batch_stride[d] % 4 == 0;
  return by_four && reinterpret_cast<uintptr_t>(p.b.data) % sizeof(float4) == 0;
}

}  // namespace

void launch_recompute(const Problem& p, const Marks& marks, const Context& context) {
  check(cudaFuncSetAttribute(recompute_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Smem)));
  const auto blocks = std::min<int64_t>(Marks::capacity(p), context.processors);
  launch_after(recompute_kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem),
               context, p, marks, reads_four_columns(p));
}

}  // namespace tiled::cuda
