// 13 mma_bulk: products of halves, by Hopper's tensor cores as fast as shared memory feeds them.
//
// Idea:  wgmma reads both operands from shared memory by itself, whichever way they lie, so that no
//        layout has to be turned; the copy engine brings them there. Lines that do not begin at
//        multiples of 16 bytes are copied to some that do first. One thread asks for steps of
//        64 of K, several ahead and on into the next tile; two warpgroups have 64 rows of the tile
//        each, all its columns, and issue nothing but products. What L2 gives is the next limit: so
//        blocks are in clusters, and what two of them need each asks for half of, for both. They go
//        on to other tiles, in bands that share what they read in the cache. Sums leave by way of
//        shared memory, so that what is written to C are whole sectors.
// Limit: nobody multiplies while a tile is stored (2 % at 4096, 6 % at 2048); power.
// Next:  a warpgroup that stores while the other multiplies; K cut where there are few tiles.
//
//   producer    wait empty[s]     copy A and B of a step into stage s, here and in the blocks that
//                                 share them -> full[s] of each
//   consumers   wait full[s]      issue four products; those of the stage before are finished
//                                 -> empty[s - 1] of each block that copies there
//   at the end of a chunk its sums are added to those before, which wait in memory, that is, in L2.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "chained.h"
#include "device/cluster.cuh"
#include "device/copy_async.cuh"
#include "device/halves.cuh"
#include "device/pipeline.cuh"
#include "device/registers.cuh"
#include "device/wgmma.cuh"
#include "element.h"
#include "epilogue.h"
#include "kernels/map_place.cuh"
#include "kernels/mma_kind.h"
#include "kernels/mma_lines.h"
#include "kernels/tensor_map.h"
#include "kernels/tile_band.cuh"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {

void launch_mma_ring(const Problem& p, const Context& context);

namespace {

namespace wgmma = device::wgmma;

// kAAcross: neighbours lie along A's rows, across K, or else along K; kBAcross likewise B's
// columns.
template <class T_, int kIndex, int kStages_, bool kAAcross_, bool kBAcross_>
struct Tile {
  using T = T_;
  static constexpr int kM = kMmaBulkTiles[kIndex].m, kN = kMmaBulkTiles[kIndex].n;
  static constexpr int kK = 64;  // of a stage: a line of 128 bytes
  static constexpr int kStages = kStages_;
  static constexpr bool kAAcross = kAAcross_, kBAcross = kBAcross_;
  static constexpr int kClusterM = kMmaBulkTiles[kIndex].cluster_m;  // blocks
  static constexpr int kClusterN = kMmaBulkTiles[kIndex].cluster_n;
  static constexpr int kCluster = kClusterM * kClusterN;
  static constexpr int kWarpgroup = 128;
  static constexpr int kConsumers = 2;  // warpgroups, each 64 rows
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kElements = kN / 2;    // of C a thread
  static constexpr int kBlock = 64 * kK * 2;  // bytes of 64 rows in a stage

  static_assert(kM == kConsumers * 64 && kN % 64 == 0 && chained::kChunk % kK == 0);
  static_assert(kCluster == 2, "each block copies for both");
};

// The tiles of a cluster, one above the other, which share B, or side by side, which share A. Bands
// are eight tiles of rows.
template <class Tile>
struct ClusterTile {
  static constexpr int kM = Tile::kClusterM * Tile::kM, kN = Tile::kClusterN * Tile::kN;
  static constexpr int kBand = 8 / Tile::kClusterM;
};

// The block in its cluster, and the tile that it has of its cluster's.
__device__ unsigned rank() { return blockIdx.x % 2; }

template <class Tile>
__device__ Position locate_own(const Problem& p, int64_t index) {
  Position at = locate<ClusterTile<Tile>>(p, index);
  if (rank() == 1) at.row += ClusterTile<Tile>::kM - Tile::kM;
  if (rank() == 1) at.col += ClusterTile<Tile>::kN - Tile::kN;
  return at;
}

// What a warp stores at a time: its rows, and so many columns, as float32 or as halves. Lanes that
// write eight rows meet no bank twice.
constexpr int kStored = 32, kPitch = kStored + 8;
constexpr int kStoredHalves = 64, kHalvesPitch = kStoredHalves + 8;
union Leaving {
  float sums[16][kPitch];
  alignas(16) uint16_t halves[16][kHalvesPitch];
};

template <class Tile>
struct Smem {
  alignas(1024) uint8_t a[Tile::kStages][Tile::kM * Tile::kK * 2];
  alignas(1024) uint8_t b[Tile::kStages][Tile::kN * Tile::kK * 2];
  alignas(16) Leaving leaving[Tile::kConsumers * 4];  // a warp's
  uint64_t full[Tile::kStages], empty[Tile::kStages];
};

// Of an operand: boxes of a tile's part, and of what the last tile has of it; or, where its
// neighbours lie across K, of 64 of them.
struct Maps {
  CUtensorMap whole, last;
};

struct Work {
  Problem p;
  Maps a, b;
  bool by_fours;      // C is written by four neighbours of a row, of which none or all are inside
  bool by_eights;     // likewise
  bool halves, ends;  // store_halves() does, and its kEnds
  int64_t tiles;      // of clusters
  float4* totals;     // of each block's threads, where there are several chunks
};

// Copies steps of K of an operand's part of a tile, kRows of A's rows or B's columns, of which
// `left` are in the matrix. Where kShare is 2 both blocks need it, and each asks for half, for
// both. What is not in the matrix is not asked for, as far as boxes go: the engine takes some 15
// clocks for each line that it fills with zeros. What then lies there is never stored.
template <int kRows, bool kAcross, int kShare>
struct Part {
  static constexpr int kBlock = 64 * 128;  // bytes of a box across K
  const Maps& maps;
  int first, left;
  MapPlace matrix;

