// f64_gemv: float64 matrix x vector: a lane for each element of C, and a warp for each 32.
//
// Idea:  A product with one row or column reads its long operand once and does little else. So each
//        warp has a ring of stages in shared memory of its own, which cp.async fills while its
//        lanes add: no warp waits for another one. A stage has 32 rows of the long operand and the
//        same k of the short one. A K-major row is copied by eight lanes, and one of other strides
//        by a lane. A stage is in registers before its products begin. Each chunk of K has warps of
//        its own, and split_k_reduce.cuh adds their sums.
// Limit: DRAM; for few elements of C the chain of FMAs of a chunk.
// Next:  f64_direct, for more rows and columns.
//
//   a warp      fill kStages stages                                          (cp.async)
//               load the next stage to registers; fill the one that it leaves
//               add the products of this one                                 (K / 16 times)
//               store the sums, or those of a chunk
//
// Complex numbers are read in place (core/complex.h): of a long A of any strides, and of B. A lane
// has both parts of an element, and multiplies each part twice.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/f64/plan.h"
#include "kernels/f64/split_k_reduce.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace f64_gemv {

constexpr int kRows = kF64GemvRows;                   // of a warp: elements of C
constexpr int kWarps = 2, kThreads = kWarps * kRows;  // of a block
constexpr int kStages = 6;
constexpr int kBlocks = 4;  // of an SM have registers; the stages of three fit

constexpr int kStep = kF64GemvStep;  // doubles of a row in a stage
constexpr int kPitch = kStep + 2;    // of K-major rows: no bank conflicts

// What a lane computes: real sums with one or two vectors, or both parts of a complex element.
enum class Mode { kOne, kTwo, kComplexA, kComplexB };  // kComplexA: the long operand is A

template <Mode kMode>
inline constexpr bool kIsComplex = kMode == Mode::kComplexA || kMode == Mode::kComplexB;

// How rows of the long operand are copied, MN-major or K-major: a number at a time, or aligned
// pairs of doubles.
enum class Layout { kMn, kMnPairs, kK, kKPairs };

template <Layout kLayout>
inline constexpr bool kIsKMajor = kLayout == Layout::kK || kLayout == Layout::kKPairs;

// Strides are in doubles, and K counts numbers, complex ones if they are.
struct Params {
  Problem p;
  bool long_is_a;
  const double *long_data, *short_data;
  int64_t long_row, long_k, short_row, short_k;  // strides
  int64_t rows;
  bool in_pairs;  // doubles along the contiguous side are aligned
  SignsOfB signs;
  FastDivmod row_blocks, matrices;
  int64_t first_warp, warps;
  int chunks_of_warp;    // all of them, or one
  int64_t chunk_stride;  // of sums in C, if a warp has one chunk
};

struct alignas(16) Stage {
  double rows[kRows * kPitch];  // [row][k] with kPitch, or [k][row]
  double vectors[2 * kStep];    // [vector][k], or complex numbers
};

// Doubles of K that a number has, and numbers of a row in a stage.
template <Mode kMode>
inline constexpr int kParts = kIsComplex<kMode> ? 2 : 1;
template <Mode kMode>
inline constexpr int kNumbers = kStep / kParts<kMode>;

