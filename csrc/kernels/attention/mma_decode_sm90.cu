// Attention of float16 and bfloat16 for few queries of many keys, as in decoding.
//
// Idea:  The queries of all heads that share keys are rows of one product: a block of four warps
//        has 16 rows (mma.sync). TMA keeps several tiles of keys and values on their way. A warp
//        multiplies 16 keys of a tile, and a fourth of the values' columns; weights go through
//        shared memory. Blocks share the keys by whole chunks: each stores the state of its chunks,
//        and a second kernel joins these in the order of the keys, so that no bit depends on how
//        many blocks there were.
// Limit: DRAM; for few keys the latency of two kernels.
//
//   all warps     wait k_full[s];  scores of 16 keys;  largest of each row -> shared memory
//   barrier       thread 0: refills k[s], and v of the tile before
//   all warps     weights -> shared memory
//   barrier
//   all warps     l += weights;  wait v_full[s];  o += weights by values

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/order_attention_mma.h"
#include "kernels/attention/mma.h"
#include "kernels/common/launch.h"
#include "ptx/ldmatrix.cuh"
#include "ptx/max_nan.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda::attention {
namespace {

namespace order = tiled::attention_mma;

// --- The tile and its shared memory --------------------------------------------------------------

constexpr int kKeys = kMmaRows, kRows = 16, kWarps = 4, kThreads = kWarps * 32;
constexpr int kTilesOfChunk = order::kChunk / kKeys;

// kBlocks: of 64 columns of q, k and v.
template <typename T_, int kBlocks_>
struct Tile {
  using T = T_;
  static constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
  static constexpr int kShift = order::kShift<T>;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kSteps = kBlocks * 4;     // products over the columns of q and k
  static constexpr int kOutTiles = kBlocks * 2;  // of 8 columns, of a warp
  static constexpr int kBlocksOfSm = kBlocks == 4 ? 1 : 2;
  static constexpr int kStages = kBlocks == 1 ? 6 : 3;
};

using Box = uint8_t[kKeys * 128];  // 64 rows of 64 columns, swizzled

template <class Tile>
struct Smem {
  static constexpr int kPitch = kKeys + 8;  // puts rows into different banks
  alignas(1024) Box k[Tile::kStages][Tile::kBlocks];
  Box v[Tile::kStages][Tile::kBlocks];
  alignas(16) uint16_t weights[kRows][kPitch];
  float largest[kWarps][kRows];
  uint64_t k_full[Tile::kStages], v_full[Tile::kStages];
};

struct Params {
  AttentionProblem p;
  HeadsMap k, v;
  int group;  // heads of q that share keys
  uint32_t row_tiles;
  int chunks_per_block;
  ChunkStates states;
};

// The address of 16 bytes in a swizzled box.
__device__ inline const uint8_t* in_box(const Box& box, int row, int byte) {
  return &box[row * 128 + (byte ^ row % 8 * 16)];
}

// --- Loading -------------------------------------------------------------------------------------

template <class Tile>
struct Loader {
  const Params& params;
  Smem<Tile>& smem;
  int first_tile, tiles, kv_head, batch;

  __device__ void load(Box (&to)[Tile::kBlocks], const HeadsMap& map, int tile,
                       uint64_t* full) const {
    ptx::arrive_expect_tx(full, sizeof(to));
    UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      int at[5];
      map.coords(block * 64, tile * kKeys, kv_head, batch, at);
      ptx::tma_load(to[block], &map.map, at, full);
    }
  }
  __device__ void load_keys(int tile) const {
    const int s = (tile - first_tile) % Tile::kStages;
    if (tile < tiles) load(smem.k[s], params.k, tile, &smem.k_full[s]);
  }
  __device__ void load_values(int tile) const {
    const int s = (tile - first_tile) % Tile::kStages;
    if (tile < tiles) load(smem.v[s], params.v, tile, &smem.v_full[s]);
  }
};

