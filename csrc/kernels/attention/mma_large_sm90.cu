// Attention of float16 and bfloat16 for many queries: softmax between two products, in one kernel.
//
// Idea:  A block has queries of one head, each of its warpgroups 64, and goes through the keys by
//        tiles of 64, which TMA loads. A warpgroup multiplies its queries by a tile of keys
//        (wgmma), turns the accumulators into weights in registers, rounds them, and adds their
//        products with the tile's values to a chunk's accumulators. Exponents are integers, so that
//        a chunk is rescaled exactly, and mostly not at all. While a warpgroup computes weights,
//        its products with the tile before and the other warpgroup's keep the tensor cores busy.
// Limit: about 12 instructions for each query and key: for 64 columns they take longer than the
//        products.
// Next:  mma_decode_sm90.cu, for few queries.
//
//   producer      q -> q_full;  wait k_empty[s];  tile of keys -> k_full[s];  values alike
//   a warpgroup   wait k_full[s], v_full[s - 1];  begin scores = q k, and o += p v of tile s - 1
//                 wait for the scores;  release k_empty[s];  weights in registers
//                 wait for o;  release v_empty[s - 1]
//                 rescale o, or join it to the sums of all chunks;  round the weights

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/order_attention_mma.h"
#include "kernels/attention/mma.h"
#include "kernels/common/launch.h"
#include "ptx/max_nan.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::attention {
namespace {

namespace order = tiled::attention_mma;
namespace wgmma = ptx::wgmma;

// --- The tile and its shared memory --------------------------------------------------------------

constexpr int kRows = kMmaRows, kWarpgroup = 128;
constexpr int kTilesOfChunk = order::kChunk / kRows;
constexpr int kScores = kRows / 2;  // accumulators of a thread

// kKeyBlocks: of 64 columns of q and k; kOutBlocks: of the columns of v that a block has.
// kHasBias: a float32 mask is added to the scores. Its addresses would not fit in registers beside
// the accumulators of more than one block.
template <typename T_, int kKeyBlocks_, int kOutBlocks_, bool kHasBias_>
struct Tile {
  static_assert(kOutBlocks_ == 1 || !kHasBias_);
  using T = T_;
  static constexpr bool kHasBias = kHasBias_;
  static constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
  static constexpr int kShift = order::kShift<T>;
  static constexpr int kKeyBlocks = kKeyBlocks_, kOutBlocks = kOutBlocks_;
  static constexpr int kOut = kOutBlocks * 32;  // accumulators of a thread
  static constexpr int kConsumers = 2, kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kRegisters = 240;  // of a consumer's thread
  static constexpr int kProducerRegisters = 24;
  static constexpr int kStages = kKeyBlocks == 4 ? 3 : 4;
};

using Box = uint8_t[kRows * 128];  // 64 rows of 64 columns, swizzled

template <class Tile>
struct Smem {
  static constexpr int kStages = Tile::kStages;
  alignas(1024) Box q[Tile::kConsumers][Tile::kKeyBlocks];
  Box k[kStages][Tile::kKeyBlocks], v[kStages][Tile::kOutBlocks];
  uint64_t q_full, k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

struct Params {
  AttentionProblem p;
  HeadsMap q, k, v;
  uint32_t query_tiles, value_blocks;
  bool pairs;  // of columns of out are stored at once
};

// A block's part: queries of a head, and some columns of its values. The last queries of a causal
// head, which see most keys, come first.
template <class Tile>
struct Work {
  uint32_t matrix;
  int batch, head, kv_head;
  int first, first_column;

