// simt_gemv: matrix x vector with short K, and up to eight vectors: a thread for each row.
//
// Idea:  With short K there is little to sum, and all is read and written once. So a thread has a
//        row of the long operand and its sums with all rows of the short one. A block requests all
//        that it needs at once, by cp.async. Adjacent threads copy adjacent elements: rows of an
//        MN-major long operand, or K of K-major rows, whether a row ends between them or not.
// Limit: DRAM.
// Next:  simt_skinny and simt_cluster, for a longer K.
//
//   the block   copies its rows of the long operand, and the short one -> smem
//               __syncthreads
//   a thread    multiplies its row; stores its sums
//
// Complex numbers of both operands are read in place (core/complex.h), at any strides. A thread has
// both parts of an element of C.

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <iterator>
#include <type_traits>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/batch_offsets.cuh"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/store_noinline.cuh"
#include "kernels/simt/plan.h"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace simt_gemv {

constexpr int kThreads = kSimtGemvRows;

enum class Mode { kReal, kComplexA, kComplexB };  // kComplexA: the long operand is A

// A number in memory, and one of the short operand in shared memory: of a short complex B, that is
// four elements of B'.
template <Mode kMode>
using Number = std::conditional_t<kMode == Mode::kReal, float, float2>;
template <Mode kMode>
using ShortNumber = std::conditional_t<kMode == Mode::kComplexA, float4, Number<kMode>>;
template <Mode kMode>
inline constexpr int kParts = kMode == Mode::kReal ? 1 : 2;

// Strides are in floats, and sizes count numbers.
struct Params : LongAndShort {
  Problem p;  // the real one
  SignsOfB signs;
  int k;
  bool stores_plain;  // C is the sums unchanged
  FastDivmod row_blocks, col_tiles, by_k;
  int64_t first_block;
};

struct Block {
  int64_t matrix, row, col;  // first row of the long operand, and of the short one

  template <int kCols>
  __device__ static Block at(const Params& params) {
    const int64_t index = params.first_block + blockIdx.x;
    const int64_t tile = params.row_blocks.divide(index), matrix = params.col_tiles.divide(tile);
    return {matrix, (index - tile * params.row_blocks.by) * kThreads,
            (tile - matrix * params.col_tiles.by) * kCols};
  }
};

// Calls copy(row, k, from) for each number of `rows` rows, by all threads of the block: adjacent
// threads have adjacent k.
template <class F>
__device__ void for_k_major(const Params& params, const Matrix& matrix, const float* from, int rows,
                            F&& copy) {
  const auto divide = [&](uint32_t x) { return static_cast<int>(params.by_k.divide(x)); };
  const int rows_on = divide(kThreads),
            k_on = kThreads - rows_on * params.k;  // a thread's next one
  int row = divide(threadIdx.x), k = static_cast<int>(threadIdx.x) - row * params.k;
  _Pragma("unroll 4") while (row < rows) {
    copy(row, k, from + row * matrix.row_stride + k * matrix.col_stride);
    row += rows_on, k += k_on;
    if (k >= params.k) k -= params.k, ++row;
  }
}

template <class T>
__device__ void copy_async(T* to, const float* from) {
  ptx::cp_async_zfill<sizeof(T)>(ptx::shared_address(to), from, sizeof(T));
}

// The four elements of B' in place of a number of B: its even row, and its odd one.
__device__ inline float4 elements_of_b(float2 b, const SignsOfB& signs) {
  const auto flip = [](float x, bool negated) { return negated ? -x : x; };
  return {flip(b.x, signs.x_even), flip(b.y, signs.y_even), flip(b.y, signs.y_odd),
          flip(b.x, signs.x_odd)};
}

__device__ inline void multiply_add(float2 a, float4 b, float (&sums)[2]) {
  sums[0] = fused_multiply_add(a.x, b.x, sums[0]);
  sums[1] = fused_multiply_add(a.x, b.y, sums[1]);
  sums[0] = fused_multiply_add(a.y, b.z, sums[0]);
  sums[1] = fused_multiply_add(a.y, b.w, sums[1]);
}