// --- A block -------------------------------------------------------------------------------------

// A thread has rows lane / 4 and lane / 4 + 8.
struct Row {
  int head, query, end;  // of the keys that it sees

  __device__ Row(const Params& params, int kv_head, int row) {
    const auto queries = static_cast<int>(params.p.queries);
    const bool exists = row < params.group * queries;
    const int of_group = exists ? row / queries : 0;
    head = kv_head * params.group + of_group;
    query = exists ? row - of_group * queries : 0;
    end = exists ? static_cast<int>(params.p.visible_keys(query)) : -1;
  }
  __device__ bool exists() const { return end >= 0; }
};

// The fragments of q: rows lane / 4 and + 8, of any strides.
template <class Tile>
__device__ void load_queries(const AttentionProblem& p, int batch, const Row (&rows)[2],
                             uint32_t (&q)[Tile::kSteps][4]) {
  const auto columns = static_cast<int>(p.head_size);
  const auto* data = static_cast<const uint16_t*>(p.q.data) + batch * p.q.batch_stride;
  UNROLL
  for (int i = 0; i < Tile::kSteps * 4; ++i) {
    const Row& row = rows[i % 2];
    const int column = i / 4 * 16 + i / 2 % 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
    const auto* at = data + row.head * p.q.head_stride + row.query * p.q.row_stride;
    const auto element = [&](int c) {
      const bool inside = row.exists() && c < columns;
      return inside ? uint32_t{__ldg(at + c * p.q.col_stride)} : 0u;
    };
    q[i / 4][i % 4] = element(column) | element(column + 1) << 16;
  }
}

// scores of the warp's 16 keys: accumulator i is in row i / 2 % 2, and key i / 4 * 8 + lane % 4 * 2
// + i % 2.
template <class Tile>
__device__ void multiply_keys(const uint32_t (&q)[Tile::kSteps][4], const Box (&k)[Tile::kBlocks],
                              float (&scores)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Matrices: keys 0 to 7 of columns 0 to 7 and 8 to 15, then keys 8 to 15.
  const int row = warp * 16 + lane / 16 * 8 + lane % 8, byte = lane / 8 % 2 * 16;
  UNROLL
  for (int step = 0; step < Tile::kSteps; ++step) {
    uint32_t b[4];
    ptx::ldmatrix_x4(b, in_box(k[step / 4], row, step % 4 * 32 + byte));
    const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
    ptx::mma_m16n8k16<Tile::kBFloat16>(scores[0], q[step], left);
    ptx::mma_m16n8k16<Tile::kBFloat16>(scores[1], q[step], right);
  }
}