  // That come, whoever asks.
  __device__ int bytes() const {
    if (kAcross) return static_cast<int>(min(ceil_div(left, 64), int64_t{kRows / 64})) * kBlock;
    return min(left, kRows) * 128;
  }
  __device__ void copy(uint8_t* to, int k, uint64_t* full, uint64_t policy) const {
    if constexpr (kAcross) {
      UNROLL
      for (int i = 0; i < kRows; i += 64) {
        if (i / 64 % kShare == rank() % kShare && i < left) {
          box(to + i / 64 * kBlock, maps.whole, first + i, k, full, policy);
        }
      }
    } else {
      constexpr int kOwn = kRows / kShare;
      const int own = static_cast<int>(rank() % kShare) * kOwn;
      if (own >= left) return;
      box(to + own * 128, left - own >= kOwn ? maps.whole : maps.last, k, first + own, full,
          policy);
    }
  }

 private:
  __device__ void box(uint8_t* to, const CUtensorMap& map, int near, int far, uint64_t* full,
                      uint64_t policy) const {
    const int at[] = {near, far, matrix.at[0], matrix.at[1], matrix.at[2]};
    if constexpr (kShare == 2) {
      device::copy_box_to(0b11, to, &map, at, full, policy);
    } else {
      device::copy_box(to, &map, at, full, policy);
    }
  }
};

template <class Tile>
__device__ void produce(const Work& work, Smem<Tile>& smem) {
  const uint64_t policy = device::read_again();
  const Problem& p = work.p;
  device::Ring ring{.stages = Tile::kStages, .parity = 1};
  constexpr unsigned kCluster = Tile::kCluster;
  for (int64_t index = blockIdx.x / kCluster; index < work.tiles; index += gridDim.x / kCluster) {
    const Position tile = locate_own<Tile>(p, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(max(min(all - first, int64_t{1} << 16), int64_t{0}));
    };
    const Part<Tile::kM, Tile::kAAcross, Tile::kClusterN> a{work.a, tile.row, left(p.m, tile.row),
                                                            MapPlace(p.batch, p.a, tile.batch)};
    const Part<Tile::kN, Tile::kBAcross, Tile::kClusterM> b{work.b, tile.col, left(p.n, tile.col),
                                                            MapPlace(p.batch, p.b, tile.batch)};
    const int bytes = a.bytes() + b.bytes();
    for (int64_t k = 0; k < p.k; k += Tile::kK, ring.next()) {
      uint64_t* full = &smem.full[ring.stage];
      device::wait(&smem.empty[ring.stage], ring.parity);
      device::arrive_expecting(full, bytes);
      a.copy(smem.a[ring.stage], static_cast<int>(k), full, policy);
      b.copy(smem.b[ring.stage], static_cast<int>(k), full, policy);
    }
  }
}

// Two halves, the first in the lower bits.
template <class T>
__device__ uint32_t pair(float x, float y) {
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 two = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const uint32_t&>(two);
  }
}

