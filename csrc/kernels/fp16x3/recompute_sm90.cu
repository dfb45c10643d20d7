// Computes the elements again that fp16x3 has marked, in the order of csrc/sum.h.
//
// A block takes a piece of the list, 16 rows x 128 columns of C. Its four teams of threads take a
// chunk of K each, a thread two columns and half the rows; then the chunks' sums are added in
// order, and the teams take the next four chunks. Rows of A and columns of B come to shared memory
// by asynchronous copies, some steps ahead, through any strides; rows without a mark are left out.
// Where a piece has few marks, warps take chunks of one instead (fp16x3_again.cuh). How many pieces
// there are, only the GPU knows: the grid is fixed and walks the list.

#include <cuda_pipeline.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/recompute.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

struct Tile {
  static constexpr int kM = Marks::kRows, kN = Marks::kCols, kK = 16;
  static constexpr int kTeams = 4, kTeam = 128;
  static constexpr int kThreads = kTeams * kTeam, kWarps = kThreads / 32;
  static constexpr int kRowsPerTeam = kM / kTeams;  // where chunks are added
  static constexpr int kStages = 4;
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
  static_assert(kTeam == kN, "where chunks are added, a thread has one column");
};

// How (kOuters, Tile::kK) elements along K lie in shared memory: as in global memory where their
// neighbours there can be copied by fours. Lines are longer than they need be, so that a column's
// elements lie in different banks.
template <int kOuters, bool kAlongK>
struct Layout {
  static constexpr int kLine = (kAlongK ? Tile::kK : kOuters) + 4;
  static constexpr int kSize = (kAlongK ? kOuters : Tile::kK) * kLine;
  static constexpr int kOuterPitch = kAlongK ? kLine : 1, kKPitch = kAlongK ? 1 : kLine;
  __device__ static int at(int outer, int k) { return outer * kOuterPitch + k * kKPitch; }
};
using LayoutA = Layout<Tile::kM, true>;
template <bool kAlongK>
using LayoutB = Layout<Tile::kN, kAlongK>;

struct Smem {
  static constexpr int kB = std::max(LayoutB<true>::kSize, LayoutB<false>::kSize);
  alignas(16) float a[Tile::kTeams][Tile::kStages][LayoutA::kSize];
  alignas(16) float b[Tile::kTeams][Tile::kStages][kB];
  float sums[Tile::kTeams][Tile::kM][Tile::kN];  // of a chunk each
};

static_assert(sizeof(Smem) <= kMaxSharedMemory);

// Copies steps of (kOuters, kK) elements along K to shared memory, four neighbours at once where
// `by_four`. Neighbouring threads follow the layout's lines. What is beyond the matrix is not
// touched, here or there.
template <int kOuters, bool kAlongK>
class Copier {
 public:
  __device__ Copier(const float* data, int64_t outer_stride, int64_t k_stride, int64_t outer_left,
                    bool by_four)
      : data_(data),
        outer_stride_(outer_stride),
        k_stride_(k_stride),
        outer_left_(static_cast<int>(min(outer_left, int64_t{kOuters}))),
        by_four_(by_four) {}

  // Copies the next step, of which k_left are in the matrix.
  __device__ void copy(float* smem, int k_left) {
    if (by_four_ && outer_left_ == kOuters && k_left >= Tile::kK) {
      copy_by<4>(smem, k_left);
    } else {
      copy_by<1>(smem, k_left);
    }
    data_ += Tile::kK * k_stride_;
  }

 private:
  using Smem = Layout<kOuters, kAlongK>;

  template <int kWidth>
  __device__ void copy_by(float* smem, int k_left) const {
    constexpr int kPerLine = (kAlongK ? Tile::kK : kOuters) / kWidth;
    constexpr int kLines = kAlongK ? kOuters : Tile::kK;
    constexpr int kStep = Tile::kTeam / kPerLine;  // lines at a time
    static_assert(Tile::kTeam % kPerLine == 0);
    const int thread = threadIdx.x % Tile::kTeam;
    const int in_line = thread % kPerLine * kWidth;
    const int64_t line_stride = kAlongK ? outer_stride_ : k_stride_;
    const float* from =
        data_ + in_line * (kAlongK ? k_stride_ : outer_stride_) + thread / kPerLine * line_stride;
    UNROLL
    for (int i = 0; i < ceil_div(kLines, kStep); ++i) {
      const int line = thread / kPerLine + i * kStep;
      const int outer = kAlongK ? line : in_line, k = kAlongK ? in_line : line;
      if (outer < outer_left_ && k < k_left && line < kLines) {
        __pipeline_memcpy_async(smem + Smem::at(outer, k), from, kWidth * sizeof(float));
      }
      from += kStep * line_stride;
    }
  }

  const float* data_;
  int64_t outer_stride_, k_stride_;
  int outer_left_;
  bool by_four_;
};