template <class Tile>
__device__ void multiply_values(const uint32_t (&weights)[kKeys / 16][4],
                                const Box (&v)[Tile::kBlocks], float (&out)[Tile::kOutTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Matrices: keys 0 to 7 and 8 to 15 of columns 0 to 7, then of columns 8 to 15.
  const int row = lane / 8 % 2 * 8 + lane % 8;
  UNROLL
  for (int step = 0; step < kKeys / 16; ++step) {
    UNROLL
    for (int tile = 0; tile < Tile::kOutTiles; tile += 2) {
      const int column = (warp * Tile::kOutTiles + tile + lane / 16) * 8;
      uint32_t b[4];
      ptx::ldmatrix_x4<true>(b, in_box(v[column / 64], step * 16 + row, column % 64 * 2));
      const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      ptx::mma_m16n8k16<Tile::kBFloat16>(out[tile], weights[step], left);
      ptx::mma_m16n8k16<Tile::kBFloat16>(out[tile + 1], weights[step], right);
    }
  }
}

// The state of two rows: of a chunk, or of all.
template <class Tile>
struct State {
  int exponent[2] = {order::kLowest, order::kLowest};
  float sum[2] = {0, 0};
  float out[Tile::kOutTiles][4] = {};

  __device__ void rescale(const int (&grown)[2]) {
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const float factor = order::rescale_factor(grown[row] - exponent[row]);
      exponent[row] = grown[row];
      sum[row] *= factor;
      UNROLL
      for (auto& each : out) each[row * 2] *= factor, each[row * 2 + 1] *= factor;
    }
  }
  // Adds the weights of 64 keys to the thread's part of l.
  __device__ void add(const uint32_t (&weights)[kKeys / 16][4]) {
    UNROLL
    for (int i = 0; i < kKeys / 4; ++i) {
      const uint32_t two = weights[i / 4][i % 4];
      float& l = sum[i % 2];
      if constexpr (Tile::kBFloat16) {
        l += float_of(two << 16);
        l += float_of(two & 0xffff0000u);
      } else {
        const float2 rounded = __half22float2(reinterpret_cast<const __half2&>(two));
        l += rounded.x;
        l += rounded.y;
      }
    }
  }
  // l of the whole row.
  __device__ float row_sum(int row) const {
    const float x = sum[row] + __shfl_xor_sync(~0u, sum[row], 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  __device__ void join(const State& chunk) {
    UNROLL
    for (int row = 0; row < 2; ++row) {
      const auto by = tiled::attention::join_exponents(exponent[row], chunk.exponent[row]);
      exponent[row] = by.joined;
      sum[row] = tiled::attention::join(sum[row], chunk.row_sum(row), by);
      UNROLL
      for (int i = 0; i < Tile::kOutTiles; ++i) {
        UNROLL
        for (int j = row * 2; j < row * 2 + 2; ++j) {
          out[i][j] = tiled::attention::join(out[i][j], chunk.out[i][j], by);
        }
      }
    }
  }
};

// Calls store(row, column, x, y) for pairs of columns of a state.
template <class Tile, class Store>
__device__ void for_pairs(const State<Tile>& state, const Store& store) {
  const int thread = static_cast<int>(threadIdx.x);
  UNROLL
  for (int i = 0; i < Tile::kOutTiles; ++i) {
    const int column = (thread / 32 * Tile::kOutTiles + i) * 8 + thread % 4 * 2;
    UNROLL
    for (int row = 0; row < 2; ++row) {
      store(row, column, state.out[i][row * 2], state.out[i][row * 2 + 1]);
    }
  }
}

template <class Tile>
__device__ void store_chunk(const Params& params, int batch, const Row (&rows)[2],
                            const State<Tile>& state, int chunk) {
  const ChunkStates& to = params.states;
  const AttentionProblem& p = params.p;
  int64_t index[2];
  UNROLL
  for (int row = 0; row < 2; ++row) {
    const int64_t query = (batch * p.heads + rows[row].head) * p.queries + rows[row].query;
    index[row] = query * to.chunks + chunk;
    const float l = state.row_sum(row);
    if (threadIdx.x < 32 && threadIdx.x % 4 == 0 && rows[row].exists()) {
      to.states[index[row]] = {state.exponent[row], l};
    }
  }
  for_pairs<Tile>(state, [&](int row, int column, float x, float y) {
    if (!rows[row].exists() || column >= to.columns) return;
    *reinterpret_cast<float2*>(to.out + index[row] * to.columns + column) = {x, y};
  });
}

template <class Tile>
__device__ void store_out(const AttentionProblem& p, int batch, const Row (&rows)[2],
                          const State<Tile>& state) {
  using T = typename Tile::T;
  UNROLL
  for (int row = 0; row < 2; ++row) {
    if (threadIdx.x >= 32 || threadIdx.x % 4 != 0 || !rows[row].exists()) continue;
    const int64_t index = (batch * p.heads + rows[row].head) * p.queries + rows[row].query;
    p.sum[index] = state.sum[row];
    p.exponent[index] = state.exponent[row] - Tile::kShift;
  }
  const float inverse[2] = {order::inverse_sum(state.sum[0]), order::inverse_sum(state.sum[1])};
  for_pairs<Tile>(state, [&](int row, int column, float x, float y) {
    if (!rows[row].exists()) return;
    T* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride +
            rows[row].head * p.out.head_stride + rows[row].query * p.out.row_stride + column;
    if (column < p.value_size) to[0] = narrow<T>(order::normalized(x, inverse[row]));
    if (column + 1 < p.value_size) to[1] = narrow<T>(order::normalized(y, inverse[row]));
  });
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, Tile::kBlocksOfSm)
    mma_decode_kernel(const __grid_constant__ Params params) {
  using T = typename Tile::T;
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  const AttentionProblem& p = params.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      ptx::mbarrier_init(&smem.k_full[s], 1);
      ptx::mbarrier_init(&smem.v_full[s], 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();

  const uint32_t matrix = blockIdx.x / params.row_tiles;  // of k and v
  const int first_row = static_cast<int>(blockIdx.x - matrix * params.row_tiles) * kRows;
  const auto kv_heads = static_cast<uint32_t>(p.kv_heads);
  const int batch = static_cast<int>(matrix / kv_heads);
  const int kv_head = static_cast<int>(matrix - static_cast<uint32_t>(batch) * kv_heads);
  const Row rows[2] = {Row(params, kv_head, first_row + lane / 4),
                       Row(params, kv_head, first_row + lane / 4 + 8)};
  // Keys that any row of the block sees.
  const int end = __reduce_max_sync(~0u, max(rows[0].end, rows[1].end));
  const bool shares_keys = params.states.out != nullptr;
  const int tiles_of_block = params.chunks_per_block * kTilesOfChunk;
  const int first_tile = shares_keys ? static_cast<int>(blockIdx.y) * tiles_of_block : 0;
  const int all_tiles = static_cast<int>(ceil_div(max(end, 0), kKeys));
  const int tiles = shares_keys ? min(first_tile + tiles_of_block, all_tiles) : all_tiles;
  if (shares_keys && first_tile >= tiles) return;

  const Loader<Tile> loader{params, smem, first_tile, tiles, kv_head, batch};
  if (thread == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      loader.load_keys(first_tile + s);
      loader.load_values(first_tile + s);
    }
  }
  uint32_t q[Tile::kSteps][4];
  load_queries<Tile>(p, batch, rows, q);
  const float c = tiled::attention::log2_scale(p.scale), c_of_span = c * (1 / order::kSpan);
  State<Tile> chunk, total;
  ptx::PipelineState pipe{.stages = Tile::kStages};
  NO_UNROLL
  for (int tile = first_tile; tile < tiles; ++tile, pipe.advance()) {
    const int s = pipe.stage;
    float scores[2][4] = {};
    ptx::mbarrier_wait(&smem.k_full[s], pipe.parity);
    multiply_keys<Tile>(q, smem.k[s], scores);
    float bias[8], largest[2] = {-INFINITY, -INFINITY};
    bool seen[8];
    UNROLL
    for (int i = 0; i < 8; ++i) {
      const Row& row = rows[i / 2 % 2];
      const int key = tile * kKeys + warp * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      seen[i] = key < row.end;
      bias[i] = 0;
      if (p.mask_kind != MaskKind::kNone && seen[i]) {
        const int64_t of_head = p.mask_of_head(batch, row.head);
        bias[i] = order::log2_bias(p.bias(of_head, row.query, key, seen[i]));
      }
      const float z = seen[i] ? fmaf(scores[i / 4][i % 4], c, bias[i]) : -INFINITY;
      largest[i / 2 % 2] = ptx::max_nan(largest[i / 2 % 2], z);
    }
    UNROLL
    for (int row = 0; row < 2; ++row) {
      float& x = largest[row];
      x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 1));
      x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 2));
      if (lane % 4 == 0) smem.largest[warp][lane / 4 + row * 8] = x;
    }
    ptx::fence_proxy_async();
    __syncthreads();  // all warps have multiplied the keys, and the values before
    if (thread == 0) {
      if (tile > first_tile) loader.load_values(tile - 1 + Tile::kStages);
      loader.load_keys(tile + Tile::kStages);
    }
    if (tile % kTilesOfChunk == 0) chunk = State<Tile>();
    int grown[2];
    float place[2];
    bool is_nan[2];
    UNROLL
    for (int row = 0; row < 2; ++row) {
      float x = -INFINITY;
      UNROLL
      for (const auto& of_warp : smem.largest) x = ptx::max_nan(x, of_warp[lane / 4 + row * 8]);
      is_nan[row] = x != x;
      grown[row] = max(chunk.exponent[row], order::exponent_above(x));
      place[row] = order::place_of_zero(grown[row]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 2) {
      float x[2];
      UNROLL
      for (int j = 0; j < 2; ++j) {
        const float at = order::place_with_bias(place[i / 2 % 2], bias[i + j]);
        const float place_of_key = order::weight_place(scores[i / 4][i % 4 + j], c_of_span, at);
        x[j] = seen[i + j] ? order::weight<Tile::kShift>(place_of_key) : 0;
      }
      const int row = lane / 4 + i / 2 % 2 * 8, key = warp * 16 + i / 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(&smem.weights[row][key]) =
          ptx::pack_x2<Tile::kBFloat16>(x[0], x[1]);
    }
    __syncthreads();
    uint32_t weights[kKeys / 16][4];
    UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      const int column = step * 16 + lane / 16 * 8;
      ptx::ldmatrix_x4(weights[step], &smem.weights[lane % 16][column]);
    }
    chunk.rescale(grown);
    UNROLL
    for (int row = 0; row < 2; ++row) {
      if (is_nan[row]) chunk.sum[row] = NAN;
    }
    chunk.add(weights);
    ptx::mbarrier_wait(&smem.v_full[s], pipe.parity);
    multiply_values<Tile>(weights, smem.v[s], chunk.out);
    if (tile % kTilesOfChunk != kTilesOfChunk - 1 && tile + 1 < tiles) continue;
    if (shares_keys) {
      store_chunk<Tile>(params, batch, rows, chunk, tile / kTilesOfChunk);
    } else {
      total.join(chunk);
    }
  }
  if (!shares_keys) store_out<Tile>(p, batch, rows, total);
}