  __device__ explicit Work(const Params& params) {
    const auto heads = static_cast<uint32_t>(params.p.heads);
    const uint32_t group = heads / static_cast<uint32_t>(params.p.kv_heads);
    const uint32_t tiles = params.query_tiles, row = blockIdx.x / tiles;
    const uint32_t tile = tiles - 1 - (blockIdx.x - row * tiles);
    matrix = row / params.value_blocks;
    first_column = static_cast<int>(row - matrix * params.value_blocks) * Tile::kOutBlocks * 64;
    batch = static_cast<int>(matrix / heads);
    head = static_cast<int>(matrix - static_cast<uint32_t>(batch) * heads);
    kv_head = head / static_cast<int>(group);
    first = static_cast<int>(tile) * Tile::kQueries;
  }
  // The tiles of keys that any of the queries before `end` sees.
  __device__ static int key_tiles(const AttentionProblem& p, int64_t end) {
    return static_cast<int>(ceil_div(p.visible_keys(min(end, p.queries) - 1), kRows));
  }
};

// --- The producer --------------------------------------------------------------------------------

template <int kBlocks>
__device__ void load(Box (&to)[kBlocks], const HeadsMap& map, int column, int row, int head,
                     int batch, uint64_t* full) {
  UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    int at[5];
    map.coords(column + block * 64, row, head, batch, at);
    ptx::tma_load(to[block], &map.map, at, full);
  }
}

template <class Tile>
__device__ void produce(const Params& params, Smem<Tile>& smem) {
  const Work<Tile> work(params);
  const int tiles = work.key_tiles(params.p, work.first + Tile::kQueries);
  ptx::arrive_expect_tx(&smem.q_full, sizeof(smem.q));
  UNROLL
  for (int i = 0; i < Tile::kConsumers; ++i) {
    load(smem.q[i], params.q, 0, work.first + i * kRows, work.head, work.batch, &smem.q_full);
  }
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile, pipe.advance()) {
    const int s = pipe.stage, row = tile * kRows;
    ptx::mbarrier_wait(&smem.k_empty[s], pipe.parity);
    ptx::arrive_expect_tx(&smem.k_full[s], sizeof(smem.k[s]));
    load(smem.k[s], params.k, 0, row, work.kv_head, work.batch, &smem.k_full[s]);
    ptx::mbarrier_wait(&smem.v_empty[s], pipe.parity);
    ptx::arrive_expect_tx(&smem.v_full[s], sizeof(smem.v[s]));
    load(smem.v[s], params.v, work.first_column, row, work.kv_head, work.batch, &smem.v_full[s]);
  }
}

// --- Products ------------------------------------------------------------------------------------

using Scores = float[kScores];
using Weights = uint32_t[kRows / 16][4];  // as wgmma reads them from registers

// Begins scores = q k^T.
template <class Tile>
__device__ void multiply_keys(const Box (&q)[Tile::kKeyBlocks], const Box (&k)[Tile::kKeyBlocks],
                              Scores& scores) {
  wgmma::fence_operand(scores);
  wgmma::fence();
  UNROLL
  for (int step = 0; step < Tile::kKeyBlocks * 4; ++step) {
    const uint64_t a = wgmma::swizzled_descriptor<0>(q[step / 4]);
    const uint64_t b = wgmma::swizzled_descriptor<0>(k[step / 4]);
    wgmma::mma<Tile::kBFloat16>(scores, a + step % 4 * 2, b + step % 4 * 2, step != 0);
  }
  wgmma::commit_group();
}

// Begins out += p v, or out = p v, of a group that is not committed yet.
template <class Tile>
__device__ void multiply_values(Weights& p, const Box (&v)[Tile::kOutBlocks],
                                float (&out)[Tile::kOut], bool accumulate) {
  wgmma::fence_operand(p);
  wgmma::fence_operand(out);
  wgmma::fence();
  const uint64_t b = wgmma::swizzled_descriptor<sizeof(Box)>(v[0]);
  UNROLL
  for (int step = 0; step < kRows / 16; ++step) {
    wgmma::mma<Tile::kBFloat16, true>(out, p[step], b + step * 128, accumulate || step != 0);
  }
}

// A warp arrives at a stage that only wgmma has read, which reads it as TMA writes it: by the async
// proxy, so that no fence is needed.
__device__ inline void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

// --- A thread's two rows, and 16 keys of each tile -----------------------------------------------

