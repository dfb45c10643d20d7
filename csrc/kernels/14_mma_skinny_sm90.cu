// 14 mma_skinny: products of halves of few rows, as fast as memory gives the long operand.
//
// Idea:  where C has few rows, B is most of what there is to read. (Where C has few columns, A and
//        B change places.) So tiles are as narrow as tensor cores have them: w, the long operand,
//        takes the place of A in mma.sync, 16 of its columns a warp, and x, the short one, that of
//        B, eight of its rows at least. K may not be cut below a chunk, so that a tile is a stream
//        of its own, and there are many: one thread of a block asks the copy engine for w, as many
//        stages ahead as shared memory holds, which blocks of a multiprocessor share. x comes by a
//        warp: asking for its short boxes would take that thread as long as w does.
// Limit: memory; a block's stream where there are few of them, which 13_mma_bulk asks for faster.
// Next:  x by the copy engine, too, now that two threads may ask.
//
//   one thread   wait empty[s]    ask for w of 128 of K in stage s   -> full[s]
//   copiers      wait empty[s]    copy x, likewise                   -> full[s]
//   consumers    wait full[s]     eight products in a chain          -> empty[s]

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "chained.h"
#include "device/copy_async.cuh"
#include "device/halves.cuh"
#include "device/mma_sync.cuh"
#include "device/pipeline.cuh"
#include "element.h"
#include "epilogue.h"
#include "kernels/divisor.cuh"
#include "kernels/map_place.cuh"
#include "kernels/mma_lines.h"
#include "kernels/tensor_map.h"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {

void launch_mma_ring(const Problem& p, const Context& context);

namespace {

// kAcross: w's neighbours lie across K, or else along it, as x's do.
template <class T_, int kIndex, bool kAcross_>
struct Tile {
  using T = T_;
  static constexpr int kW = kMmaSkinnyTiles[kIndex].w, kX = kMmaSkinnyTiles[kIndex].x;
  static constexpr bool kAcross = kAcross_;
  static constexpr int kBox = 64, kK = 2 * kBox;  // of K: a copy, a stage
  static constexpr int kBlocksX = kX / 8;         // of a product, a warp's
  static constexpr int kWarps = kW / 16;          // that multiply
  static constexpr int kCopiers = 32;             // threads that copy x
  static constexpr int kThreads = (kWarps + 1) * 32 + kCopiers;
  static constexpr int kBoxBytes = kW * kBox * 2, kXBoxBytes = kX * kBox * 2;
  static constexpr int kStageBytes = 2 * (kBoxBytes + kXBoxBytes);
  static constexpr int kMaxStages = 24;
  static constexpr int kBlocks = kMmaSkinnyTiles[kIndex].blocks;  // on a multiprocessor

