// 13 mma_tma: products of halves, by Hopper's tensor cores as fast as shared memory feeds them.
//
// Idea:  wgmma reads both operands from shared memory by itself, whichever way they lie, so that no
//        layout has to be swap_ab; the copy engine brings them there. Lines that do not begin at
//        multiples of 16 bytes are copied to some that do first; few columns of very many rows are
//        computed as few rows of the transpose. Two threads, or four where tiles are narrow, ask
//        for steps of 64 of K by turns, several ahead and on into the next tile; warpgroups have
//        64 rows of the tile each, all its columns, and issue nothing but products; of two, the
//        second multiplies its last steps when the first is done, alone and as fast as both, while
//        the first ends its sums. Blocks that run together ask for the same lines at about the
//        same time, in scheduler of tiles, and L2 merges that, as long as no request has a policy.
//        Pairs of the largest tiles are clusters: of B, which both need, each asks for half, for
//        both; so are smaller ones' where lines begin within L2's, since each is more than one
//        request then. Sums leave by way of shared memory, so that what is written to C are whole
//        sectors; of the largest tiles by the copy engine, while the next tile is multiplied. Where
//        there are few tiles, they are narrow, and blocks share out K's chunks, whose sums another
//        kernel adds in order. All but how sums end is mma_tma.cuh, which 14_tf32_bulk shares.
// Limit: power; for few tiles, a step's four products, each of which waits for the one before,
//        however narrow they are, and that K is cut at chunks alone; nobody multiplies while the
//        last sums of a block, or those of a single warpgroup, are rounded, which activations make
//        longer.
// Next:  tiles of odd widths; activations while others multiply.
//
//   producers   wait empty[s]     copy A and B of a step into stage s, half of B here and in the
//                                 block that shares it -> full[s] of each
//   consumers   wait full[s]      issue four products; those of the stage before are finished
//                                 -> empty[s - 1] of each block that copies there
//                                 the second waits before its last until the first has issued all
//   at the end of a chunk its sums are added to those before, which wait in registers, where C's
//   leave, and in L2, or go to memory, where K is cut.

#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>

#include "core/epilogue.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_bias.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pack.cuh"
#include "ptx/tma.cuh"

namespace tiled::cuda {

namespace {

struct EndWork : mma_tma::Work {
  bool by_fours;      // C is written by four neighbours of a row, of which none or all are inside
  bool by_eights;     // likewise
  bool simple;        // a bias and ReLU are all that is done to sums
  bool in_place;      // end_in_place() does it, and then nothing is left to do
  bool halves, ends;  // store_halves() stores them, and its kEnds
  bool boxes;         // store_boxes() does
  CUtensorMap c;      // by these
};

// What a warp stores at a time, of halves: its rows, and so many columns.
constexpr int kStoredHalves = 64;
using HalvesOfRows = uint16_t[16][kStoredHalves + 8];

// The largest tiles have room for two such boxes of a tensor map, swizzled by 128 bytes.
template <class Tile>
constexpr bool kHasBoxes = Tile::kN == 256;
using Box = uint8_t[16 * kStoredHalves * 2];

// Ends sums that are more than kEnds, and do not read C, where they are: those of 32 columns at a
// time, in whose place the next ones move up, so that the loop stays one and an activation is the
// same instructions for all.
template <class Tile>
__device__ void end_in_place(const Epilogue& epilogue, int64_t col, const float (&biases)[Tile::kN],
                             float (&sums)[Tile::kElements]) {
  constexpr int kEach = Tile::kElements < 16 ? Tile::kElements : 16;
  static_assert(Tile::kElements % kEach == 0);
  NO_UNROLL
  for (int first = 0; first < Tile::kN; first += 2 * kEach) {
    const float* bias = &biases[mma_tma::in_tile<Tile::kN, Tile::kNarrow>(first, col)];
    float x[kEach];
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      const float own =
          epilogue.bias == nullptr ? 0 : bias[i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
      x[i] = combine(epilogue, sums[i], own, 0.0f);
    }
    activate_each(epilogue.activation, x);
    UNROLL
    for (int i = 0; i + kEach < Tile::kElements; ++i) sums[i] = sums[i + kEach];
    UNROLL
    for (int i = 0; i < kEach; ++i) sums[Tile::kElements - kEach + i] = x[i];
  }
}

// Sums of a warp's rows, of 16 columns from `at` on, as pairs of halves, rows and columns in
// eights, rows first; kEnds: with a bias or ReLU, of which `biases` are the columns', or nothing
// else is done to sums.
template <class Tile, bool kEnds>
__device__ void end_sums(const Problem& p, int at, const float (&sums)[Tile::kElements],
                         const float* biases, uint32_t (&pairs)[4]) {
  const bool relu = p.epilogue.activation == Activation::kRelu;
  UNROLL
  for (int i = 0; i < 2; ++i, at += 8) {
    float2 bias{};
    if (kEnds && p.epilogue.bias != nullptr) {
      bias = *reinterpret_cast<const float2*>(&biases[i * 8 + threadIdx.x % 4 * 2]);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      float x = sums[at / 2 + j * 2], y = sums[at / 2 + j * 2 + 1];
      if (kEnds && p.epilogue.bias != nullptr) x += bias.x, y += bias.y;
      if (kEnds && relu) x = activate(Activation::kRelu, x), y = activate(Activation::kRelu, y);
      pairs[i * 2 + j] = ptx::pack_x2<std::is_same_v<typename Tile::T, BFloat16>>(x, y);
    }
  }
}

// Stores a warp's rows of halves that are neighbours in a row of C, eight at a time or one.
template <class Tile, bool kEnds, bool kByEights>
__device__ void store_halves(const Problem& p, typename Tile::T* c, int64_t row, int64_t col,
                             const float (&sums)[Tile::kElements], HalvesOfRows& leaving,
                             const float (&biases)[Tile::kN]) {
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  c += row * p.c.row_stride + col;
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStoredHalves) {
    const int begin = mma_tma::in_tile<Tile::kN, Tile::kNarrow>(first, col);
    const int width = min(kStoredHalves, Tile::kN - first), inside = min(width, cols - begin);
    UNROLL
    for (int right = 0; right < width; right += 16) {
      uint32_t pairs[4];
      end_sums<Tile, kEnds>(p, first + right, sums, &biases[begin + right], pairs);
      ptx::stmatrix_x4(&leaving[lane % 16][right + lane / 16 * 8], pairs);
    }
    __syncwarp();
    if constexpr (kByEights) {
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const int down = i + lane / 8, right = lane % 8 * 8;
        if (down < rows && right < inside) {
          __stcg(reinterpret_cast<uint4*>(c + down * p.c.row_stride + begin + right),
                 *reinterpret_cast<const uint4*>(&leaving[down][right]));
        }
      }
    } else {
      // Some rows are read before any is stored, or each would be waited for: ptxas does not put a
      // volatile read after what follows it.
      constexpr int kAtOnce = 8;
      auto* to = reinterpret_cast<uint16_t*>(c + begin + lane);
      const bool first_inside = lane < inside, second_inside = 32 + lane < inside;
      UNROLL
      for (int i = 0; i < 16; i += kAtOnce) {
        uint16_t first_of[kAtOnce], second_of[kAtOnce];
        UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const volatile uint16_t* from = &leaving[i + j][lane];
          first_of[j] = from[0], second_of[j] = from[32];
        }
        UNROLL
        for (int j = 0; j < kAtOnce; ++j, to += p.c.row_stride) {
          if (i + j < rows && first_inside) to[0] = first_of[j];
          if (i + j < rows && second_inside) to[32] = second_of[j];
        }
      }
    }
    __syncwarp();
  }
}