// --- Joining the chunks of a query ---------------------------------------------------------------

struct JoinParams {
  AttentionProblem p;
  ChunkStates states;
};

constexpr int kJoinColumns = 32, kJoinThreads = 256;  // of a block, for one query

template <typename T>
__global__ void __launch_bounds__(kJoinThreads)
    join_chunks_kernel(const __grid_constant__ JoinParams params) {
  constexpr int kAtOnce = 128;  // chunks
  __shared__ float out_of_chunks[kAtOnce][kJoinColumns];
  __shared__ ChunkStates::State states[kAtOnce];
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const AttentionProblem& p = params.p;
  const ChunkStates& from = params.states;
  const auto queries = static_cast<uint32_t>(p.queries), heads = static_cast<uint32_t>(p.heads);
  const uint32_t matrix = blockIdx.x / queries, query = blockIdx.x - matrix * queries;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.y) * kJoinColumns + thread % kJoinColumns;
  const int chunks = static_cast<int>(ceil_div(p.visible_keys(query), order::kChunk));
  const int64_t index = blockIdx.x * from.chunks;
  int exponent = order::kLowest;
  float sum = 0, out = 0;
  for (int first = 0; first < chunks; first += kAtOnce) {
    const int count = min(kAtOnce, chunks - first);
    __syncthreads();
    constexpr int kWarps = kJoinThreads / 32;
    UNROLL
    for (int i = 0; i < kAtOnce; i += kWarps) {
      const int chunk = i + thread / 32;
      if (chunk >= count || column >= from.columns) continue;
      out_of_chunks[chunk][thread % 32] = from.out[(index + first + chunk) * from.columns + column];
    }
    if (thread < count) states[thread] = from.states[index + first + thread];
    __syncthreads();
    if (thread >= kJoinColumns) continue;
    _Pragma("unroll 8") for (int i = 0; i < count; ++i) {
      const ChunkStates::State state = states[i];
      const auto by = tiled::attention::join_exponents(exponent, state.exponent);
      exponent = by.joined;
      sum = tiled::attention::join(sum, state.sum, by);
      out = tiled::attention::join(out, out_of_chunks[i][thread], by);
    }
  }
  if (thread >= kJoinColumns) return;
  const uint32_t batch = matrix / heads, head = matrix - batch * heads;
  if (column < p.value_size) {
    auto* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride +
               query * p.out.row_stride + column;
    *to = narrow<T>(order::normalized(out, order::inverse_sum(sum)));
  }
  if (column == 0) {
    p.sum[blockIdx.x] = sum;
    p.exponent[blockIdx.x] = exponent - order::kShift<T>;
  }
}
static_assert(kJoinColumns == 32, "a warp joins the chunks of a block");

