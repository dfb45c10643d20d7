// simt_skinny: the long operand is read once, at DRAM's rate.
//
// Idea:  If C has few rows, nearly all bytes are B's, and there are few FMAs for each, so DRAM must
//        never be idle. (If C has few columns, A is the long operand.) The producer warp loads
//        kCols rows of the long operand by TMA, K-major or MN-major as they are stored, several
//        stages early and on into the next work tile. By cp.async it loads the rows of the short
//        operand that they are multiplied by. A work tile is one chunk of K, so
//        that few columns still fill all SMs; the chunks' sums go to a workspace, and another
//        kernel adds them in order. A complex B is read in place: a thread has both columns of each
//        of its numbers, and two k of them (core/complex.h).
// Limit: DRAM bandwidth, up to 8 rows. With 16 rows, shared-memory bandwidth: a register tile of
//        4 x 4 reads half a number for each FMA.
// Next:  16 rows at DRAM's rate. Products of more rows are simt_cp_async's and simt_tma's.
//
//   producer    wait empty[stage]    tma_load long operand, cp.async short operand -> full[stage]
//   consumers   wait full[stage]     load fragments, multiply -> empty[stage]

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "core/complex.h"
#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/simt/plan.h"
#include "kernels/simt/register_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace tiled::cuda {
namespace simt_skinny {

// The kernel sees a skinny product from the side of its longer operand, whichever of A and B that
// is. `row` counts rows of the short operand, C's short side; `col` counts rows of the long
// operand, C's long side. If the long operand is A, that is C transposed.

// kKMajor_: the long operand is K-major, or else MN-major. kComplex_: it is a complex B, read in
// place; each of its numbers stands for two columns and two k (core/complex.h). A stage has their
// parts, which is half of the elements, so there are more stages.
template <int kIndex, bool kKMajor_, bool kComplex_>
struct Tile {
  static constexpr bool kKMajor = kKMajor_, kComplex = kComplex_;
  static constexpr h200::SimtSkinnyTile kTile =
      kComplex ? h200::kSimtSkinnyComplexTiles[kIndex] : h200::kSimtSkinnyTiles[kIndex];
  static constexpr int kRows = kTile.m, kCols = h200::kSimtSkinnyCols;
  static constexpr int kK = 32;  // of a step
  static constexpr int kStages = kComplex ? 8 : 6, kBlocksPerSm = kTile.blocks;
  static constexpr int kThreadRows = kTile.thread_m, kThreadCols = kTile.thread_n;
  static constexpr int kParts = kComplex ? 2 : 1;  // of an element of the long operand
  static constexpr int kBoxCols = kCols / (kKMajor ? kParts : 1);
  static constexpr int kBoxK = kK / (kKMajor ? 1 : kParts);
  static constexpr int kLaneRows = kRows / kThreadRows, kLaneCols = 32 / kLaneRows;  // of a warp
  static constexpr int kConsumers = kCols / (kLaneCols * kThreadCols) * 32;          // threads
  static constexpr int kProducers = 32;
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kPitch = kK + 4;  // rows of the short operand are in different banks

  static_assert(kThreadCols % kParts == 0, "a thread has both columns of a number");
  static_assert(kChunk % kK == 0, "a chunk of the sum is a whole number of steps");
};

template <class Tile>
struct Smem {
  alignas(1024) float long_smem[Tile::kStages][Tile::kBoxCols * Tile::kBoxK];  // as TMA loads a box
  alignas(16) float short_smem[Tile::kStages][Tile::kRows][Tile::kPitch];
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// The kernel sees C with the long operand's side as its columns.
struct Params : LongAndShort {
  Problem p;
  CUtensorMap long_map;
  bool short_vectorized;
  FastDivmod row_tiles, col_tiles, chunks;
  int64_t work_tiles;
  SignsOfB signs_of_b;  // of a complex B
  float* partial_sums;  // (matrices, chunks, short_count, partial_pitch()), for several chunks