__device__ inline float max_of_row(float x) {
  x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 1));
  return ptx::max_nan(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Accumulator i is in row i / 2 % 2 of the thread's, which are rows lane / 4 and lane / 4 + 8 of
// the warp's 16, and in column i / 4 * 8 + lane % 4 * 2 + i % 2.
template <class Tile>
struct Queries {
  const Params& params;
  const Work<Tile> work;
  const int first;  // query of the thread
  const float c;
  const int least_end;                                 // of the keys that the first row sees
  int exponent[2] = {order::kLowest, order::kLowest};  // m, l and o of the chunk
  float sum[2] = {0, 0};
  float out[Tile::kOut] = {};
  int total_exponent[2] = {order::kLowest, order::kLowest};  // M, L and O
  float total_sum[2] = {0, 0};
  float total_out[Tile::kOut] = {};

  __device__ Queries(const Params& params, const Work<Tile>& work, int warpgroup)
      : params(params),
        work(work),
        first(work.first + warpgroup * kRows + static_cast<int>(threadIdx.x) / 32 % 4 * 16 +
              static_cast<int>(threadIdx.x) % 32 / 4),
        c(tiled::attention::log2_scale(params.p.scale)),
        least_end(static_cast<int>(params.p.visible_keys(first))) {}

  // Returns x. What follows from it is computed again for each tile, and kept in no register.
  __device__ static int compute_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  __device__ float c_of_keys() const {
    return float_of(static_cast<uint32_t>(compute_here(static_cast<int>(bits_of(c))))) *
           (1 / order::kSpan);
  }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  // Turns the scores of a tile into weights. `grown` is m with this tile, of a chunk whose m was
  // `before`.
  __device__ void weigh(int first_key, const int (&before)[2], Scores& scores, int (&grown)[2],
                        bool (&is_nan)[2]) const {
    const MaskKind mask = params.p.mask_kind;
    const bool checked = mask != MaskKind::kNone || !(c > 0) || first_key + kRows > least_end;
    if (!__any_sync(~0u, checked)) {
      const float c_of_span = c_of_keys();
      float largest[2], place[2];
      UNROLL
      for (int row = 0; row < 2; ++row) {
        float parts[4];  // maxima of four columns each, which do not wait for one another
        UNROLL
        for (int i = 0; i < kScores / 2; ++i) {
          const float score = scores[i / 2 * 4 + row * 2 + i % 2];
          parts[i % 4] = i < 4 ? score : ptx::max_nan(parts[i % 4], score);
        }
        largest[row] =
            c * ptx::max_nan(ptx::max_nan(parts[0], parts[1]), ptx::max_nan(parts[2], parts[3]));
      }
      find_exponents(largest, before, grown, place, is_nan);
      UNROLL
      for (int i = 0; i < kScores; ++i) {
        const float at = order::weight_place(scores[i], c_of_span, place[i / 2 % 2]);
        scores[i] = order::weight<Tile::kShift>(at);
      }
    } else {
      weigh_checked(first_key, before, scores, grown, is_nan);
    }
  }

  // The same if there is a mask, or keys past a row's end.
  __device__ void weigh_checked(int first_key, const int (&before)[2], Scores& scores,
                                int (&grown)[2], bool (&is_nan)[2]) const {
    const int query = compute_here(first);
    const int end[2] = {static_cast<int>(params.p.visible_keys(query)),
                        static_cast<int>(params.p.visible_keys(query + 8))};
    const float c_of_span = c_of_keys();
    uint32_t seen = 0;  // a bit for each score
    UNROLL
    for (int i = 0; i < kScores; ++i) {
      const int key = first_key + column() + i / 4 * 8 + i % 2;
      seen |= uint32_t{key < end[i / 2 % 2]} << i;
    }
    const auto is_seen = [&](int i) { return (seen >> i & 1) != 0; };
    if (!Tile::kHasBias && params.p.mask_kind == MaskKind::kBool) {
      uint32_t hidden = 0;
      for_mask<uint8_t>(first_key, [&](int i, const uint8_t* at) {
        const uint32_t element = is_seen(i) ? __ldg(at) : 0;
        hidden |= uint32_t{element == 0} << i;
      });
      seen &= ~hidden;
    }
    float largest[2] = {-INFINITY, -INFINITY}, place[2];
    if constexpr (Tile::kHasBias) {
      for_mask<float>(first_key, [&](int i, const float* at) {
        const float bias = is_seen(i) ? __ldg(at) : -INFINITY;
        if (bias == -INFINITY) seen &= ~(1u << i);
        const float z = fmaf(scores[i], c, order::log2_bias(bias));
        if (is_seen(i)) largest[i / 2 % 2] = ptx::max_nan(largest[i / 2 % 2], z);
      });
    } else {
      UNROLL
      for (int i = 0; i < kScores; ++i) {
        if (is_seen(i)) largest[i / 2 % 2] = ptx::max_nan(largest[i / 2 % 2], scores[i] * c);
      }
    }
    find_exponents(largest, before, grown, place, is_nan);
    const auto weigh_at = [&](int i, float at) {
      const float p = order::weight<Tile::kShift>(order::weight_place(scores[i], c_of_span, at));
      scores[i] = is_seen(i) ? p : 0;
    };
    if constexpr (Tile::kHasBias) {
      for_mask<float>(first_key, [&](int i, const float* at) {
        const float bias = is_seen(i) ? order::log2_bias(__ldg(at)) : 0;
        weigh_at(i, order::place_with_bias(place[i / 2 % 2], bias));
      });
    } else {
      UNROLL
      for (int i = 0; i < kScores; ++i) weigh_at(i, place[i / 2 % 2]);
    }
  }
  // Calls f(i, address of the mask's element) for each score.
  template <typename Element, class F>
  __device__ void for_mask(int first_key, const F& f) const {
    constexpr int kAtOnce = sizeof(Element) == 1 ? 8 : 4;
    const AttentionProblem& p = params.p;
    const int64_t stride = p.mask.col_stride;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const int query = compute_here(min(first + row * 8, static_cast<int>(p.queries) - 1));
      const Element* at = static_cast<const Element*>(p.mask.data) +
                          p.mask_of_head(work.batch, work.head) + query * p.mask.row_stride +
                          (first_key + column()) * stride;
      UNROLL
      for (int i = 0; i < kScores / 2; ++i) {
        f(i / 2 * 4 + row * 2 + i % 2, at + (i % kAtOnce / 2 * 8 + i % 2) * stride);
        if (i % kAtOnce != kAtOnce - 1) continue;
        at += kAtOnce * 4 * stride;
        // Later addresses are not known before: few loads are on their way, in few registers.
        asm volatile("" : "+l"(at));
      }
    }
  }
  __device__ static void find_exponents(float (&largest)[2], const int (&before)[2],
                                        int (&grown)[2], float (&place)[2], bool (&is_nan)[2]) {
    UNROLL
    for (int row = 0; row < 2; ++row) {
      largest[row] = max_of_row(largest[row]);
      is_nan[row] = largest[row] != largest[row];
      grown[row] = max(before[row], order::exponent_above(largest[row]));
      place[row] = order::place_of_zero(grown[row]);
    }
  }

  // Multiplies the chunk's sums by a power of two, after m has grown.
  __device__ void rescale(const int (&grown)[2]) {
    float factor[2];
    UNROLL
    for (int row = 0; row < 2; ++row) {
      factor[row] = order::rescale_factor(grown[row] - exponent[row]);
      sum[row] *= factor[row];
    }
    if (__all_sync(~0u, factor[0] == 1 && factor[1] == 1)) return;
    UNROLL
    for (int i = 0; i < Tile::kOut; ++i) out[i] *= factor[i / 2 % 2];
  }

  // Rounds the weights of exponents `grown`, and adds them to the thread's part of l.
  __device__ void round(const Scores& scores, const int (&grown)[2], const bool (&is_nan)[2],
                        Weights& p) {
    UNROLL
    for (int row = 0; row < 2; ++row) {
      exponent[row] = grown[row];
      if (is_nan[row]) sum[row] = NAN;
    }
    UNROLL
    for (int i = 0; i < kScores; i += 2) {
      const uint32_t two = ptx::pack_x2<Tile::kBFloat16>(scores[i], scores[i + 1]);
      float& l = sum[i / 2 % 2];
      if constexpr (Tile::kBFloat16) {
        l += float_of(two << 16);
        l += float_of(two & 0xffff0000u);
      } else {
        const float2 rounded = __half22float2(reinterpret_cast<const __half2&>(two));
        l += rounded.x;
        l += rounded.y;
      }
      p[i / 8][i / 4 % 2 * 2 + i / 2 % 2] = two;
    }
  }

  // Joins the chunk's sums to those of the chunks before.
  __device__ void join() {
    tiled::attention::Join by[2];
    UNROLL
    for (int row = 0; row < 2; ++row) {
      by[row] = tiled::attention::join_exponents(total_exponent[row], exponent[row]);
      total_exponent[row] = by[row].joined;
      total_sum[row] = tiled::attention::join(total_sum[row], sum_of_row(sum[row]), by[row]);
      sum[row] = 0;
    }
    // An old factor of 1 changes nothing, and is what rows mostly have.
    if (__all_sync(~0u, by[0].old_factor == 1 && by[1].old_factor == 1)) {
      UNROLL
      for (int i = 0; i < Tile::kOut; ++i) {
        total_out[i] = fmaf(out[i], by[i / 2 % 2].new_factor, total_out[i]);
      }
    } else {
      UNROLL
      for (int i = 0; i < Tile::kOut; ++i) {
        total_out[i] = tiled::attention::join(total_out[i], out[i], by[i / 2 % 2]);
      }
    }
  }

  __device__ void store() const {
    const AttentionProblem& p = params.p;
    const auto columns = static_cast<int>(p.value_size);
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const int query = first + row * 8;
      if (query >= p.queries) continue;
      const float inverse = order::inverse_sum(total_sum[row]);
      auto* to = static_cast<typename Tile::T*>(p.out.data) + work.batch * p.out.batch_stride +
                 work.head * p.out.head_stride + query * p.out.row_stride;
      UNROLL
      for (int i = row * 2; i < Tile::kOut; i += 4) {
        const int at = work.first_column + i / 4 * 8 + column();
        const uint32_t two = ptx::pack_x2<Tile::kBFloat16>(
            order::normalized(total_out[i], inverse), order::normalized(total_out[i + 1], inverse));
        if (params.pairs) {
          if (at < columns) *reinterpret_cast<uint32_t*>(to + at) = two;
        } else {
          if (at < columns) to[at] = {static_cast<uint16_t>(two)};
          if (at + 1 < columns) to[at + 1] = {static_cast<uint16_t>(two >> 16)};
        }
      }
      if (column() == 0 && work.first_column == 0) {
        const int64_t index = int64_t{work.matrix} * p.queries + query;
        p.sum[index] = total_sum[row];
        p.exponent[index] = total_exponent[row] - Tile::kShift;
      }
    }
  }
};