template <Mode kMode, int kCols, bool kKMajor>
__global__ void __launch_bounds__(kThreads)
    simt_gemv_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) float smem[];
  ptx::pdl_launch_dependents();
  const Problem& p = params.p;
  const Block block = Block::at<kCols>(params);
  const bool long_is_a = kMode == Mode::kReal ? params.long_is_a : kMode == Mode::kComplexA;
  const int k = params.k, thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(min(params.short_count - block.col, int64_t{kCols}));
  const int rows = static_cast<int>(min(params.long_count - block.row, int64_t{kThreads}));
  const BatchOffsets offsets(p, block.matrix);
  const Matrix &x_matrix = params.long_operand, &y_matrix = params.short_operand;
  const float* x_from = static_cast<const float*>(x_matrix.data) +
                        (long_is_a ? offsets.a : offsets.b) + block.row * x_matrix.row_stride;
  const float* y_from = static_cast<const float*>(y_matrix.data) +
                        (long_is_a ? offsets.b : offsets.a) + block.col * y_matrix.row_stride;
  auto* y = reinterpret_cast<ShortNumber<kMode>*>(smem);      // (k, kCols)
  auto* x = reinterpret_cast<Number<kMode>*>(y + k * kCols);  // (kThreads, pitch) or (k, kThreads)
  const int row_pitch = kKMajor ? k | 1 : 1;                  // fewer bank conflicts
  constexpr int kStep = kKMajor ? 1 : kThreads;               // from k to k
  const Number<kMode>* own = x + thread * row_pitch;

  ptx::pdl_wait();
  if constexpr (kKMajor) {
    for_k_major(params, x_matrix, x_from, rows, [&](int row, int at, const float* from) {
      copy_async(&x[row * row_pitch + at], from);
    });
  } else if (thread < rows) {
    const float* from = x_from + thread * x_matrix.row_stride;
    _Pragma("unroll 8") for (int i = 0; i < k; ++i, from += x_matrix.col_stride) {
      copy_async(&x[i * kStep + thread], from);
    }
  }
  for_k_major(params, y_matrix, y_from, cols, [&](int col, int at, const float* from) {
    ShortNumber<kMode>& to = y[at * kCols + col];
    if constexpr (kMode == Mode::kComplexA) {
      to = elements_of_b(*reinterpret_cast<const float2*>(from), params.signs);
    } else {
      copy_async(&to, from);
    }
  });
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  if (thread >= rows) return;

  float sums[kCols][kParts<kMode>] = {};
  _Pragma("unroll 8") for (int i = 0; i < k; ++i, own += kStep, y += kCols) {
    const Number<kMode> number = *own;
    if constexpr (kMode == Mode::kReal) {
      UNROLL
      for (int col = 0; col < kCols; ++col) {
        sums[col][0] = fused_multiply_add(number, y[col], sums[col][0]);
      }
    } else if constexpr (kMode == Mode::kComplexA) {
      UNROLL
      for (int col = 0; col < kCols; ++col) multiply_add(number, y[col], sums[col]);
    } else {
      const float4 b = elements_of_b(number, params.signs);
      UNROLL
      for (int col = 0; col < kCols; ++col) multiply_add(y[col], b, sums[col]);
    }
  }

  const int64_t row = block.row + thread, number_stride = p.c.col_stride * kParts<kMode>;
  const int64_t row_stride = long_is_a ? p.c.row_stride : number_stride;
  const int64_t col_stride = long_is_a ? number_stride : p.c.row_stride;
  float* c = static_cast<float*>(p.c.data) + offsets.c + row * row_stride + block.col * col_stride;
  UNROLL
  for (int col = 0; col < kCols; ++col) {
    if (col >= cols) break;
    UNROLL
    for (float& sum : sums[col]) sum = kAddIdentity<float> + sum;
    if (params.stores_plain) {
      auto* to = reinterpret_cast<Number<kMode>*>(c + col * col_stride);
      if constexpr (kMode == Mode::kReal) {
        *to = sums[col][0];
      } else {
        *to = {sums[col][0], sums[col][1]};
      }
      continue;
    }
    const int64_t of_m = long_is_a ? row : block.col + col;
    const int64_t of_n = (long_is_a ? block.col + col : row) * kParts<kMode>;
    UNROLL
    for (int part = 0; part < kParts<kMode>; ++part) {
      store_noinline(p, offsets.c, of_m, of_n + part, sums[col][part]);
    }
  }
}

namespace {

template <Mode kMode, int kCols>
void run(Params& params, const Context& context) {
  constexpr SimtGemvBytes kOfNumber{sizeof(Number<kMode>), sizeof(ShortNumber<kMode>)};
  const auto kernel = simt_gemv_is_k_major(params) ? simt_gemv_kernel<kMode, kCols, true>
                                                   : simt_gemv_kernel<kMode, kCols, false>;
  const auto bytes = [&](int64_t k) { return static_cast<size_t>(kOfNumber.smem(k, kCols)); };
  allow_shared_memory(kernel, bytes(kSimtGemvMostK / kParts<kMode>));
  params.row_blocks = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.long_count, kThreads)));
  params.col_tiles = FastDivmod::of(static_cast<uint32_t>(ceil_div(params.short_count, kCols)));
  const int64_t blocks = int64_t{params.row_blocks.by} * params.col_tiles.by * params.p.batch.count;
  for_grids(blocks, [&](int64_t first, unsigned grid) {
    params.first_block = first;
    launch_pdl(kernel, grid, kThreads, bytes(params.k), context, params);
  });
}

template <Mode kMode, size_t kTiles>
bool run_tile(const Problem& p, const Plan& plan, const LongAndShort& sides, const SignsOfB& signs,
              const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  static_cast<LongAndShort&>(params) = sides;
  params.p = p;
  params.signs = signs;
  params.k = static_cast<int>(p.k / kParts<kMode>);
  // The parts of a number of C are adjacent.
  params.stores_plain = p.epilogue.is_identity() &&
                        reinterpret_cast<uintptr_t>(p.c.data) % sizeof(Number<kMode>) == 0;
  params.by_k = FastDivmod::of(static_cast<uint32_t>(params.k));
  return with_tile<kTiles>(plan.tile, [&]<int kIndex>() {
    run<kMode, h200::kSimtGemvTiles[kIndex].cols>(params, context);
    return true;
  });
}

}  // namespace
}  // namespace simt_gemv

bool launch_simt_gemv(const Problem& p, const Plan& plan, const Context& context) {
  using namespace simt_gemv;
  constexpr size_t kTiles = std::size(h200::kSimtGemvTiles);
  return run_tile<Mode::kReal, kTiles>(p, plan, long_and_short(p), {}, context);
}

bool launch_simt_gemv_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                              const Context& context) {
  using namespace simt_gemv;
  constexpr size_t kTiles = h200::kSimtGemvComplexTiles;
  const LongAndShort sides = simt_gemv_complex_sides(p);
  return sides.long_is_a ? run_tile<Mode::kComplexA, kTiles>(p, plan, sides, b.signs, context)
                         : run_tile<Mode::kComplexB, kTiles>(p, plan, sides, b.signs, context);
}

}  // namespace tiled::cuda