// --- Launches ------------------------------------------------------------------------------------

template <class Tile>
void launch_tile(const AttentionProblem& p, int64_t chunks_per_block, const ChunkStates& states,
                 const Context& context) {
  const int64_t group = p.heads / p.kv_heads;
  const Params params{.p = p,
                      .k = heads_map(p.k, p.batch, p.kv_heads, p.keys, p.head_size, p.dtype),
                      .v = heads_map(p.v, p.batch, p.kv_heads, p.keys, p.value_size, p.dtype),
                      .group = static_cast<int>(group),
                      .row_tiles = static_cast<uint32_t>(ceil_div(group * p.queries, kRows)),
                      .chunks_per_block = static_cast<int>(chunks_per_block),
                      .states = states};
  constexpr size_t kSmem = sizeof(Smem<Tile>);
  static_assert(kSmem * Tile::kBlocksOfSm + (Tile::kBlocksOfSm << 10) <= kMaxSharedMemory + 1024);
  const auto kernel = mma_decode_kernel<Tile>;
  allow_shared_memory(kernel, kSmem);
  const auto blocks = static_cast<unsigned>(p.batch * p.kv_heads * params.row_tiles);
  const bool shares_keys = states.out != nullptr;
  const int64_t shares = shares_keys ? ceil_div(states.chunks, chunks_per_block) : 1;
  launch_pdl(kernel, dim3(blocks, static_cast<unsigned>(shares)), kThreads, kSmem, context, params);
  if (!shares_keys) return;
  const int64_t columns = std::max<int64_t>(p.value_size, 1);
  const dim3 rows(static_cast<unsigned>(p.batch * p.heads * p.queries),
                  static_cast<unsigned>(ceil_div(columns, kJoinColumns)));
  launch_pdl(join_chunks_kernel<typename Tile::T>, rows, kJoinThreads, 0, context,
             JoinParams{p, states});
}

template <typename T>
void launch_columns(const AttentionProblem& p, int64_t chunks_per_block, const ChunkStates& states,
                    const Context& context) {
  const auto launch = p.columns() <= 64    ? launch_tile<Tile<T, 1>>
                      : p.columns() <= 128 ? launch_tile<Tile<T, 2>>
                                           : launch_tile<Tile<T, 4>>;
  launch(p, chunks_per_block, states, context);
}

}  // namespace

void launch_mma_decode(const AttentionProblem& p, int64_t chunks_per_block,
                       const ChunkStates& states, const Context& context) {
  p.dtype == DType::kFloat16 ? launch_columns<Half>(p, chunks_per_block, states, context)
                             : launch_columns<BFloat16>(p, chunks_per_block, states, context);
}

}  // namespace tiled::cuda::attention
