// 05 fp16x3_small: everything in one launch.
//
// Idea:  a small product takes less time than the launches around it, and not much more than its
//        instructions take to come from memory. So a block does all there is to do for its tile,
//        in few instructions, whatever K is up to one chunk: its rows of A and columns of B come to
//        shared memory as they are; as they come, each warp looks for the largest magnitudes; then
//        it splits them where they lie, and the block multiplies.
// Limit: every block of a row of tiles splits the same rows of A again, and those of a column of
//        tiles the same columns of B. The low sum, two products after one another each 16 of K.
// Next:  a cluster that splits once for all of its blocks.
//
// "Lines" are A's rows and B's columns, a group is 16 of them, and a patch is 16 of K of a group:
// 1 KB. A warp loads, measures and splits patches of one group alone, and lane l of it always line
// l % 16, eight neighbours along K, the first where l < 16, the second where not.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/recompute.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace {

// A warp multiplies parts of 16 rows by kCols columns.
template <int kM_, int kN_, int kCols_, int kWarps_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kLines = kM + kN, kCols = kCols_;
  static constexpr int kWarps = kWarps_, kThreads = kWarps * 32;
  static constexpr int kGroups = kLines / 16, kGroupsOfA = kM / 16;
  static constexpr int kWarpsPerGroup = kWarps / kGroups;
  static constexpr int kParts = kM / 16 * (kN / kCols);
  static constexpr int kBlocks = 24 / kWarps;  // that a multiprocessor has registers for
  static constexpr int kAhead = 8;             // patches that a warp has asked for and not yet seen
  static_assert(kWarps % kGroups == 0);
};

// Of these the one is taken whose busiest multiprocessor reads least; the last fits any K.
// The largest has few warps: it is for many tiles, which hide each other's latencies.
using Largest = Tile<64, 64, 16, 8>;
using Large = Tile<64, 32, 16, 12>;
using Medium = Tile<32, 32, 8, 12>;
using Small = Tile<32, 16, 8, 12>;

struct Patch {
  static constexpr int kBytes = 1024, kLoAt = kBytes / 2;
  alignas(128) uint8_t bytes[kBytes];
};

template <class Tile>
struct Smem {
  Range ranges[Tile::kWarpsPerGroup][Tile::kLines];  // of what one warp loaded
  float undo[Tile::kLines];
  float2 sums[Tile::kM][Tile::kN];  // total and low
  Patch patches[];                  // (K / 16, kGroups)

  static size_t bytes(int64_t k) {
    return sizeof(Smem) + static_cast<size_t>(ceil_div(k, 16) * Tile::kGroups) * sizeof(Patch);
  }
};
static_assert(sizeof(Smem<Small>) + kChunk / 16 * Small::kGroups * sizeof(Patch) <=
                  kMaxSharedMemory,
              "all of a chunk fits");

// An operand.
struct Side {
  Matrix lines;   // row_stride: between lines; col_stride: along K
  int64_t count;  // of lines
  bool along_k;   // neighbours in memory are neighbours along K, or else lines
  bool vectors;   // and are copied by fours
};

struct Work {
  Side sides[2];                   // A, B
  int64_t batch, row, col;         // of this launch's first tile
  bool stores_sums;                // as they are
  unsigned long long* recomputed;  // counts marked elements, or null
  Problem p;
};

// A patch that is not yet split is 16 pieces, each 16 neighbours in memory: piece i is line i, or
// where lines are neighbours, i / 2 + i % 2 * 8 of K. This is where a piece's element lies, in
// floats. What comes from one line of memory stays in one 128 bytes, or else a copy takes longer;
// it is permuted by fours so that no two lanes meet in a bank where they read eight of K each.
// The place for piece + 2i, where that carries nothing, is the exclusive or of this one and
// i * two_pieces().
__device__ int place(bool along_k, int piece, int element) {
  return (piece * 16 + element) ^ (along_k ? piece / 2 * 4 : 0);
}
__device__ int two_pieces(bool along_k) { return along_k ? 36 : 32; }