  HOST_DEVICE int64_t partial_pitch() const {
    return int64_t{col_tiles.by} * h200::kSimtSkinnyCols;
  }
};

// A (kRows, kCols) tile of C, summed over one chunk of K. Row tiles are counted first, so that
// blocks that run together read the same part of the long operand.
template <class Tile>
struct WorkTile {
  int64_t matrix;
  unsigned chunk;
  int row, col;  // of the first element
  int length;    // of the chunk

  __device__ WorkTile(const Params& params, int64_t index) {
    const int64_t col_tile = params.row_tiles.divide(index);  // over all chunks and matrices
    const int64_t chunk_index = params.col_tiles.divide(col_tile);
    matrix = params.chunks.divide(chunk_index);
    row = static_cast<int>(index - col_tile * params.row_tiles.by) * Tile::kRows;
    col = static_cast<int>(col_tile - chunk_index * params.col_tiles.by) * Tile::kCols;
    chunk = static_cast<unsigned>(chunk_index - matrix * params.chunks.by);
    length = static_cast<int>(min(params.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}));
  }
};

// --- producer ------------------------------------------------------------------------------------

// A warp loads the short operand's part of a stage by cp.async: `rows` rows from `from` on, k_left
// elements along K, and zeros beyond.
template <class Tile>
__device__ void load_short(const Params& params, float (&to)[Tile::kRows][Tile::kPitch],
                           const float* from, int rows, int k_left) {
  const int lane = threadIdx.x % 32;
  if (params.short_vectorized) {
    constexpr int kVectors = Tile::kK / 4, kRowsAtOnce = 32 / kVectors;
    const int k = lane % kVectors * 4, inside = max(min(k_left - k, 4), 0) * 4;
    UNROLL
    for (int i = 0; i < Tile::kRows; i += kRowsAtOnce) {
      const int row = i + lane / kVectors;
      if (row >= Tile::kRows) break;
      const bool exists = row < rows && inside > 0;
      const float* at = from + row * params.short_operand.row_stride + k;
      ptx::cp_async_16_zfill(&to[row][k], exists ? at : from, exists ? inside : 0);
    }
  } else {
    static_assert(Tile::kK == 32, "each lane copies one element of a row");
    UNROLL
    for (int row = 0; row < Tile::kRows; ++row) {
      const bool exists = row < rows && lane < k_left;
      const float* at =
          from + row * params.short_operand.row_stride + lane * params.short_operand.col_stride;
      ptx::cp_async_4_zfill(&to[row][lane], exists ? at : from, exists ? 4 : 0);
    }
  }
}

// Fills stages, as the producer warp. If there is one row tile, the long operand is read once, and
// L2 evicts it first.
template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  const bool is_read_once = params.row_tiles.by == 1;
  const uint64_t policy = ptx::policy_evict_first();
  ptx::PipelineState pipe{.stages = Tile::kStages};
  for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    const TmaCoords matrix(params.p.batch, params.long_operand, work.matrix);
    const auto first_k = static_cast<int>(work.chunk * kChunk);
    const float* from = static_cast<const float*>(params.short_operand.data) +
                        batch_offset(params.p.batch, params.short_operand, work.matrix) +
                        work.row * params.short_operand.row_stride +
                        first_k * params.short_operand.col_stride;
    const int rows = static_cast<int>(min(params.short_count - work.row, int64_t{Tile::kRows}));
    if (index == blockIdx.x) ptx::pdl_wait();
    for (int k = 0; k < work.length; k += Tile::kK, pipe.advance()) {
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity ^ 1);
      if (ptx::elect_one()) {
        const int inner = Tile::kKMajor ? first_k + k : work.col;
        const int outer = (Tile::kKMajor ? work.col : first_k + k) / Tile::kParts;
        ptx::arrive_expect_tx(full, sizeof smem.long_smem[0]);
        ptx::tma_load_policy_if(is_read_once, smem.long_smem[pipe.stage], &params.long_map,
                                {inner, outer, matrix.at[0], matrix.at[1], matrix.at[2]}, full,
                                policy);
      }
      load_short<Tile>(params, smem.short_smem[pipe.stage], from, rows, work.length - k);
      ptx::cp_async_mbarrier_arrive_noinc(full);
      from += Tile::kK * params.short_operand.col_stride;
    }
  }
}

// --- consumers -----------------------------------------------------------------------------------