// --- A warpgroup ---------------------------------------------------------------------------------

template <class Tile>
__device__ void consume(const Params& params, Smem<Tile>& smem, int warpgroup) {
  const Work<Tile> work(params);
  const int first = work.first + warpgroup * kRows;
  const int tiles = work.key_tiles(params.p, work.first + Tile::kQueries);
  const int own_tiles = first < params.p.queries ? work.key_tiles(params.p, first + kRows) : 0;
  const auto& q = smem.q[warpgroup];
  Queries<Tile> queries(params, work, warpgroup);
  ptx::PipelineState pipe{.stages = Tile::kStages};
  const auto before = [](ptx::PipelineState pipe) {  // the stage before
    const bool wraps = pipe.stage == 0;
    pipe.stage = wraps ? Tile::kStages - 1 : pipe.stage - 1;
    pipe.parity ^= static_cast<int>(wraps);
    return pipe;
  };
  Scores scores;
  Weights p = {};
  ptx::mbarrier_wait(&smem.q_full, 0);
  NO_UNROLL
  for (int tile = 0; tile < own_tiles; ++tile, pipe.advance()) {
    ptx::mbarrier_wait(&smem.k_full[pipe.stage], pipe.parity);
    multiply_keys<Tile>(q, smem.k[pipe.stage], scores);
    const ptx::PipelineState last = before(pipe);  // of the values that are being multiplied
    if (tile > 0) {
      ptx::mbarrier_wait(&smem.v_full[last.stage], last.parity);
      multiply_values<Tile>(p, smem.v[last.stage], queries.out, (tile - 1) % kTilesOfChunk != 0);
    }
    wgmma::commit_group();  // of the values, or empty
    wgmma::wait_group<1>();
    wgmma::fence_operand(scores);
    release(&smem.k_empty[pipe.stage]);
    const bool begins_chunk = tile % kTilesOfChunk == 0;
    int grown[2], least[2];
    bool is_nan[2];
    UNROLL
    for (int row = 0; row < 2; ++row) {
      least[row] = begins_chunk ? order::kLowest : queries.exponent[row];
    }
    queries.weigh(tile * kRows, least, scores, grown, is_nan);
    wgmma::wait_group<0>();
    wgmma::fence_operand(queries.out);
    if (tile > 0) release(&smem.v_empty[last.stage]);
    begins_chunk ? queries.join() : queries.rescale(grown);
    queries.round(scores, grown, is_nan, p);
  }
  if (own_tiles > 0) {
    const ptx::PipelineState last = before(pipe);
    ptx::mbarrier_wait(&smem.v_full[last.stage], last.parity);
    multiply_values<Tile>(p, smem.v[last.stage], queries.out, (own_tiles - 1) % kTilesOfChunk != 0);
    wgmma::commit_group();
    wgmma::wait_group<0>();
    wgmma::fence_operand(queries.out);
    release(&smem.v_empty[last.stage]);
    queries.join();
  }
  // Tiles that other warpgroups alone multiply.
  for (int tile = own_tiles; tile < tiles; ++tile, pipe.advance()) {
    ptx::mbarrier_wait(&smem.k_full[pipe.stage], pipe.parity);
    release(&smem.k_empty[pipe.stage]);
    ptx::mbarrier_wait(&smem.v_full[pipe.stage], pipe.parity);
    release(&smem.v_empty[pipe.stage]);
  }
  queries.store();
}