// Likewise, by boxes, which the copy engine takes while the warp goes on, to the next tile, too: of
// two, one is filled while the other leaves.
template <class Tile, bool kEnds>
__device__ void store_boxes(const EndWork& work, const TileCoord& tile, int warp,
                            const float (&sums)[Tile::kElements], Box (&leaving)[2],
                            const float (&biases)[Tile::kN]) {
  const Problem& p = work.p;
  const int lane = threadIdx.x % 32, row = tile.row + warp * 16;
  const TmaCoords matrix(p.batch, p.c, tile.batch);
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStoredHalves) {
    Box& box = leaving[first / kStoredHalves % 2];
    if (lane == 0) ptx::tma_store_wait_group_read<1>();
    __syncwarp();
    UNROLL
    for (int right = 0; right < kStoredHalves; right += 16) {
      uint32_t pairs[4];
      end_sums<Tile, kEnds>(p, first + right, sums, &biases[first + right], pairs);
      const int line = (lane % 16) * kStoredHalves * 2, in_line = (right + lane / 16 * 8) * 2;
      ptx::stmatrix_x4(&box[line + (in_line ^ lane % 8 * 16)], pairs);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      const int at[] = {tile.col + first, row, matrix.at[0], matrix.at[1], matrix.at[2]};
      if (row < p.m && at[0] < p.n) ptx::tma_store(&work.c, at, box);
      ptx::tma_store_commit_group();
    }
  }
}

// Sums of halves end as they are, and are stored.
template <class Tile>
struct End {
  static constexpr int kHeld = 176;

  using Work = EndWork;
  union Leaving {
    SumsOfRows sums;
    alignas(16) HalvesOfRows halves;
    alignas(kHasBoxes<Tile> ? 1024 : 16) Box boxes[kHasBoxes<Tile> ? 2 : 1];
  };
  struct Smem {
    Leaving leaving[Tile::kConsumers * 4];               // a warp's
    alignas(16) float bias[Tile::kConsumers][Tile::kN];  // a warpgroup's
  };

  static constexpr int kSpare = mma_tma::kSpareIn<Leaving>;

  const Work& work;
  Smem& smem;

