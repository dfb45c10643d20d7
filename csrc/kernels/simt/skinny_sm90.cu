// simt_skinny: the long operand is read once, at DRAM's rate.
//
// Idea:  Where C has few rows, nearly all bytes are B's, and there are few FMAs for each, so DRAM
//        must never be idle. (Where C has few columns, A is the long operand.) The
//        producer warp loads kCols rows of the long operand by TMA, as they lie, K-major or
//        MN-major, several stages ahead and on into the next work tile. By cp.async it loads the
//        rows of the short operand that they are multiplied by. A work tile is one chunk of K, so
//        that few columns still fill all SMs; the chunks' sums go to a workspace, and another
//        kernel adds them in order. A complex B is read as it lies: a thread has both columns of
//        each of its numbers, which stands for two k of them (core/complex.h).
// Limit: DRAM bandwidth, up to 8 rows. With 16 rows, shared-memory bandwidth: a register tile of
//        4 x 4 reads half a number for each FMA.
// Next:  16 rows at DRAM's rate. Products of more rows are simt_cp_async's and simt_tma's.
//
//   producer    wait empty[stage]    tma_load long operand, cp.async short operand -> full[stage]
//   consumers   wait full[stage]     load fragments, multiply -> empty[stage]

#include <algorithm>
#include <iterator>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/simt/complex_b.h"
#include "kernels/simt/plan.h"
#include "kernels/simt/skinny_mainloop.cuh"
#include "kernels/simt/skinny_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace simt_skinny {
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
constexpr int kReduceAhead = 8;  // chunks whose sums a thread loads before it adds them

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
  for (unsigned first = 0; first < params.chunks.by; first += kReduceAhead) {
    float loaded[kReduceAhead];
    UNROLL
    for (unsigned i = 0; i < kReduceAhead; ++i) {
      loaded[i] = __ldcg(partial_sums + min(first + i, params.chunks.by - 1) * chunk_stride);
    }
    UNROLL
    for (unsigned i = 0; i < kReduceAhead; ++i) {
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
  if (params.chunks.by > 1) {
    const int64_t elements =
        p.batch.count * params.chunks.by * params.short_count * params.partial_pitch();
    params.partial_sums = static_cast<float*>(context.allocate(elements * int64_t{sizeof(float)}));
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