// Where a piece has few marks: which, and what the block's warps have of them.
struct Few {
  static constexpr int kMost = 96;  // of 2048: more take longer than as rows and columns
  int count;
  Marks::Place places[kMost];
  float sums[Tile::kWarps][kChunksAtOnce];
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

// How many marks a piece has; all threads of a warp call it.
__device__ int count_marked(const Marks::Piece& piece) {
  return __reduce_add_sync(~0u, __popcll(piece.elements[threadIdx.x % 32]));
}

// Which operands can be copied by fours.
struct ByFour {
  bool a, b;
};

// A team's chunk of the sums, to smem.sums.
template <bool kBAlongK>
__device__ void sum_chunk(const Problem& p, const Marks::Piece& piece, int64_t chunk, unsigned rows,
                          ByFour by_four, Smem& smem) {
  constexpr int kCols = 2, kColStep = Tile::kN / kCols, kHalf = Tile::kM / 2;  // of a thread
  const int team = threadIdx.x / Tile::kTeam;
  const int col = threadIdx.x % kColStep;
  const int64_t begin = chunk * kChunk;
  const float* a = static_cast<const float*>(p.a.data) + batch_offset(p.batch, p.a, piece.batch) +
                   piece.row * p.a.row_stride + begin * p.a.col_stride;
  const float* b = static_cast<const float*>(p.b.data) + batch_offset(p.batch, p.b, piece.batch) +
                   piece.col * p.b.col_stride + begin * p.b.row_stride;
  Copier<Tile::kM, true> copy_a(a, p.a.row_stride, p.a.col_stride, p.m - piece.row, by_four.a);
  Copier<Tile::kN, kBAlongK> copy_b(b, p.b.col_stride, p.b.row_stride, p.n - piece.col, by_four.b);
  const int length = static_cast<int>(min(p.k - begin, int64_t{kChunk}));
  int loaded = 0, to_fill = 0;
  auto load_step = [&] {
    if (loaded < length) {
      copy_a.copy(smem.a[team][to_fill], length - loaded);
      copy_b.copy(smem.b[team][to_fill], length - loaded);
    }
    __pipeline_commit();
    loaded += Tile::kK;
    to_fill = (to_fill + 1) % Tile::kStages;
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) load_step();

  float(&sums)[Tile::kM][Tile::kN] = smem.sums[team];
  const unsigned own_rows = rows & ((1u << kHalf) - 1)
                                       << threadIdx.x % Tile::kTeam / kColStep * kHalf;
  for (unsigned left = own_rows; left != 0; left &= left - 1) {
    UNROLL
    for (int j = 0; j < kCols; ++j) sums[__ffs(left) - 1][col + j * kColStep] = 0;
  }
  int stage = 0;
  for (int step = 0; step < length; step += Tile::kK) {
    __pipeline_wait_prior(Tile::kStages - 2);
    ptx::named_barrier_sync(1 + team, Tile::kTeam);  // the step is there, the one before was read
    load_step();
    // kCount of K, for all rows that have a mark.
    auto multiply = [&]<int kCount>(int k) {
      const float *a_smem = smem.a[team][stage], *b_smem = smem.b[team][stage];
      float b_frag[kCols][kCount];
      UNROLL
      for (int j = 0; j < kCols; ++j) {
        UNROLL
        for (int i = 0; i < kCount; ++i) {
          b_frag[j][i] = b_smem[LayoutB<kBAlongK>::at(col + j * kColStep, k + i)];
        }
      }
      for (unsigned left = own_rows; left != 0; left &= left - 1) {
        const int row = __ffs(left) - 1;
        float acc[kCols];
        UNROLL
        for (int j = 0; j < kCols; ++j) acc[j] = sums[row][col + j * kColStep];
        UNROLL
        for (int i = 0; i < kCount; ++i) {
          const float a_frag = a_smem[LayoutA::at(row, k + i)];
          UNROLL
          for (int j = 0; j < kCols; ++j) acc[j] = fused_multiply_add(a_frag, b_frag[j][i], acc[j]);
        }
        UNROLL
        for (int j = 0; j < kCols; ++j) sums[row][col + j * kColStep] = acc[j];
      }
    };
    if (length - step >= Tile::kK) {
      multiply.template operator()<Tile::kK>(0);
    } else {
      NO_UNROLL
      for (int k = 0; k < length - step; ++k) multiply.template operator()<1>(k);
    }
    stage = (stage + 1) % Tile::kStages;
  }
}

// Computes and stores the marked elements of a piece that has few: the block's warps take some
// chunks of one each, and a thread adds them.
__device__ void recompute_few(const Problem& p, const Marks::Piece& piece, Few& few) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) few.count = 0;
  __syncthreads();
  if (warp == 0) {
    for (uint64_t left = piece.elements[lane]; left != 0; left &= left - 1) {
      const auto place = Marks::place(lane, __ffsll(static_cast<int64_t>(left)) - 1);
      few.places[atomicAdd(&few.count, 1)] = place;
    }
  }
  __syncthreads();
  const int chunks = static_cast<int>(ceil_div(p.k, kChunk)),
            turns = ceil_div(chunks, kChunksAtOnce);
  const int tasks = few.count * turns;
  float total;
  NO_UNROLL
  for (int first = 0; first < tasks; first += Tile::kWarps) {
    if (first + warp < tasks) {
      const auto [row, col] = few.places[(first + warp) / turns];
      const int64_t k = int64_t{(first + warp) % turns} * kChunksAtOnce * kChunk;
      const float sum = sum_chunks(p, piece.batch, piece.row + row, piece.col + col, k);
      if (lane % kTeam == 0) few.sums[warp][lane / kTeam] = sum;
    }
    __syncthreads();
    NO_UNROLL
    for (int i = 0; threadIdx.x == 0 && i < Tile::kWarps && first + i < tasks; ++i) {
      const int index = (first + i) / turns, turn = (first + i) % turns;
      if (turn == 0) total = kAddIdentity<float>;
      for (int j = 0; j < kChunksAtOnce && turn * kChunksAtOnce + j < chunks; ++j)
        total += few.sums[i][j];
      if (turn < turns - 1) continue;
      const auto [row, col] = few.places[index];
      const int64_t c_offset = batch_offset(p.batch, p.c, piece.batch);
      store_one(p, c_offset, piece.row + row, piece.col + col, total);
    }
    __syncthreads();
  }
}