  __device__ static TmaCoords place(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const TileCoord& tile) const {
    if (work.p.epilogue.bias == nullptr) return;
    const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1;
    load_bias<typename Tile::T>(work.p, tile.col, 1 + warpgroup, smem.bias[warpgroup]);
  }
  __device__ void end_chunk(const TileCoord&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const TileCoord& tile, float (&sums)[Tile::kElements]) const {
    using T = typename Tile::T;
    const Problem& p = work.p;
    const int warp = threadIdx.x / 32 - 4;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const int64_t row = tile.row + warp * 16;
    Leaving& leaving = smem.leaving[warp];
    const auto& bias = smem.bias[warp / 4];
    if (work.in_place) end_in_place<Tile>(p.epilogue, tile.col, bias, sums);
    auto store = [&]<class Out>(Out* c) {
      store_rows<false>(
          p, work.by_fours, work.simple, c + c_offset, row, tile.col, sums, leaving.sums, bias,
          [&](int i) { return mma_tma::in_tile<Tile::kN, Tile::kNarrow>(i, tile.col); });
    };
    auto store_as = [&]<bool kEnds, bool kByEights>() {
      store_halves<Tile, kEnds, kByEights>(p, static_cast<T*>(p.c.data) + c_offset, row, tile.col,
                                           sums, leaving.halves, bias);
    };
    if constexpr (kHasBoxes<Tile>) {
      if (work.boxes && work.ends) {
        return store_boxes<Tile, true>(work, tile, warp, sums, leaving.boxes, bias);
      }
      if (work.boxes) {
        return store_boxes<Tile, false>(work, tile, warp, sums, leaving.boxes, bias);
      }
    }
    if (work.halves && work.by_eights && !work.ends) {
      store_as.template operator()<false, true>();
    } else if (work.halves && work.by_eights) {
      store_as.template operator()<true, true>();
    } else if (work.halves && !work.ends) {
      store_as.template operator()<false, false>();
    } else if (work.halves) {
      store_as.template operator()<true, false>();
    } else if (p.out_dtype == DType::kFloat32) {
      store(static_cast<float*>(p.c.data));
    } else {
      store(static_cast<T*>(p.c.data));
    }
  }
  __device__ float4* spare() const {
    const int lane = threadIdx.x % 32;
    if constexpr (kHasBoxes<Tile>) {  // what leaves of the tile before
      if (lane == 0) ptx::tma_store_wait_group_read<0>();
      __syncwarp();
    }
    return reinterpret_cast<float4*>(&smem.leaving[threadIdx.x / 32 - 4]) + lane;
  }
  __device__ void finish() const {
    if (kHasBoxes<Tile> && work.boxes && threadIdx.x % 32 == 0) ptx::tma_store_wait_group_read<0>();
  }
};

template <class Tile>
bool run_tile(const Problem& p, int64_t ranges, const Context& context) {
  const auto by = [&](int64_t count) {
    return p.n % count == 0 && is_vector_aligned(p.batch, p.c, p.c.col_stride, p.c.row_stride,
                                                 count, size_of(p.out_dtype));
  };
  EndWork work{};
  work.p = p;
  work.by_fours = by(4), work.by_eights = by(8);
  work.simple = p.epilogue.is_bias_relu_at_most();
  work.halves = p.epilogue.beta == 0 && p.out_dtype == p.dtype && p.c.col_stride == 1;
  work.in_place = work.halves && !work.simple;
  work.ends = !work.in_place && !p.epilogue.is_identity();
  const bool goes_on = count_tiles(p, Tile::kM, Tile::kN) > context.sms;
  // The copy engine stores no less than 16 bytes: where a row ends within them, what follows, too.
  work.boxes = kHasBoxes<Tile> && goes_on && work.halves && work.by_eights &&
               p.c.row_stride > p.c.col_stride && fits_tma_rank(p.batch, p.c);
  if (work.boxes) {
    work.c = tensor_map(p.batch, as_operand(p.c), p.m, p.n, 16, kStoredHalves,
                        CU_TENSOR_MAP_SWIZZLE_128B, DType::kFloat16);
  }
  return mma_tma::launch<Tile, End>(work, ranges, {p.batch, p.a}, {p.batch, transposed(p.b)},
                                    context);
}

}  // namespace

bool launch_mma_tma(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  const Problem own = mma_tma_swaps_ab(p, context.sms) ? swap_ab(p) : p;
  const std::optional<Problem> aligned = align_operands(own, context);
  if (!aligned) return false;
  bool launched = false;
  with_mma_kind(*aligned, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    launched = with_tile<std::size(h200::kMmaTmaTiles)>(plan.tile, [&]<int kIndex>() {
      constexpr h200::MmaTmaTile kTile = h200::kMmaTmaTiles[kIndex];
      if constexpr (kBMnMajor && kTile.rate_mn_major == 0) {
        fail_no_tile("mma_tma", kIndex);
        return false;
      } else {
        using Tile = mma_tma::Tile<T, kIndex, kTile.stages, kAMnMajor, kBMnMajor>;
        return run_tile<Tile>(*aligned, plan.k_splits, context);
      }
    });
  });
  return launched;
}

}  // namespace tiled::cuda