// Stores four neighbours of a row at once.
template <class Out>
__device__ void store_vector(Out* c, const float (&x)[4]) {
  if constexpr (std::is_same_v<Out, float>) {
    __stcg(reinterpret_cast<float4*>(c), make_float4(x[0], x[1], x[2], x[3]));
  } else {
    __stcg(reinterpret_cast<uint2*>(c), make_uint2(pair<Out>(x[0], x[1]), pair<Out>(x[2], x[3])));
  }
}

// Ends a sum that is inside, but for its activation. `bias` is that of its column.
template <class Out>
__device__ float combined(const Problem& p, const Out* c, float sum, float bias) {
  return combine(p.epilogue, sum, bias, p.epilogue.beta == 0 ? 0.0f : widen(*c));
}

template <class T>
__device__ float bias_of(const Problem& p, int64_t col) {
  if (p.epilogue.bias == nullptr || col >= p.n) return 0;
  return widen(static_cast<const T*>(p.epilogue.bias)[col * p.epilogue.bias_stride]);
}

// Stores a warp's rows of a tile that begins at (row, col), kStored columns at a time: four a lane
// where C is written so, or one. Sums move up to the registers that are stored, so that the loop
// stays one.
template <class Tile, class Out>
__device__ void store_rows(const Work& work, Out* c, int64_t row, int64_t col,
                           float (&sums)[Tile::kElements], float (&leaving)[16][kPitch]) {
  using T = typename Tile::T;
  static_assert(kStored == 32, "a lane has a column");
  constexpr int kEach = kStored / 2;  // sums of a thread
  const Problem& p = work.p;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  c += row * p.c.row_stride;
  NO_UNROLL
  for (int first = 0; first < Tile::kN; first += kStored) {
    const int64_t own = col + first + (work.by_fours ? lane % 8 * 4 : lane);
    float bias[4];
    UNROLL
    for (int j = 0; j < 4; ++j) bias[j] = bias_of<T>(p, own + j);
    UNROLL
    for (int i = 0; i < kEach; i += 2) {
      *reinterpret_cast<float2*>(&leaving[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
          sums[i], sums[i + 1]};
    }
    __syncwarp();
    Out* to = c + own * p.c.col_stride;
    if (own < p.n && work.by_fours) {
      NO_UNROLL
      for (int down = lane / 8; down < rows; down += 4) {
        float x[4];
        *reinterpret_cast<float4*>(x) =
            *reinterpret_cast<const float4*>(&leaving[down][lane % 8 * 4]);
        Out* at = to + down * p.c.row_stride;
        UNROLL
        for (int j = 0; j < 4; ++j) x[j] = combined(p, at + j, x[j], bias[j]);
        activate_each(p.epilogue.activation, x);
        store_vector(at, x);
      }
    } else if (own < p.n) {
      NO_UNROLL
      for (int down = 0; down < rows; ++down) {
        float x[1] = {leaving[down][lane]};
        Out* at = to + down * p.c.row_stride;
        x[0] = combined(p, at, x[0], bias[0]);
        activate_each(p.epilogue.activation, x);
        *at = narrow<Out>(x[0]);
      }
    }
    __syncwarp();
    UNROLL
    for (int i = 0; i + kEach < Tile::kElements; ++i) sums[i] = sums[i + kEach];
  }
}

// Likewise of halves that are neighbours in a row of C; kEnds: with a bias or ReLU, or nothing else
// is done to sums.
template <class Tile, bool kEnds>
__device__ void store_halves(const Work& work, typename Tile::T* c, int64_t row, int64_t col,
                             const float (&sums)[Tile::kElements],
                             uint16_t (&leaving)[16][kHalvesPitch]) {
  using T = typename Tile::T;
  const Problem& p = work.p;
  const bool relu = p.epilogue.activation == Activation::kRelu;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  c += row * p.c.row_stride + col;
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStoredHalves) {
    UNROLL
    for (int right = 0; right < kStoredHalves; right += 16) {
      uint32_t pairs[4];  // rows and columns in eights, rows first
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const int at = first + right + i * 8;
        float bias[2] = {};
        if constexpr (kEnds) {
          bias[0] = bias_of<T>(p, col + at + lane % 4 * 2);
          bias[1] = bias_of<T>(p, col + at + lane % 4 * 2 + 1);
        }
        UNROLL
        for (int j = 0; j < 2; ++j) {
          float x = sums[at / 2 + j * 2], y = sums[at / 2 + j * 2 + 1];
          if (kEnds && p.epilogue.bias != nullptr) x += bias[0], y += bias[1];
          if (kEnds && relu) x = activate(Activation::kRelu, x), y = activate(Activation::kRelu, y);
          pairs[i * 2 + j] = pair<T>(x, y);
        }
      }
      device::store_matrices(&leaving[lane % 16][right + lane / 16 * 8], pairs);
    }
    __syncwarp();
    if (work.by_eights) {
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8, right = lane % 8 * 8;
        if (down < rows && first + right < cols) {
          __stcg(reinterpret_cast<uint4*>(c + down * p.c.row_stride + first + right),
                 *reinterpret_cast<const uint4*>(&leaving[down][right]));
        }
      }
    } else {
      _Pragma("unroll 4") for (int down = 0; down < rows; ++down) {
        UNROLL
        for (int right = lane; right < kStoredHalves; right += 32) {
          if (first + right >= cols) break;
          c[down * p.c.row_stride + first + right] = {leaving[down][right]};
        }
      }
    }
    __syncwarp();
  }
}