// Walks through a warp's patches of a group and reads a lane's eight neighbours along K of each.
template <class Tile>
class Reader {
 public:
  __device__ Reader(const Patch* first, bool along_k) : along_k_(along_k) {
    const int line = threadIdx.x % 16, half = threadIdx.x / 16 % 2;
    const float* data = reinterpret_cast<const float*>(first->bytes);
    at_[0] = data + (along_k ? place(true, line, half * 8) : place(false, half, line));
    at_[1] = data + place(true, line, half * 8 + 4);
  }
  __device__ void next(float (&x)[8]) {
    if (along_k_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(at_[i]);
        x[i * 4] = four.x, x[i * 4 + 1] = four.y, x[i * 4 + 2] = four.z, x[i * 4 + 3] = four.w;
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) x[i] = at_[0][i * two_pieces(false)];
    }
    UNROLL
    for (int i = 0; i < 2; ++i) at_[i] += Tile::kWarpsPerGroup * Tile::kGroups * Patch::kBytes / 4;
  }

 private:
  bool along_k_;
  const float* at_[2];
};

// Copies this warp's patches, the first of which is `patch`, and returns the range of its lane's
// line in them.
template <class Tile>
__device__ Range load(const Side& side, const Batch& batch, int64_t matrix, int64_t first_line,
                      int first_k, int k, Patch* patch) {
  const int lane = threadIdx.x % 32;
  const bool along_k = side.along_k, vectors = side.vectors;
  const int64_t stride = side.lines.row_stride, k_stride = side.lines.col_stride;
  const int64_t near_stride = along_k ? k_stride : stride;
  const int64_t far_stride = along_k ? stride : k_stride;
  const int lines = static_cast<int>(min(side.count - first_line, int64_t{16}));
  // This lane copies from piece + 2i, four elements for i = 0 and 4, or one for eight i.
  const int near = vectors ? lane % 4 * 4 : lane % 16, piece = lane / (vectors ? 4 : 16);
  const int far = along_k ? piece : piece / 2 + piece % 2 * 8, apart = along_k ? 2 : 1;
  const int at = place(along_k, piece, near), at_step = two_pieces(along_k);
  const int64_t from_step = along_k ? 2 * far_stride : far_stride;
  const float* from[2];
  from[0] = static_cast<const float*>(side.lines.data) + batch_offset(batch, side.lines, matrix) +
            first_line * stride + first_k * k_stride + near * near_stride + far * far_stride;
  from[1] = from[0] + 4 * from_step;
  float* data = reinterpret_cast<float*>(patch->bytes);
  float* to[2] = {data + at, data + (at ^ 4 * at_step)};

  auto copy = [&](int k_left) {
    if (vectors && lines == 16 && k_left >= 16) {
      UNROLL
      for (int i = 0; i < 2; ++i) ptx::cp_async_16_zfill(to[i], from[i], 16);
      return;
    }
    const int inside = (along_k ? k_left : lines) - near;
    const int far_left = inside > 0 ? (along_k ? lines : k_left) - far : 0;
    if (vectors) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::cp_async_x4_zfill(ptx::shared_address(to[i]), from[i],
                               i * 4 * apart < far_left ? min(inside, 4) * 4 : 0);
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        ptx::cp_async_4_zfill(to[0] - at + (at ^ i * at_step), from[0] + i * from_step,
                              i * apart < far_left ? 4 : 0);
      }
    }
  };

  constexpr int kStep = Tile::kWarpsPerGroup * 16;
  const int count = static_cast<int>(static_cast<unsigned>(k - first_k + kStep - 1) / kStep);
  const int ahead = min(count, Tile::kAhead);
  Reader<Tile> reader(patch, along_k);
  Range range;
  NO_UNROLL
  for (int i = 0; i < count + ahead; ++i) {
    if (i < count) copy(k - first_k - i * kStep);
    __pipeline_commit();
    UNROLL
    for (int j = 0; j < 2; ++j) {
      to[j] += Tile::kWarpsPerGroup * Tile::kGroups * Patch::kBytes / 4;
      from[j] += kStep * k_stride;
    }
    if (i < ahead) continue;
    if (count > Tile::kAhead) {
      __pipeline_wait_prior(Tile::kAhead);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncwarp();
    float x[8];
    reader.next(x);
    UNROLL
    for (const float each : x) range.add(each);
  }
  range.add_lane(16);
  return range;
}