  static_assert(kW == 32 || kW == 64, "a line across K is swizzled as a whole");
  static_assert(chained::kChunk % kK == 0);
};

struct Work {
  Problem p;
  // row_stride: between w's columns, which are rows of A where w is A, or x's rows; col_stride: K.
  Matrix w, x;
  CUtensorMap map;  // of w
  bool w_is_a;
  int64_t w_count, x_count;
  Divisor x_tiles, w_tiles;
  int64_t units;
  int stages;
  int held;  // stages that warps release at once
};

// A warp releases several stages at once, one in so many of those there are: the fence before that
// takes as long as some products of the chain, which cannot hide it.
constexpr int kHeld = 3;

// Those of one part of w are neighbours.
template <class Tile>
struct Unit {
  int64_t matrix;
  int w, x;  // the first of each
  __device__ Unit(const Work& work, int64_t index) {
    const int64_t part = work.x_tiles.divide(index);
    matrix = work.w_tiles.divide(part);
    x = static_cast<int>(index - part * work.x_tiles.by) * Tile::kX;
    w = static_cast<int>(part - matrix * work.w_tiles.by) * Tile::kW;
  }
};

// What lies behind the stages: barriers, and what a warp stores.
template <class Tile>
struct Smem {
  uint64_t full[Tile::kMaxStages], empty[Tile::kMaxStages];
  float leaving[Tile::kWarps][Tile::kX][16];
};

// Where eight neighbours lie in a box of lines of kLine bytes, whose pieces of 16 change places:
// CUDA driver API, CU_TENSOR_MAP_SWIZZLE_64B and _128B.
template <int kLine>
__device__ uint32_t place_of(int line, int first) {
  const int piece = first / 8 ^ (kLine == 128 ? line % 8 : line / 2 % 4);
  return line * kLine + piece * 16;
}

template <class Tile>
__device__ void ask_for_w(const Work& work, uint8_t* stages, Smem<Tile>& smem) {
  const bool once = work.x_tiles.by == 1;
  const uint64_t policy = device::read_once();
  const Problem& p = work.p;
  device::Ring ring{.stages = work.stages, .parity = 1};
  for (int64_t index = blockIdx.x; index < work.units; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    const MapPlace matrix(p.batch, work.w, unit.matrix);
    if (index == blockIdx.x) device::wait_for_previous_kernel();
    for (int64_t k = 0; k < p.k; k += Tile::kK, ring.next()) {
      uint64_t* full = &smem.full[ring.stage];
      uint8_t* to = stages + ring.stage * Tile::kStageBytes;
      const auto at = static_cast<int>(k);
      const auto box = [&](int i) {
        const int near = Tile::kAcross ? unit.w : at + i * Tile::kBox;
        const int far = Tile::kAcross ? at + i * Tile::kBox : unit.w;
        device::copy_box_if_once(once, to + i * Tile::kBoxBytes, &work.map,
                                 {near, far, matrix.at[0], matrix.at[1], matrix.at[2]}, full,
                                 policy);
      };
      const bool both = p.k - k > Tile::kBox;
      device::wait(&smem.empty[ring.stage], ring.parity);
      device::arrive_expecting(full, (both ? 2 : 1) * Tile::kBoxBytes);
      box(0);
      if (both) box(1);
    }
  }
}

// A thread copies eight of K of some rows, zeros beyond K.
template <class Tile>
__device__ void copy_x(const Work& work, uint8_t* stages, Smem<Tile>& smem) {
  constexpr int kPieces = Tile::kK / 8, kApart = Tile::kCopiers / kPieces;
  constexpr int kEach = Tile::kX / kApart;
  const Problem& p = work.p;
  const int thread = static_cast<int>(threadIdx.x) - (Tile::kWarps + 1) * 32;
  const int own_k = thread % kPieces * 8, own_row = thread / kPieces;
  const uint32_t first =
      device::shared_address(stages) + 2 * Tile::kBoxBytes + own_k / Tile::kBox * Tile::kXBoxBytes;
  constexpr int kPlaces = 8 / kApart;  // after eight lines pieces lie the same way
  uint32_t place[kPlaces];
  UNROLL
  for (int i = 0; i < kPlaces; ++i) {
    place[i] = place_of<128>(own_row + i * kApart, own_k % Tile::kBox);
  }
  const int64_t apart = kApart * work.x.row_stride;
  device::Ring ring{.stages = work.stages, .parity = 1};
  for (int64_t index = blockIdx.x; index < work.units; index += gridDim.x) {
    const Unit<Tile> unit(work, index);
    const auto* from = static_cast<const uint16_t*>(work.x.data) +
                       batch_offset(p.batch, work.x, unit.matrix) +
                       (unit.x + own_row) * work.x.row_stride + own_k;
    const int rows = static_cast<int>(min(work.x_count - unit.x, int64_t{Tile::kX})) - own_row;
    if (index == blockIdx.x) device::wait_for_previous_kernel();
    NO_UNROLL
    for (int64_t k = own_k; k < p.k + own_k; k += Tile::kK, ring.next(), from += Tile::kK) {
      const int inside = static_cast<int>(max(min(p.k - k, int64_t{8}), int64_t{0})) * 2;
      const uint32_t to = first + ring.stage * Tile::kStageBytes;
      const uint16_t* at = inside > 0 ? from : static_cast<const uint16_t*>(work.x.data);
      const int64_t to_next = inside > 0 ? apart : 0;
      device::wait(&smem.empty[ring.stage], ring.parity);
      UNROLL
      for (int i = 0; i < kEach; ++i, at += to_next) {
        if (i * kApart >= rows) break;
        device::copy_16(to + place[i % kPlaces] + i / kPlaces * 8 * 128, at, inside);
      }
      device::arrive_when_copied(&smem.full[ring.stage]);
    }
  }
}

// Products of a stage's first kSteps steps. `w` and `x` are its boxes.
template <class Tile, int kSteps>
__device__ void multiply(uint8_t* w, uint8_t* x, int warp_w, float (&sums)[Tile::kBlocksX][4]) {
  constexpr int kLine = Tile::kAcross ? Tile::kW * 2 : 128;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const int lane = threadIdx.x % 32, eighth = lane % 8, half = lane / 8 % 2 * 8,
            upper = lane / 16 * 8;
  UNROLL
  for (int step = 0; step < kSteps; step += 2) {
    const int box = step / 4, k = step % 4 * 16;
    uint8_t* w_box = w + box * Tile::kBoxBytes;
    uint8_t* x_box = x + box * Tile::kXBoxBytes;
    uint32_t of_w[2][4], of_x[2][Tile::kBlocksX][2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int at = k + i * 16;
      device::load_matrices<Tile::kAcross>(
          of_w[i], w_box + (Tile::kAcross ? place_of<kLine>(at + upper + eighth, warp_w + half)
                                          : place_of<kLine>(warp_w + half + eighth, at + upper)));
    }
    if constexpr (Tile::kBlocksX == 1) {  // both steps at once
      uint32_t four[4];
      device::load_matrices(four, x_box + place_of<128>(eighth, k + lane / 8 * 8));
      of_x[0][0][0] = four[0], of_x[0][0][1] = four[1];
      of_x[1][0][0] = four[2], of_x[1][0][1] = four[3];
    } else {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        UNROLL
        for (int j = 0; j < Tile::kBlocksX; j += 2) {
          uint32_t four[4];
          device::load_matrices(four,
                                x_box + place_of<128>(j * 8 + upper + eighth, k + i * 16 + half));
          of_x[i][j][0] = four[0], of_x[i][j][1] = four[1];
          of_x[i][j + 1][0] = four[2], of_x[i][j + 1][1] = four[3];
        }
      }
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      UNROLL
      for (int j = 0; j < Tile::kBlocksX; ++j) {
        device::multiply_add<kBFloat16>(sums[j], of_w[i], of_x[i][j]);
      }
    }
  }
}

