// 13 mma_bulk: products of halves, by Hopper's tensor cores as fast as shared memory feeds them.
//
// Idea:  wgmma reads both operands from shared memory by itself, whichever way they lie, so that no
//        layout has to be turned; the copy engine brings them there. Lines that do not begin at
//        multiples of 16 bytes are copied to some that do first, and few columns are computed as
//        few rows of the transpose. Two threads ask for steps of 64 of K by turns, several ahead
//        and on into the next tile; warpgroups have 64 rows of the tile each, all its columns, and
//        issue nothing but products. Blocks that run together ask for the same lines at about the
//        same time, in bands of tiles, and L2 merges that, as long as no request has a policy.
//        Pairs of the largest tiles are clusters: of B, which both need, each asks for half, for
//        both. Sums leave by way of shared memory, so that what is written to C are whole sectors.
//        All but the last is mma_bulk.cuh, which 14_tf32_bulk shares.
// Limit: power; for few tiles, that tiles have few widths and K is cut at chunks alone; nobody
//        multiplies while a tile is stored, which long activations make longer.
// Next:  tiles of odd widths; K cut where there are few tiles; activations while others multiply.
//
//   producers   wait empty[s]     copy A and B of a step into stage s, half of B here and in the
//                                 block that shares it -> full[s] of each
//   consumers   wait full[s]      issue four products; those of the stage before are finished
//                                 -> empty[s - 1] of each block that copies there
//   at the end of a chunk its sums are added to those before, which wait in registers and in L2.

#include <cstdint>
#include <optional>
#include <type_traits>

#include "device/halves.cuh"
#include "epilogue.h"
#include "kernels/load_bias.cuh"
#include "kernels/mma_bulk.cuh"
#include "kernels/mma_kind.h"
#include "kernels/mma_lines.h"
#include "kernels/mma_store.cuh"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {

void launch_mma_ring(const Problem& p, const Context& context);