// --- The kernel and its launch -------------------------------------------------------------------

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    constexpr int kReaders = Tile::kConsumers * 4;  // warps
    ptx::mbarrier_init(&smem.q_full, 1);
    ptx::mbarrier_init_stages(Tile::kStages, smem.k_full, 1, smem.k_empty, kReaders);
    ptx::mbarrier_init_stages(Tile::kStages, smem.v_full, 1, smem.v_empty, kReaders);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == Tile::kConsumers) {
    ptx::setmaxnreg_dec<Tile::kProducerRegisters>();
    if (ptx::warp_uniform(threadIdx.x / 32) % 4 == 0 && ptx::elect_one()) produce(params, smem);
  } else {
    ptx::setmaxnreg_inc<Tile::kRegisters>();
    consume(params, smem, warpgroup);
  }
}

template <class Tile>
void launch_tile(const AttentionProblem& p, const Context& context) {
  const auto even = [](int64_t stride) { return stride % 2 == 0; };
  const auto map = [&](const Heads& x, int64_t heads, int64_t rows, int64_t columns) {
    return heads_map(x, p.batch, heads, rows, columns, p.dtype);
  };
  const Params params{.p = p,
                      .q = map(p.q, p.heads, p.queries, p.head_size),
                      .k = map(p.k, p.kv_heads, p.keys, p.head_size),
                      .v = map(p.v, p.kv_heads, p.keys, p.value_size),
                      .query_tiles = static_cast<uint32_t>(ceil_div(p.queries, Tile::kQueries)),
                      .value_blocks = static_cast<uint32_t>(
                          std::max<int64_t>(ceil_div(p.value_size, Tile::kOutBlocks * 64), 1)),
                      .pairs = even(p.value_size) && even(p.out.row_stride) &&
                               even(p.out.head_stride) && even(p.out.batch_stride) &&
                               reinterpret_cast<uintptr_t>(p.out.data) % 4 == 0};
  constexpr size_t kSmem = sizeof(Smem<Tile>);
  static_assert(kSmem <= kMaxSharedMemory);
  const auto kernel = mma_attention_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const int64_t blocks = p.batch * p.heads * params.value_blocks * params.query_tiles;
  launch_pdl(kernel, static_cast<unsigned>(blocks), Tile::kThreads, kSmem, context, params);
}

template <typename T>
void launch_columns(const AttentionProblem& p, const Context& context) {
  const bool has_bias = p.mask_kind == MaskKind::kFloat;
  if (p.columns() <= 64 || (has_bias && p.head_size <= 64)) {
    has_bias ? launch_tile<Tile<T, 1, 1, true>>(p, context)
             : launch_tile<Tile<T, 1, 1, false>>(p, context);
  } else if (p.head_size <= 128) {
    has_bias ? launch_tile<Tile<T, 2, 1, true>>(p, context)
             : launch_tile<Tile<T, 2, 2, false>>(p, context);
  } else {
    has_bias ? launch_tile<Tile<T, 4, 1, true>>(p, context)
             : launch_tile<Tile<T, 4, 2, false>>(p, context);
  }
}

}  // namespace

void launch_mma_large(const AttentionProblem& p, const Context& context) {
  p.dtype == DType::kFloat16 ? launch_columns<Half>(p, context)
                             : launch_columns<BFloat16>(p, context);
}

}  // namespace tiled::cuda::attention