// Splits this warp's patches: lane l's hi halves become the l-th 16 bytes, as the tensor core wants
// them, and its lo halves those kLoAt further.
template <class Tile>
__device__ void split(float scale, bool along_k, int first_k, int k, Patch* patch) {
  constexpr int kStep = Tile::kWarpsPerGroup * 16;
  Reader<Tile> reader(patch, along_k);
  uint8_t* to = patch->bytes + threadIdx.x % 32 * 16;
  NO_UNROLL
  for (int k_left = k - first_k; k_left > 0; k_left -= kStep) {
    float x[8];
    reader.next(x);
    __syncwarp();  // every lane has read
    uint4 hi, lo;
    ptx::split_x2(x[0] * scale, x[1] * scale, hi.x, lo.x);
    ptx::split_x2(x[2] * scale, x[3] * scale, hi.y, lo.y);
    ptx::split_x2(x[4] * scale, x[5] * scale, hi.z, lo.z);
    ptx::split_x2(x[6] * scale, x[7] * scale, hi.w, lo.w);
    *reinterpret_cast<uint4*>(to) = hi;
    *reinterpret_cast<uint4*>(to + Patch::kLoAt) = lo;
    to += Tile::kWarpsPerGroup * Tile::kGroups * Patch::kBytes;
  }
}