template <class Tile>
__device__ void consume(const Work& work, uint8_t* stages, Smem<Tile>& smem) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_w = warp * 16;
  const Problem& p = work.p;
  auto& leaving = smem.leaving[warp];
  int held = 0;
  device::Ring ring{.stages = work.stages};
  device::wait_for_previous_kernel();
  for (int64_t index = blockIdx.x; index < work.units; index += gridDim.x) {
    float totals[Tile::kBlocksX][4] = {};
    NO_UNROLL
    for (int64_t chunk = 0; chunk < p.k; chunk += chained::kChunk) {
      float sums[Tile::kBlocksX][4] = {};
      NO_UNROLL
      for (auto left = static_cast<int>(min(p.k - chunk, int64_t{chained::kChunk})); left > 0;
           left -= Tile::kK, ring.next()) {
        device::wait(&smem.full[ring.stage], ring.parity);
        uint8_t* w = stages + ring.stage * Tile::kStageBytes;
        uint8_t* x = w + 2 * Tile::kBoxBytes;
        if (left > Tile::kBox) {
          multiply<Tile, 8>(w, x, warp_w, sums);
        } else {
          multiply<Tile, 4>(w, x, warp_w, sums);
        }
        if (++held == work.held) {
          device::finish_reads();
          if (lane < held) {
            const int last = ring.stage - lane;
            device::arrive(&smem.empty[last < 0 ? last + work.stages : last]);
          }
          held = 0;
        }
      }
      UNROLL
      for (int j = 0; j < Tile::kBlocksX; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) totals[j][e] += sums[j][e];
      }
    }

    UNROLL
    for (int j = 0; j < Tile::kBlocksX; ++j) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        leaving[j * 8 + lane % 4 * 2 + e % 2][lane / 4 + e / 2 * 8] = totals[j][e];
      }
    }
    __syncwarp();
    const Unit<Tile> unit(work, index);
    const int64_t c_offset = batch_offset(p.batch, p.c, unit.matrix);
    const int64_t w = unit.w + warp_w + lane % 16;
    NO_UNROLL
    for (int i = lane / 16; i < Tile::kX; i += 2) {
      const int64_t x = unit.x + i;
      if (w >= work.w_count || x >= work.x_count) break;
      store<typename Tile::T>(p, c_offset, work.w_is_a ? w : x, work.w_is_a ? x : w,
                              leaving[i][lane % 16]);
    }
    __syncwarp();
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    mma_skinny_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) uint8_t stages[];
  auto& smem = *reinterpret_cast<Smem<Tile>*>(stages + work.stages * Tile::kStageBytes);
  device::let_next_kernel_start();
  if (threadIdx.x == 0) {
    device::fetch_map(&work.map);
    for (int stage = 0; stage < work.stages; ++stage) {
      device::init_barrier(&smem.full[stage], 1 + Tile::kCopiers);
      device::init_barrier(&smem.empty[stage], Tile::kWarps);
    }
    device::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < Tile::kWarps * 32) {
    consume<Tile>(work, stages, smem);
  } else if (threadIdx.x >= (Tile::kWarps + 1) * 32) {
    copy_x<Tile>(work, stages, smem);
  } else if (device::elect()) {
    ask_for_w<Tile>(work, stages, smem);
  }
}