// The rows and columns, in its work tile, of a thread's accumulators.
template <class Tile>
struct AccCoord {
  // Adjacent columns, which one vector load of an MN-major operand brings.
  static constexpr int kAdjacent = Tile::kKMajor           ? Tile::kParts
                                   : Tile::kThreadCols < 4 ? Tile::kThreadCols
                                                           : 4;
  int row, col;  // of acc[0][0]
  __device__ AccCoord() {
    const int lane = threadIdx.x % 32;
    const int first = threadIdx.x / 32 * (Tile::kLaneCols * Tile::kThreadCols);
    const LaneCoord<Tile::kLaneRows, Tile::kLaneCols> at(lane);
    row = at.row;
    col = first + at.col * kAdjacent;
  }
  __device__ int row_of(int i) const { return row + i * Tile::kLaneRows; }
  __device__ int col_of(int j) const {
    return col + j / kAdjacent * (kAdjacent * Tile::kLaneCols) + j % kAdjacent;
  }
};

// A thread's elements of both operands for four adjacent k; of a complex B, the parts of its
// numbers.
template <class Tile>
struct FragmentsK4 {
  static constexpr int kRows = Tile::kThreadRows, kCols = Tile::kThreadCols;
  static constexpr int kParts = Tile::kParts, kLongK = 4 / kParts;
  float long_frag[kLongK][kCols], short_frag[kRows][4];

  __device__ void load(const float* long_smem, const float (&short_smem)[Tile::kRows][Tile::kPitch],
                       const AccCoord<Tile>& at, const ComplexSigns& signs, int k) {
    if constexpr (Tile::kKMajor) {
      UNROLL
      for (int j = 0; j < kCols; j += kParts) {
        // TMA swizzles rows of 128 bytes: 16-byte unit u of row r is stored at u ^ r % 8.
        const int row = at.col_of(j) / kParts;
        const auto x4 =
            *reinterpret_cast<const float4*>(long_smem + row * Tile::kK + (k ^ row % 8 * 4));
        const float x[] = {x4.x, x4.y, x4.z, x4.w};
        UNROLL
        for (int i = 0; i < 4; ++i) long_frag[i / kParts][j + i % kParts] = x[i];
      }
    } else {
      using Vector =
          std::conditional_t<kCols == 1, float, std::conditional_t<kCols == 2, float2, float4>>;
      constexpr int kAdjacent = sizeof(Vector) / sizeof(float);
      UNROLL
      for (int kk = 0; kk < kLongK; ++kk) {
        const float* row = long_smem + (k / kParts + kk) * Tile::kCols;
        UNROLL
        for (int j = 0; j < kCols; j += kAdjacent) {
          *reinterpret_cast<Vector*>(&long_frag[kk][j]) =
              *reinterpret_cast<const Vector*>(row + at.col_of(j));
        }
      }
    }
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      *reinterpret_cast<float4*>(short_frag[i]) =
          *reinterpret_cast<const float4*>(&short_smem[at.row_of(i)][k]);
    }
    if constexpr (Tile::kComplex) {
      UNROLL
      for (int kk = 0; kk < kLongK; ++kk) signs.apply_to_b(long_frag[kk]);
      UNROLL
      for (int i = 0; i < kRows * 2; ++i) signs.apply_to_odd_a(short_frag[i / 2][i % 2 * 2 + 1]);
    }
  }

  __device__ float long_number(int kk, int col) const {
    if constexpr (Tile::kComplex) return complex_number(long_frag[kk / 2], kk % 2 != 0, col);
    return long_frag[kk % kLongK][col];
  }

  // Adds the products of the first `count` of the four. Odd rows go from right to left, so that the
  // first FMA of a row reuses the operand of the one before.
  __device__ void multiply(int count, float (&acc)[kRows][kCols]) const {
    UNROLL
    for (int kk = 0; kk < 4; ++kk) {
      if (kk >= count) break;
      UNROLL
      for (int i = 0; i < kRows; ++i) {
        UNROLL
        for (int j = 0; j < kCols; ++j) {
          const int col = i % 2 == 0 ? j : kCols - 1 - j;
          acc[i][col] = fused_multiply_add(long_number(kk, col), short_frag[i][kk], acc[i][col]);
        }
      }
    }
  }
};