// The places that the lanes of a warp copy next, of all its rows and vectors. Rows beyond the last
// are replaced by it.
template <Mode kMode, Layout kLayout>
class Loader {
 public:
  // `rows` is at the warp's first row, of `count`; both are at its first k.
  __device__ Loader(const Params& params, const double* rows, const double* vectors, int count) {
    UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      const int row = kIsKMajor<kLayout>            ? i * 4 + lane() / 8
                      : kLayout == Layout::kMnPairs ? lane() % 16 * 2
                                                    : lane();
      // The rows of pairs are even.
      const int last = kLayout == Layout::kMnPairs ? count - 2 : count - 1;
      rows_[i] = rows + min(row, last) * params.long_row;
      if (kIsKMajor<kLayout>) rows_[i] += piece();
      if (kLayout == Layout::kMnPairs) rows_[i] += lane() / 16 * params.long_k;
    }
    const int of_vector = lane() % kStep, vector = lane() / kStep;
    vectors_ = vectors + vector * params.short_row + of_vector % kParts<kMode>;
    vectors_ += of_vector / kParts<kMode> * params.short_k;
  }

  // Copies a stage, of which `left` numbers exist, and moves on.
  template <bool kWhole>
  __device__ void fill(const Params& params, Stage& stage, int left) {
    const uint32_t to = ptx::shared_address(stage.rows);
    if constexpr (kIsKMajor<kLayout>) {
      const int doubles = kWhole ? 2 : left * kParts<kMode> - piece();  // of the lane's two
      UNROLL
      for (int i = 0; i < kPlaces; ++i, rows_[i - 1] += kStep) {
        const uint32_t at = to + ((i * 4 + lane() / 8) * kPitch + piece()) * sizeof(double);
        if (kLayout == Layout::kKPairs && doubles >= 2) {
          ptx::cp_async_16_zfill(at, rows_[i], 16);
        } else {
          if (doubles >= 1) ptx::cp_async_8_zfill(at, rows_[i], 8);
          if (doubles >= 2) ptx::cp_async_8_zfill(at + 8, rows_[i] + 1, 8);
        }
      }
    } else {
      constexpr bool kPairs = kLayout == Layout::kMnPairs;  // a half warp has a k
      constexpr int kBytes = (kPairs ? 2 : kParts<kMode>)*sizeof(double), kAtOnce = kPairs ? 2 : 1;
      UNROLL
      for (int i = 0; i < kNumbers<kMode> / kAtOnce; ++i, rows_[0] += kAtOnce * params.long_k) {
        if (kWhole || i * kAtOnce + (kPairs ? lane() / 16 : 0) < left) {
          ptx::cp_async_zfill<kBytes>(to + (i * kRows + lane()) * kBytes, rows_[0], kBytes);
        }
      }
    }
    const bool exists = kWhole || lane() % kStep / kParts<kMode> < left;
    if (exists && (kMode == Mode::kTwo || lane() < kStep)) {
      ptx::cp_async_8_zfill(ptx::shared_address(&stage.vectors[lane()]), vectors_, 8);
    }
    vectors_ += kNumbers<kMode> * params.short_k;
  }

 private:
  static constexpr int kPlaces = kIsKMajor<kLayout> ? kRows / 4 : 1;
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int piece() { return lane() % 8 * 2; }  // its first double of a row in a stage

  const double *rows_[kPlaces], *vectors_;
};

__device__ inline double flip(double x, bool negated) { return negated ? -x : x; }

// Adds a number of A times one of B to both parts of a sum (core/complex.h).
__device__ inline void multiply_complex(double2 a, double2 b, const SignsOfB& signs,
                                        double (&sums)[2]) {
  sums[0] = fused_multiply_add(a.x, flip(b.x, signs.x_even), sums[0]);
  sums[1] = fused_multiply_add(a.x, flip(b.y, signs.y_even), sums[1]);
  sums[0] = fused_multiply_add(a.y, flip(b.y, signs.y_odd), sums[0]);
  sums[1] = fused_multiply_add(a.y, flip(b.x, signs.x_odd), sums[1]);
}

// A stage in registers: the numbers of the lane's row, and those of the vectors.
template <Mode kMode, Layout kLayout>
class Numbers {
 public:
  __device__ void read(const Stage& stage) {
    const int lane = static_cast<int>(threadIdx.x % kRows);
    const auto* rows = reinterpret_cast<const Element*>(stage.rows);
    UNROLL
    for (int i = 0; i < kCount; ++i) {
      x_[i] = rows[kIsKMajor<kLayout> ? lane * (kPitch / kParts<kMode>)+i : i * kRows + lane];
    }
    UNROLL
    for (int i = 0; i < kCount * kVectors; ++i) {
      y_[i] = reinterpret_cast<const Element*>(stage.vectors)[i];
    }
  }

  // Adds the products of the first `left` numbers.
  __device__ void multiply(const Params& params, int left, double (&sums)[2]) const {
    UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i >= left) break;
      if constexpr (kMode == Mode::kComplexA) {
        multiply_complex(x_[i], y_[i], params.signs, sums);
      } else if constexpr (kMode == Mode::kComplexB) {
        multiply_complex(y_[i], x_[i], params.signs, sums);
      } else {
        UNROLL
        for (int j = 0; j < kVectors; ++j) {
          sums[j] = fused_multiply_add(x_[i], y_[j * kCount + i], sums[j]);
        }
      }
    }
  }

 private:
  using Element = std::conditional_t<kIsComplex<kMode>, double2, double>;
  static constexpr int kCount = kNumbers<kMode>, kVectors = kMode == Mode::kTwo ? 2 : 1;

  Element x_[kCount], y_[kCount * kVectors];
};