template <bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    recompute_kernel(const __grid_constant__ Problem p, Marks marks, ByFour by_four) {
  extern __shared__ __align__(16) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  __shared__ unsigned block_rows;
  __shared__ Few few;
  ptx::pdl_wait();
  const int pieces = *marks.count;
  const int team = threadIdx.x / Tile::kTeam, col = threadIdx.x % Tile::kTeam;
  const int64_t chunks = ceil_div(p.k, kChunk);
  for (int index = blockIdx.x; index < pieces; index += gridDim.x) {
    const Marks::Piece& piece = marks.pieces[index];
    if (count_marked(piece) <= Few::kMost) {
      recompute_few(p, piece, few);
      continue;
    }
    const unsigned col_rows = marked_rows(piece, col);
    if (threadIdx.x == 0) block_rows = 0;
    __syncthreads();
    atomicOr(&block_rows, col_rows);
    __syncthreads();

    float total[Tile::kRowsPerTeam];  // of rows team * kRowsPerTeam and on
    UNROLL
    for (float& each : total) each = kAddIdentity<float>;
    for (int64_t first = 0; first < chunks; first += Tile::kTeams) {
      if (first + team < chunks) {
        sum_chunk<kBAlongK>(p, piece, first + team, block_rows, by_four, smem);
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

int64_t count_marked(const Marks& marks, cudaStream_t stream) {
  int count = 0;
  check(cudaMemcpyAsync(&count, marks.count, sizeof count, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  std::vector<Marks::Piece> pieces(count);
  check(cudaMemcpyAsync(pieces.data(), marks.pieces, pieces.size() * sizeof(Marks::Piece),
                        cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  int64_t marked = 0;
  for (const Marks::Piece& piece : pieces) {
    for (const uint64_t elements : piece.elements) marked += std::popcount(elements);
  }
  return marked;
}

}  // namespace

void launch_recompute(const Problem& p, const Marks& marks, const Context& context) {
  const bool b_along_k = p.b.row_stride < p.b.col_stride;
  const ByFour by_four{
      is_vector_aligned<float4>(p.batch, p.a, p.a.col_stride, p.a.row_stride),
      b_along_k ? is_vector_aligned<float4>(p.batch, p.b, p.b.row_stride, p.b.col_stride)
                : is_vector_aligned<float4>(p.batch, p.b, p.b.col_stride, p.b.row_stride)};
  const auto kernel = b_along_k ? recompute_kernel<true> : recompute_kernel<false>;
  allow_shared_memory(kernel, sizeof(Smem));
  const auto blocks = std::min<int64_t>(Marks::capacity(p), context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem), context, p, marks,
             by_four);
  if (context.recomputed != nullptr) {
    *context.recomputed += count_marked(marks, static_cast<cudaStream_t>(context.stream));
  }
}

RecomputedCounter::RecomputedCounter(const Context& context) : context_(context) {
  if (context.recomputed == nullptr) return;
  on_gpu_ = static_cast<unsigned long long*>(context.allocate(sizeof *on_gpu_));
  check(cudaMemsetAsync(on_gpu_, 0, sizeof *on_gpu_, static_cast<cudaStream_t>(context.stream)));
}

void RecomputedCounter::read() const {
  if (on_gpu_ == nullptr) return;
  unsigned long long count = 0;
  const auto stream = static_cast<cudaStream_t>(context_.stream);
  check(cudaMemcpyAsync(&count, on_gpu_, sizeof count, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  *context_.recomputed += static_cast<int64_t>(count);
}

}  // namespace tiled::cuda