// Stores a work tile's sums: to the workspace, or, if K is one chunk, to C through the epilogue.
template <class Tile>
__device__ void store_acc(const Params& params, const WorkTile<Tile>& work,
                          const AccCoord<Tile>& at,
                          const float (&acc)[Tile::kThreadRows][Tile::kThreadCols]) {
  const int64_t c_offset =
      params.partial_sums == nullptr ? batch_offset(params.p.batch, params.p.c, work.matrix) : 0;
  float* to = params.partial_sums + (work.matrix * params.chunks.by + work.chunk) *
                                        params.short_count * params.partial_pitch();
  UNROLL
  for (int i = 0; i < Tile::kThreadRows; ++i) {
    UNROLL
    for (int j = 0; j < Tile::kThreadCols; ++j) {
      const int64_t row = work.row + at.row_of(i), col = work.col + at.col_of(j);
      if (row >= params.short_count || col >= params.long_count) continue;
      if (params.partial_sums != nullptr) {
        to[row * params.partial_pitch() + col] = acc[i][j];
      } else {
        store<float>(params.p, c_offset, params.long_is_a ? col : row, params.long_is_a ? row : col,
                     kAddIdentity<float> + acc[i][j]);
      }
    }
  }
}

template <class Tile>
__device__ void consume(const Params& params, Smem<Tile>& smem) {
  const AccCoord<Tile> at;
  const ComplexSigns signs(params.signs_of_b);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  ptx::pdl_wait();
  for (int64_t index = blockIdx.x; index < params.work_tiles; index += gridDim.x) {
    const WorkTile<Tile> work(params, index);
    float acc[Tile::kThreadRows][Tile::kThreadCols] = {};
    for (int k_left = work.length; k_left > 0; k_left -= Tile::kK, pipe.advance()) {
      const float* long_smem = smem.long_smem[pipe.stage];
      const auto& short_smem = smem.short_smem[pipe.stage];
      ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
      if (k_left >= Tile::kK) {
        FragmentsK4<Tile> fragments[2];  // one is loaded while the other is multiplied
        fragments[0].load(long_smem, short_smem, at, signs, 0);
        UNROLL
        for (int k = 0; k < Tile::kK; k += 4) {
          if (k + 4 < Tile::kK) {
            fragments[(k / 4 + 1) % 2].load(long_smem, short_smem, at, signs, k + 4);
          }
          fragments[k / 4 % 2].multiply(4, acc);
        }
      } else {
        NO_UNROLL
        for (int k = 0; k < k_left; k += 4) {
          FragmentsK4<Tile> fragments;
          fragments.load(long_smem, short_smem, at, signs, k);
          fragments.multiply(k_left - k, acc);
        }
      }
      ptx::consumer_release(&smem.empty[pipe.stage]);
    }
    store_acc<Tile>(params, work, at, acc);
  }
}

// --- the kernel ----------------------------------------------------------------------------------

namespace {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    simt_skinny_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  ptx::pdl_launch_dependents();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, 1 + Tile::kProducers, smem.empty,
                              Tile::kConsumers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= Tile::kConsumers) {
    produce<Tile>(params, smem);
  } else {
    consume<Tile>(params, smem);
  }
}

constexpr int kReduceThreads = 128;
constexpr int kChunksAtOnce = 8;  // a thread loads their sums before it adds them