template <Mode kMode, Layout kLayout>
__global__ void __launch_bounds__(kThreads, kBlocks)
    f64_gemv_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) Stage ring[];
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const int lane = static_cast<int>(threadIdx.x % kRows);
  const int64_t warp = params.first_warp + int64_t{blockIdx.x} * kWarps + threadIdx.x / kRows;
  if (warp >= params.warps) return;
  Stage* stages = ring + threadIdx.x / kRows * kStages;
  const int64_t matrix_of_chunk = params.row_blocks.divide(warp);
  const int64_t first_row = (warp - matrix_of_chunk * params.row_blocks.by) * kRows;
  const int64_t chunk = params.matrices.divide(matrix_of_chunk);
  BatchOffsets offsets(p, matrix_of_chunk - chunk * params.matrices.by);
  offsets.c += chunk * params.chunk_stride;
  // Numbers of K: those of a chunk, of all, and those that the warp adds.
  constexpr int kOfChunk = static_cast<int>(kChunk) / kParts<kMode>;
  const int64_t all = p.k / kParts<kMode>, begin = chunk * kOfChunk;
  const int64_t length = min(all - begin, int64_t{params.chunks_of_warp} * kOfChunk);
  const double* rows = params.long_data + (params.long_is_a ? offsets.a : offsets.b) +
                       first_row * params.long_row + begin * params.long_k;
  const double* vectors =
      params.short_data + (params.long_is_a ? offsets.b : offsets.a) + begin * params.short_k;
  const auto count = static_cast<int>(min(params.rows - first_row, int64_t{kRows}));
  Loader<kMode, kLayout> loader(params, rows, vectors, count);
  const auto whole = static_cast<int>(length / kNumbers<kMode>);  // stages
  const auto left = static_cast<int>(length % kNumbers<kMode>);   // numbers of another one
  const auto fill = [&](int step) {
    Stage& stage = stages[step % kStages];
    if (step < whole) {
      loader.template fill<true>(params, stage, kNumbers<kMode>);
    } else if (step == whole && left > 0) {
      loader.template fill<false>(params, stage, left);
    }
    __pipeline_commit();
  };

  ptx::pdl_wait();
  NO_UNROLL
  for (int step = 0; step < kStages; ++step) fill(step);
  double sums[2] = {}, totals[2] = {kAddIdentity<double>, kAddIdentity<double>};
  const int steps = whole + (left > 0);
  constexpr int kStepsOfChunk = kOfChunk / kNumbers<kMode>;
  // Reads the stage after `step`, fills the one that was read before, and adds the products of
  // `step`, so that no product waits for shared memory.
  const auto advance = [&](int step, const auto& numbers, auto& next) {
    __pipeline_wait_prior(kStages - 2);
    __syncwarp();  // all lanes have copied the next stage, and have read this one
    if (step + 1 < steps) next.read(stages[(step + 1) % kStages]);
    fill(step + kStages);
    if (step < whole) {
      numbers.multiply(params, kNumbers<kMode>, sums);
    } else {
      numbers.multiply(params, left, sums);
    }
    if (step % kStepsOfChunk == kStepsOfChunk - 1 || step + 1 == steps) {
      UNROLL
      for (int i = 0; i < 2; ++i) totals[i] += sums[i], sums[i] = 0;
    }
  };
  Numbers<kMode, kLayout> even, odd;
  __pipeline_wait_prior(kStages - 1);
  __syncwarp();
  even.read(stages[0]);
  NO_UNROLL
  for (int step = 0; step < steps; step += 2) {
    advance(step, even, odd);
    if (step + 1 < steps) advance(step + 1, odd, even);
  }
  __pipeline_wait_prior(0);
  if (lane >= count) return;
  const int64_t row = first_row + lane;
  UNROLL
  for (int i = 0; i < (kMode == Mode::kOne ? 1 : 2); ++i) {
    const int64_t along = kMode == Mode::kComplexB ? 2 * row + i : row;
    const int64_t across = kMode == Mode::kComplexB ? 0 : i;
    store<double>(p, offsets.c, params.long_is_a ? along : across,
                  params.long_is_a ? across : along, totals[i]);
  }
}