// A part of the tile. What the next 16 of K need is read before the products of these.
template <class Tile>
__device__ void multiply(Smem<Tile>& smem, int k, int index) {
  constexpr int kTiles = Tile::kCols / 8;
  const int lane = threadIdx.x % 32;
  const int row = index % Tile::kGroupsOfA * 16, col = index / Tile::kGroupsOfA * Tile::kCols;
  const uint8_t* a = smem.patches[row / 16].bytes + lane * 16;
  const uint8_t* b = smem.patches[Tile::kGroupsOfA + col / 16].bytes + lane / 16 * Patch::kLoAt +
                     (lane / 8 % 2 * 16 + col % 16 + lane % 8) * 16;
  struct Fragments {
    uint32_t a_hi[4], a_lo[4], b[kTiles][4];  // of eight columns both pieces of hi, then of lo
  };
  Fragments next;
  auto read = [&] {
    ptx::ldmatrix_x4(next.a_hi, a);
    ptx::ldmatrix_x4(next.a_lo, a + Patch::kLoAt);
    UNROLL
    for (int t = 0; t < kTiles; ++t) ptx::ldmatrix_x4(next.b[t], b + t * 128);
  };
  const int promotion = fp16x3::promotion(k);
  float total[kTiles][4] = {}, low[kTiles][4] = {}, part[kTiles][4] = {};
  read();
  NO_UNROLL
  for (int at = 16; at - 16 < k; at += 16) {
    const Fragments f = next;
    const int step = at < k ? Tile::kGroups * Patch::kBytes : 0;  // at the end, the same again
    a += step, b += step;
    read();
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16(low[t], f.a_lo, {f.b[t][0], f.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16(part[t], f.a_hi, {f.b[t][0], f.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      ptx::mma_m16n8k16(low[t], f.a_hi, {f.b[t][2], f.b[t][3]});
    }
    if (at % promotion == 0 || at >= k) {
      UNROLL
      for (int t = 0; t < kTiles; ++t) {
        UNROLL
        for (int i = 0; i < 4; ++i) total[t][i] += part[t][i], part[t][i] = 0;
      }
    }
  }
  UNROLL
  for (int t = 0; t < kTiles; ++t) {
    UNROLL
    for (int i = 0; i < 4; i += 2) {
      float2* to = &smem.sums[row + lane / 4 + i * 4][col + t * 8 + lane % 4 * 2];
      *reinterpret_cast<float4*>(to) = {total[t][i], low[t][i], total[t][i + 1], low[t][i + 1]};
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    fp16x3_small_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  const Problem& p = work.p;
  const TileIndex tile{.batch = work.batch + blockIdx.z,
                       .row = work.row + static_cast<int64_t>(blockIdx.y) * Tile::kM,
                       .col = work.col + static_cast<int64_t>(blockIdx.x) * Tile::kN};
  const int k = static_cast<int>(p.k);
  {
    const int warp = threadIdx.x / 32, group = warp % Tile::kGroups, rank = warp / Tile::kGroups;
    const bool is_b = group >= Tile::kGroupsOfA;
    const Side& side = work.sides[is_b];
    const int line = group * 16 + threadIdx.x % 16, first_k = rank * 16;
    const int64_t first_line =
        is_b ? tile.col + (group - Tile::kGroupsOfA) * 16 : tile.row + group * 16;
    Patch* patch = &smem.patches[warp];
    Range range = load<Tile>(side, p.batch, tile.batch, first_line, first_k, k, patch);
    smem.ranges[rank][line] = range;  // both lanes of a line write the same
    __syncthreads();
    UNROLL
    for (int i = 0; i < Tile::kWarpsPerGroup; ++i) range.add(smem.ranges[i][line]);
    const float scale = fp16x3::scale(range.largest);
    if (rank == 0) smem.undo[line] = range.inverse_scale(scale);
    split<Tile>(scale, side.along_k, first_k, k, patch);
  }
  __syncthreads();
  NO_UNROLL
  for (int i = threadIdx.x / 32; i < Tile::kParts; i += Tile::kWarps) multiply(smem, k, i);
  __syncthreads();

  const int col = threadIdx.x % Tile::kN;
  const int64_t c_col = tile.col + col;
  if (c_col >= p.n) return;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  float* c = static_cast<float*>(p.c.data) + c_offset + c_col * p.c.col_stride;
  const float undo_col = smem.undo[Tile::kM + col];
  static_assert(Tile::kThreads % Tile::kN == 0);
  NO_UNROLL
  for (int first = threadIdx.x / Tile::kN; first < Tile::kM / 2;
       first += Tile::kThreads / Tile::kN) {
    float sums[2];  // two rows at a time
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int row = first + j * (Tile::kM / 2);
      const float2 sum = smem.sums[row][col];
      sums[j] = fp16x3::chunk_sum(sum.x, sum.y, smem.undo[row], undo_col);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int64_t c_row = tile.row + first + j * (Tile::kM / 2);
      if (c_row >= p.m) continue;
      float sum = sums[j];
      if (isnan(sum)) sum = sum_alone(p, tile.batch, c_row, c_col, work.recomputed);
      if (work.stores_sums) {
        c[c_row * p.c.row_stride] = sum;
      } else {
        store_one(p, c_offset, c_row, c_col, sum);
      }
    }
  }
}

template <class Tile>
void launch(Work& work, const Context& context) {
  const Problem& p = work.p;
  const auto kernel = fp16x3_small_kernel<Tile>;
  const size_t bytes = Smem<Tile>::bytes(p.k);
  allow_shared_memory(kernel, kMaxSharedMemory);
  const RecomputedCounter counter(context);
  work.recomputed = counter.on_gpu();
  for_tile_grids(p, Tile::kM, Tile::kN, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    work.batch = batch, work.row = row, work.col = col;
    kernel<<<grid, Tile::kThreads, bytes, static_cast<cudaStream_t>(context.stream)>>>(work);
    check(cudaGetLastError());
  });
  counter.read();
}

// How many lines the busiest multiprocessor reads.
template <class Tile>
int64_t lines(const Problem& p, const Context& context) {
  if (Smem<Tile>::bytes(p.k) > kMaxSharedMemory) return std::numeric_limits<int64_t>::max();
  const int64_t tiles = count_tiles(p, Tile::kM, Tile::kN);
  return ceil_div(tiles, context.sms) * Tile::kLines;
}

}  // namespace

bool launch_fp16x3_small(const Problem& p, const Plan&, const Context& context) {
  Work work{};
  work.p = p;
  auto side = [&](const Matrix& lines, int64_t count) {
    const bool along_k = lines.col_stride < lines.row_stride;
    const auto [near, far] = std::minmax(lines.row_stride, lines.col_stride);
    return Side{lines, count, along_k, is_vector_aligned<float4>(p.batch, lines, near, far)};
  };
  work.sides[0] = side(p.a, p.m);
  work.sides[1] = side(transposed(p.b), p.n);
  work.stores_sums = p.epilogue.is_identity();

  const struct {
    int64_t lines;
    void (*launch)(Work&, const Context&);
  } choices[] = {{lines<Largest>(p, context), launch<Largest>},
                 {lines<Large>(p, context), launch<Large>},
                 {lines<Medium>(p, context), launch<Medium>},
                 {lines<Small>(p, context), launch<Small>}};
  std::ranges::min_element(choices, {}, [](const auto& choice) {
    return choice.lines;
  })->launch(work, context);
  return true;
}

}  // namespace tiled::cuda