// Adds the chunks' sums in order and applies the epilogue; a thread has one element of C.
__global__ void __launch_bounds__(kReduceThreads)
    simt_skinny_split_k_reduce_kernel(const __grid_constant__ Params params) {
  ptx::pdl_launch_dependents();
  const int64_t pitch = params.partial_pitch();
  const int64_t index = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  const int64_t col = index % pitch, row = index / pitch % params.short_count;
  const int64_t matrix = index / pitch / params.short_count;
  const bool exists = matrix < params.p.batch.count && col < params.long_count;
  const int64_t c_offset = exists ? batch_offset(params.p.batch, params.p.c, matrix) : 0;
  ptx::pdl_wait();
  if (!exists) return;
  const int64_t chunk_stride = params.short_count * pitch;
  const float* partial_sums =
      params.partial_sums + matrix * params.chunks.by * chunk_stride + row * pitch + col;
  float total = kAddIdentity<float>;
  NO_UNROLL
  for (unsigned first = 0; first < params.chunks.by; first += kChunksAtOnce) {
    float loaded[kChunksAtOnce];
    UNROLL
    for (unsigned i = 0; i < kChunksAtOnce; ++i) {
      loaded[i] = __ldcg(partial_sums + min(first + i, params.chunks.by - 1) * chunk_stride);
    }
    UNROLL
    for (unsigned i = 0; i < kChunksAtOnce; ++i) {
      if (first + i < params.chunks.by) total += loaded[i];
    }
  }
  store<float>(params.p, c_offset, params.long_is_a ? col : row, params.long_is_a ? row : col,
               total);
}

template <class Tile>
void run(Params& params, const Context& context) {
  static_assert(Tile::kBlocksPerSm * (sizeof(Smem<Tile>) + 1024) <= kMaxSharedMemory + 1024);
  const Problem& p = params.p;
  const int64_t map_rows = params.long_count / (Tile::kCols / Tile::kBoxCols);
  const int64_t map_k = p.k / (Tile::kK / Tile::kBoxK);
  params.long_map =
      tensor_map(p.batch, params.long_operand, map_rows, map_k, Tile::kBoxCols, Tile::kBoxK,
                 Tile::kKMajor ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
  params.row_tiles =
      FastDivmod::of(static_cast<uint32_t>(ceil_div(params.short_count, Tile::kRows)));
  params.work_tiles =
      int64_t{params.col_tiles.by} * params.row_tiles.by * params.chunks.by * p.batch.count;
  const auto kernel = simt_skinny_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  const int64_t blocks = std::min(params.work_tiles, int64_t{Tile::kBlocksPerSm} * context.sms);
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, sizeof(Smem<Tile>), context,
             params);
  if (params.chunks.by == 1) return;
  const int64_t elements = p.batch.count * params.short_count * params.partial_pitch();
  launch_pdl(simt_skinny_split_k_reduce_kernel,
             static_cast<unsigned>(ceil_div(elements, kReduceThreads)), kReduceThreads, 0, context,
             params);
}

template <bool kComplex>
bool launch_tile(const Problem& p, const Plan& plan, const SignsOfB& signs,
                 const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  Params params{};
  params.p = p;
  params.signs_of_b = signs;
  static_cast<LongAndShort&>(params) = long_and_short(p);
  const Matrix& short_operand = params.short_operand;
  params.short_vectorized =
      p.k % 4 == 0 && is_vector_aligned(p.batch, short_operand, short_operand.col_stride,
                                        short_operand.row_stride, 4);
  params.chunks = FastDivmod::of(static_cast<uint32_t>(ceil_div(p.k, kChunk)));
  params.col_tiles =
      FastDivmod::of(static_cast<uint32_t>(ceil_div(params.long_count, h200::kSimtSkinnyCols)));
  if (const int64_t bytes = simt_skinny_partial_sums_bytes(p); bytes > 0) {
    params.partial_sums = static_cast<float*>(context.allocate(bytes));
    if (params.partial_sums == nullptr) return false;
  }
  const bool k_major = params.long_operand.col_stride < params.long_operand.row_stride;
  constexpr size_t kTiles =
      kComplex ? std::size(h200::kSimtSkinnyComplexTiles) : std::size(h200::kSimtSkinnyTiles);
  return with_tile<kTiles>(plan.tile, [&]<int kIndex>() {
    k_major ? run<Tile<kIndex, true, kComplex>>(params, context)
            : run<Tile<kIndex, false, kComplex>>(params, context);
    return true;
  });
}

}  // namespace
}  // namespace simt_skinny

bool launch_simt_skinny(const Problem& p, const Plan& plan, const Context& context) {
  return simt_skinny::launch_tile<false>(p, plan, {}, context);
}

bool launch_simt_skinny_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                const Context& context) {
  return simt_skinny::launch_tile<true>(with_parts_of_b(p), plan, b.signs, context);
}

}  // namespace tiled::cuda