namespace {

template <Mode kMode>
bool launch(const Problem& p, const Plan& plan, Params params, const Context& context) {
  const bool k_major = params.long_k == kParts<kMode> && params.long_row != kParts<kMode>;
  params.p = p;
  int64_t chunks = plan.k_splits;
  double* partial_sums = nullptr;
  if (chunks > 1) {
    partial_sums = static_cast<double*>(context.allocate(f64_partial_sums_bytes(p, chunks)));
    if (partial_sums == nullptr) chunks = 1;  // a warp has all of K
  }
  if (partial_sums != nullptr) {
    params.p = f64_mma::to_partial_sums(p, partial_sums);
    params.chunk_stride = p.batch.count * p.m * p.n;
  }
  params.chunks_of_warp = chunks > 1 ? 1 : static_cast<int>(ceil_div(p.k, kChunk));
  const int64_t row_blocks = ceil_div(params.rows, kRows);
  params.row_blocks = FastDivmod::of(static_cast<uint32_t>(row_blocks));
  params.matrices = FastDivmod::of(static_cast<uint32_t>(p.batch.count));
  params.warps = row_blocks * p.batch.count * chunks;
  auto kernel = f64_gemv_kernel<kMode, Layout::kMn>;
  if constexpr (kIsComplex<kMode>) {
    if (k_major) kernel = f64_gemv_kernel<kMode, Layout::kKPairs>;
  } else if (k_major) {
    kernel = f64_gemv_kernel<kMode, Layout::kK>;
    if (params.in_pairs) kernel = f64_gemv_kernel<kMode, Layout::kKPairs>;
  } else if (params.in_pairs && params.rows % 2 == 0) {
    kernel = f64_gemv_kernel<kMode, Layout::kMnPairs>;
  }
  constexpr size_t kBytes = kWarps * kStages * sizeof(Stage);
  allow_shared_memory(kernel, kBytes);
  for_grids(ceil_div(params.warps, kWarps), [&](int64_t first, unsigned blocks) {
    params.first_warp = first * kWarps;
    launch_pdl(kernel, blocks, kThreads, kBytes, context, params);
  });
  if (partial_sums != nullptr) f64_mma::launch_split_k_reduce(p, partial_sums, context);
  return true;
}

// The sides of a real problem, with strides along C and K.
Params sides_of(const Problem& p, bool long_is_a) {
  const Matrix b = transposed(p.b);
  const Matrix &x = long_is_a ? p.a : b, &y = long_is_a ? b : p.a;
  Params params{};
  params.long_is_a = long_is_a;
  params.long_data = static_cast<const double*>(x.data);
  params.short_data = static_cast<const double*>(y.data);
  params.long_row = x.row_stride, params.long_k = x.col_stride;
  params.short_row = y.row_stride, params.short_k = y.col_stride;
  params.rows = long_is_a ? p.m : p.n;
  params.in_pairs = is_16_byte_aligned(p.batch, x, sizeof(double));
  return params;
}

}  // namespace
}  // namespace f64_gemv

bool launch_f64_gemv(const Problem& p, const Plan& plan, const Context& context) {
  using namespace f64_gemv;
  if (count_tiles(p, 1, 1) == 0) return true;
  const Params params = sides_of(p, p.m > p.n);
  return std::min(p.m, p.n) == 1 ? launch<Mode::kOne>(p, plan, params, context)
                                 : launch<Mode::kTwo>(p, plan, params, context);
}

bool launch_f64_gemv_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                             const Context& context) {
  using namespace f64_gemv;
  if (count_tiles(p, 1, 1) == 0) return true;
  const bool long_is_a = p.m > 1;
  Params params = sides_of(p, long_is_a);
  params.signs = b.signs;
  // Strides of in_place_a() and in_place_b() are means of two numbers along the sides that count
  // parts: K, and the columns of B.
  params.long_k *= 2, params.short_k *= 2;
  if (long_is_a) return launch<Mode::kComplexA>(p, plan, params, context);
  params.long_row *= 2;
  params.rows = p.n / 2;
  return launch<Mode::kComplexB>(p, plan, params, context);
}

}  // namespace tiled::cuda