template <class Tile>
void run_tile(Work& work, int blocks_each, const Context& context) {
  const Problem& p = work.p;
  work.map = tensor_map(
      p.batch, work.w, work.w_count, p.k, Tile::kW, Tile::kBox,
      Tile::kAcross && Tile::kW == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      p.dtype);
  work.x_tiles = Divisor::of(static_cast<uint32_t>(ceil_div(work.x_count, Tile::kX)));
  work.w_tiles = Divisor::of(static_cast<uint32_t>(ceil_div(work.w_count, Tile::kW)));
  work.units = int64_t{work.x_tiles.by} * work.w_tiles.by * p.batch.count;
  constexpr size_t kBehind = sizeof(Smem<Tile>);
  const size_t room = shared_memory_for(0, blocks_each);
  work.stages = std::min(static_cast<int>((room - kBehind) / Tile::kStageBytes), Tile::kMaxStages);
  work.held = std::max(1, work.stages / kHeld);
  const size_t bytes = static_cast<size_t>(work.stages) * Tile::kStageBytes + kBehind;
  const auto kernel = mma_skinny_kernel<Tile>;
  allow_shared_memory(kernel, kMaxSharedMemory);
  const auto blocks =
      static_cast<unsigned>(std::min(work.units, int64_t{blocks_each} * context.processors));
  launch_after(kernel, blocks, Tile::kThreads, bytes, context, work);
}

template <class T, bool kAcross>
void run(Work& work, const Context& context) {
  const Plan plan = mma_skinny_plan(work.p, context.processors);
  switch (plan.tile) {
    case 0: return run_tile<Tile<T, 0, kAcross>>(work, plan.blocks, context);
    case 1: return run_tile<Tile<T, 1, kAcross>>(work, plan.blocks, context);
    case 2: return run_tile<Tile<T, 2, kAcross>>(work, plan.blocks, context);
    case 3: return run_tile<Tile<T, 3, kAcross>>(work, plan.blocks, context);
  }
}

template <class T>
void run(Work& work, const Context& context) {
  work.w.row_stride < work.w.col_stride ? run<T, true>(work, context)
                                        : run<T, false>(work, context);
}

}  // namespace

// Where there is no memory for copies of operands, mma_ring needs none and gives the same bits.
void launch_mma_skinny(const Problem& p, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return;
  const bool w_is_a = p.m > p.n;
  const std::optional<Problem> lines = in_lines_of_halves(p, context, {.a = !w_is_a, .b = w_is_a});
  if (!lines) return launch_mma_ring(p, context);
  Work work{};
  work.p = *lines;
  work.w_is_a = w_is_a;
  work.w = w_is_a ? lines->a : transposed(lines->b);
  work.x = w_is_a ? transposed(lines->b) : lines->a;
  work.w_count = std::max(p.m, p.n), work.x_count = std::min(p.m, p.n);
  p.dtype == DType::kFloat16 ? run<Half>(work, context) : run<BFloat16>(work, context);
}

}  // namespace tiled::cuda