namespace {

// What a warp stores at a time, of halves: its rows, and so many columns.
constexpr int kStoredHalves = 64;
using HalvesOfRows = uint16_t[16][kStoredHalves + 8];

// Stores a warp's rows of halves that are neighbours in a row of C, eight at a time or one; kEnds:
// with a bias or ReLU, or nothing else is done to sums.
template <class Tile, bool kEnds, bool kByEights>
__device__ void store_halves(const Problem& p, typename Tile::T* c, int64_t row, int64_t col,
                             const float (&sums)[Tile::kElements], HalvesOfRows& leaving,
                             const float (&biases)[Tile::kN]) {
  using T = typename Tile::T;
  const bool relu = p.epilogue.activation == Activation::kRelu;
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  const auto cols = static_cast<int>(min(p.n - col, int64_t{Tile::kN}));
  c += row * p.c.row_stride + col;
  UNROLL
  for (int first = 0; first < Tile::kN; first += kStoredHalves) {
    UNROLL
    for (int right = 0; right < min(kStoredHalves, Tile::kN - first); right += 16) {
      uint32_t pairs[4];  // rows and columns in eights, rows first
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const int at = first + right + i * 8;
        float2 bias{};
        if (kEnds && p.epilogue.bias != nullptr) {
          bias = *reinterpret_cast<const float2*>(&biases[at + lane % 4 * 2]);
        }
        UNROLL
        for (int j = 0; j < 2; ++j) {
          float x = sums[at / 2 + j * 2], y = sums[at / 2 + j * 2 + 1];
          if (kEnds && p.epilogue.bias != nullptr) x += bias.x, y += bias.y;
          if (kEnds && relu) x = activate(Activation::kRelu, x), y = activate(Activation::kRelu, y);
          pairs[i * 2 + j] = device::pair<std::is_same_v<T, BFloat16>>(x, y);
        }
      }
      device::store_matrices(&leaving[lane % 16][right + lane / 16 * 8], pairs);
    }
    __syncwarp();
    if constexpr (kByEights) {
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

// Sums of halves end as they are, and are stored.
template <class Tile>
struct End {
  static constexpr int kHeld = 160;

  struct Work : mma_bulk::Work {
    bool by_fours;      // C is written by four neighbours of a row, of which none or all are inside
    bool by_eights;     // likewise
    bool halves, ends;  // store_halves() does, and its kEnds
  };
  union Leaving {
    SumsOfRows sums;
    alignas(16) HalvesOfRows halves;
  };
  struct Smem {
    Leaving leaving[Tile::kConsumers * 4];               // a warp's
    alignas(16) float bias[Tile::kConsumers][Tile::kN];  // a warpgroup's
  };

  const Work& work;
  Smem& smem;

  __device__ static MapPlace place(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const Position& tile) const {
    if (work.p.epilogue.bias == nullptr) return;
    const int warpgroup = static_cast<int>(threadIdx.x) / Tile::kWarpgroup - 1;
    load_bias<typename Tile::T>(work.p, tile.col, 1 + warpgroup, smem.bias[warpgroup]);
  }
  __device__ void end_chunk(const Position&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const Position& tile, float (&sums)[Tile::kElements]) const {
    using T = typename Tile::T;
    const Problem& p = work.p;
    const int warp = threadIdx.x / 32 - 4;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const int64_t row = tile.row + warp * 16;
    Leaving& leaving = smem.leaving[warp];
    const auto& bias = smem.bias[warp / 4];
    auto store = [&]<class Out>(Out* c) {
      store_rows<false>(p, work.by_fours, c + c_offset, row, tile.col, sums, leaving.sums, bias);
    };
    auto store_as = [&]<bool kEnds, bool kByEights>() {
      store_halves<Tile, kEnds, kByEights>(p, static_cast<T*>(p.c.data) + c_offset, row, tile.col,
                                           sums, leaving.halves, bias);
    };
    if (work.halves && work.by_eights && !work.ends) {
      store_as.template operator()<false, true>();
    } else if (work.halves && work.by_eights) {
      store_as.template operator()<true, true>();
    } else if (work.halves) {
      store_as.template operator()<true, false>();
    } else if (p.out_dtype == DType::kFloat32) {
      store(static_cast<float*>(p.c.data));
    } else {
      store(static_cast<T*>(p.c.data));
    }
  }
};

template <class Tile>
void run_tile(const Problem& p, const Context& context) {
  const auto by = [&](int64_t count) {
    return p.n % count == 0 &&
           in_vectors(p.batch, p.c, p.c.col_stride, p.c.row_stride, count, size_of(p.out_dtype));
  };
  typename End<Tile>::Work work{};
  work.p = p;
  work.by_fours = by(4), work.by_eights = by(8);
  work.halves = p.out_dtype == p.dtype && p.c.col_stride == 1 && p.epilogue.is_simple();
  work.ends = !p.epilogue.is_none();
  const bool launched =
      mma_bulk::launch<Tile, End<Tile>>(work, {p.batch, p.a}, {p.batch, transposed(p.b)}, context);
  if (!launched) launch_mma_ring(p, context);
}

template <class T, bool kAAcross, bool kBAcross>
void run(const Problem& p, const Context& context) {
  switch (bulk_tiles_plan(p, context.processors).tile) {
    case 0: return run_tile<mma_bulk::Tile<T, 0, 4, kAAcross, kBAcross>>(p, context);
    case 1: return run_tile<mma_bulk::Tile<T, 1, 5, kAAcross, kBAcross>>(p, context);
    case 2: return run_tile<mma_bulk::Tile<T, 2, 5, kAAcross, kBAcross>>(p, context);
    case 3: return run_tile<mma_bulk::Tile<T, 3, 6, kAAcross, kBAcross>>(p, context);
    case 4: return run_tile<mma_bulk::Tile<T, 4, 6, kAAcross, kBAcross>>(p, context);
    case 5: return run_tile<mma_bulk::Tile<T, 5, 9, kAAcross, kBAcross>>(p, context);
    case 6: return run_tile<mma_bulk::Tile<T, 6, 9, kAAcross, kBAcross>>(p, context);
    case 7: return run_tile<mma_bulk::Tile<T, 7, 13, kAAcross, kBAcross>>(p, context);
  }
}

}  // namespace

// Where there is no memory for copies of operands, or for totals, mma_ring needs none and gives the
// same bits.
void launch_mma_bulk(const Problem& p, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return;
  const std::optional<Problem> lines =
      in_lines_of_halves(mma_bulk_turns(p) ? turned(p) : p, context);
  if (!lines) return launch_mma_ring(p, context);
  with_mma_kind(*lines, [&]<class T, bool kAAcross, bool kBAcross>() {
    run<T, kAAcross, kBAcross>(*lines, context);
  });
}

}  // namespace tiled::cuda