template <class Tile>
__device__ void consume(const Work& work, Smem<Tile>& smem) {
  constexpr int kNone = -1;
  const int warpgroup = threadIdx.x / Tile::kWarpgroup - 1;
  const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
  constexpr int kA16 = Tile::kAAcross ? 128 : 2, kB16 = Tile::kBAcross ? 128 : 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const Problem& p = work.p;
  constexpr unsigned kCluster = Tile::kCluster;
  const auto release = [&](int stage) {
    if (lane < Tile::kCluster) device::arrive_at(&smem.empty[stage], lane);
  };
  device::Ring ring{.stages = Tile::kStages};
  for (int64_t index = blockIdx.x / kCluster; index < work.tiles; index += gridDim.x / kCluster) {
    float sums[Tile::kElements];
    for (int64_t chunk = 0; chunk < p.k; chunk += chained::kChunk) {
      UNROLL
      for (float& each : sums) each = 0;
      const auto length = static_cast<int>(min(p.k - chunk, int64_t{chained::kChunk}));
      int to_release = kNone;
      NO_UNROLL
      for (int k = 0; k < length; k += Tile::kK, ring.next()) {
        device::wait(&smem.full[ring.stage], ring.parity);
        const uint64_t a =
            wgmma::describe_lines<Tile::kBlock>(smem.a[ring.stage] + warpgroup * Tile::kBlock);
        const uint64_t b = wgmma::describe_lines<Tile::kBlock>(smem.b[ring.stage]);
        wgmma::keep(sums);
        wgmma::fence();
        UNROLL
        for (int i = 0; i < Tile::kK / chained::kDepth; ++i) {
          wgmma::multiply_add<kBFloat16, Tile::kAAcross, Tile::kBAcross>(sums, a + i * kA16,
                                                                         b + i * kB16, true);
        }
        wgmma::commit();
        wgmma::wait<1>();
        if (to_release != kNone) release(to_release);
        to_release = ring.stage;
      }
      wgmma::wait<0>();
      wgmma::keep(sums);
      release(to_release);
      if (chunk == 0) {
        UNROLL
        for (float& each : sums) each += 0.0f;  // tensor cores may leave -0
      }
      if (p.k <= chained::kChunk) continue;
      constexpr int kMultipliers = Tile::kConsumers * Tile::kWarpgroup;
      float4* total = work.totals + int64_t{blockIdx.x} * (Tile::kElements / 4 * kMultipliers) +
                      (threadIdx.x - Tile::kWarpgroup);
      UNROLL
      for (int i = 0; i < Tile::kElements; i += 4, total += kMultipliers) {
        if (chunk > 0) {
          const float4 before = *total;
          sums[i] += before.x, sums[i + 1] += before.y;
          sums[i + 2] += before.z, sums[i + 3] += before.w;
        }
        if (chunk + chained::kChunk < p.k) {
          __stcg(total, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
        }
      }
    }
    const Position tile = locate_own<Tile>(p, index);
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const int64_t row = tile.row + warp * 16;
    auto store = [&]<class Out>(Out* c) {
      store_rows<Tile>(work, c + c_offset, row, tile.col, sums, smem.leaving[warp].sums);
    };
    auto* halves = static_cast<typename Tile::T*>(p.c.data) + c_offset;
    if (work.halves && work.ends) {
      store_halves<Tile, true>(work, halves, row, tile.col, sums, smem.leaving[warp].halves);
    } else if (work.halves) {
      store_halves<Tile, false>(work, halves, row, tile.col, sums, smem.leaving[warp].halves);
    } else if (p.out_dtype == DType::kFloat32) {
      store(static_cast<float*>(p.c.data));
    } else {
      store(static_cast<typename Tile::T*>(p.c.data));
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_bulk_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<Smem<Tile>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    device::init_stages(Tile::kStages, smem.full, 1, smem.empty,
                        Tile::kConsumers * 4 * Tile::kCluster);
    device::publish_barriers();
  }
  __syncthreads();
  device::say_started();
  device::wait_for_cluster();
  device::let_next_kernel_start();
  device::wait_for_previous_kernel();
  if (threadIdx.x < Tile::kWarpgroup) {
    device::give_registers<40>();
    if (threadIdx.x == 0) produce<Tile>(work, smem);
  } else {
    device::take_registers<232>();
    consume<Tile>(work, smem);
  }
  device::end_together();
}

// Whether store_halves() does all that is to be done.
bool stores_halves(const Problem& p) {
  const Epilogue& epilogue = p.epilogue;
  const Activation activation = epilogue.activation;
  return p.out_dtype == p.dtype && p.c.col_stride == 1 && epilogue.alpha == 1 &&
         epilogue.beta == 0 && (activation == Activation::kNone || activation == Activation::kRelu);
}

template <class Tile>
void run_tile(const Problem& p, const Context& context) {
  static_assert(sizeof(Smem<Tile>) <= kMaxSharedMemory);
  const auto map = [&](const Matrix& matrix, int64_t outer, int rows) {
    return tensor_map(p.batch, matrix, outer, p.k, rows, Tile::kK, CU_TENSOR_MAP_SWIZZLE_128B,
                      p.dtype);
  };
  const auto maps = [&](const Matrix& matrix, int64_t outer, int rows, bool across) {
    if (across) return Maps{map(matrix, outer, 64), {}};
    const auto last = static_cast<int>(outer % rows);
    return Maps{map(matrix, outer, rows), map(matrix, outer, last == 0 ? rows : last)};
  };
  const auto by = [&](int64_t count) {
    return p.n % count == 0 &&
           in_vectors(p.batch, p.c, p.c.col_stride, p.c.row_stride, count, size_of(p.out_dtype));
  };
  Work work{
      .p = p,
      .a = maps(p.a, p.m, Tile::kM / Tile::kClusterN, Tile::kAAcross),
      .b = maps(transposed(p.b), p.n, Tile::kN / Tile::kClusterM, Tile::kBAcross),
      .by_fours = by(4),
      .by_eights = by(8),
      .halves = stores_halves(p),
      .ends = !p.epilogue.is_none(),
      .tiles = count_tiles(p, Tile::kClusterM * Tile::kM, Tile::kClusterN * Tile::kN),
      .totals = nullptr,
  };
  const auto blocks = static_cast<unsigned>(
      Tile::kCluster * std::min<int64_t>(work.tiles, context.processors / Tile::kCluster));
  if (p.k > chained::kChunk) {
    const int64_t bytes = int64_t{blocks} * Tile::kM * Tile::kN * int64_t{sizeof(float)};
    work.totals = static_cast<float4*>(context.allocate_if_there_is(bytes));
    if (work.totals == nullptr) return launch_mma_ring(p, context);
  }
  const auto kernel = mma_bulk_kernel<Tile>;
  allow_shared_memory(kernel, sizeof(Smem<Tile>));
  launch_clusters_after(kernel, Tile::kCluster, blocks, Tile::kThreads, sizeof(Smem<Tile>), context,
                        work);
}

template <class T, bool kAAcross, bool kBAcross>
void run(const Problem& p, const Context& context) {
  switch (mma_bulk_plan(p, context.processors).tile) {
    case 0: return run_tile<Tile<T, 0, 4, kAAcross, kBAcross>>(p, context);
    case 1: return run_tile<Tile<T, 1, 5, kAAcross, kBAcross>>(p, context);
    case 2: return run_tile<Tile<T, 2, 6, kAAcross, kBAcross>>(p, context);
    case 3: return run_tile<Tile<T, 3, 8, kAAcross, kBAcross>>(p, context);
  }
}

}  // namespace

// Where there is no memory for copies of operands, or for totals, mma_ring needs none and gives the
// same bits.
void launch_mma_bulk(const Problem& p, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return;
  const std::optional<Problem> lines = in_lines_of_halves(p, context);
  if (!lines) return launch_mma_ring(p, context);
  with_mma_kind(*lines, [&]<class T, bool kAAcross, bool kBAcross>() {
    run<T, kAAcross, kBAcross>(*lines, context);
  });
}

}  // namespace tiled::cuda
