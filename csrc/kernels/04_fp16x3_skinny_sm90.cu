// 04 fp16x3_skinny: the long operand is split in flight.
//
// Idea:  where one side of C is short, the other side's operand is most of what there is to read,
//        and splitting it beforehand would triple that. Here it comes to shared memory once, as
//        float32, a chunk of K by a few columns at a time: so the largest magnitude of each group
//        is known before it is split, on the way to the tensor cores. `w` is the long operand,
//        whichever of A and B, and `x` the short one: up to 16 rows of it stay in shared memory for
//        a chunk, split by the block; more are split beforehand (fp16x3_split).
// Limit: how long a warp takes for a chunk, 128 products one after another: the last units keep a
//        multiprocessor waiting. Where x is long, the L2 cache, from which every block reads all
//        of x again for each of its few columns.
// Next:  copies by the copy engine; blocks of a cluster that share what they read of x.
//
// A block walks through units, a chunk of K by kCols columns of w for all rows of a panel of x:
//
//   loaders  wait empty[stage]; copy kK of K of a unit; kAhead stages later, as it is there,
//            look for the largest magnitudes; arrive at full[unit] after a unit's last stage
//   teams    wait full[unit]; scale, split, multiply, 32 of K after 32; arrive at empty[stage];
//            leave the chunk's sums in memory
//
// A unit takes the same number of stages however short its chunk is. Whoever leaves the last of an
// element's chunk sums adds them all, in order.

#include <cuda_pipeline_primitives.h>

#include <cuda/atomic>

#include "device/copy_async.cuh"
#include "device/halves.cuh"
#include "device/mma_sync.cuh"
#include "device/pipeline.cuh"
#include "epilogue.h"
#include "fp16x3.h"
#include "kernels/fp16x3_again.cuh"
#include "kernels/fp16x3_parts.h"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

// x stays in shared memory for a chunk where it is kRows short, and comes from the L2 cache, kRows
// a warp, where it is not.
template <int kCols_, int kColWarps_, int kRows_, bool kResident_, int kLoaders_, int kStages_>
struct Tile {
  static constexpr int kCols = kCols_, kColWarps = kColWarps_, kRows = kRows_;
  static constexpr bool kResident = kResident_;
  static constexpr int kLoaders = kLoaders_, kMaxWarps = 8;  // that load, that multiply
  static constexpr int kStages = kStages_;
  static constexpr int kTiles = kCols / kColWarps / 8;  // of tensor-core products, a warp
  static constexpr int kStageFloats = 4096, kK = kStageFloats / kCols;
  static constexpr int kStagesPerUnit = kChunk / kK;
  static constexpr int kAhead = 5;  // stages that are being copied
  static constexpr int kUnits = 4;  // whose magnitudes are kept; teams at most
  static constexpr int kThreads = (kLoaders + kMaxWarps) * 32;  // at most

  static_assert(kStages >= kStagesPerUnit + kAhead,
                "a loader that waits for a stage has measured the unit that was in it");
  static_assert(kStages <= kUnits * kStagesPerUnit,
                "magnitudes are read before those of the unit kUnits later are written");
};

using Short8 = Tile<16, 2, 8, true, 8, 11>;
using Short16 = Tile<16, 2, 16, true, 8, 9>;
using Long = Tile<32, 2, 16, false, 4, 13>;

struct Work {
  Problem p;
  Matrix w;  // row_stride: between columns of w, which are rows of A where w is A; col_stride: K
  int64_t w_count, x_count;
  Matrix x_matrix;      // likewise
  Packed x;             // where x is split beforehand
  bool vectors;         // w is copied four neighbours at a time
  bool x_vectors;       // x is read so along K
  bool stores_sums;     // as they are
  int warps, teams;     // a team takes a unit, a warp 16 rows (or fewer) of its panel
  int64_t panels;       // of 16 * warps rows of x
  int64_t first_slab;   // a slab is a panel of x in a matrix of the batch
  int64_t slabs;        // in this launch
  int64_t first_group;  // a group is kCols columns of w
  int64_t groups;       // in this launch
  int64_t chunks;
  float4* sums;  // of chunks: (slabs, groups, warps, kColWarps, chunks, kTiles, 32)
  int* arrived;  // chunks whose sums are there: (slabs, groups, warps, kColWarps)
  unsigned long long* recomputed;  // counts marked elements, or null

  __host__ __device__ int64_t units() const { return slabs * chunks * groups; }
};

// The units of a block are neighbours: they share panel and chunk of x where they can.
struct Unit {
  int64_t slab, matrix, panel, chunk, group;  // slab and group count from the launch's first

  __device__ Unit(const Work& work, int64_t index)
      : slab(index / work.groups / work.chunks),
        matrix((work.first_slab + slab) / work.panels),
        panel((work.first_slab + slab) % work.panels),
        chunk(index / work.groups % work.chunks),
        group(index % work.groups) {}
  // To the next; true where panel or chunk is another.
  __device__ bool next(const Work& work) {
    if (++group < work.groups) return false;
    group = 0;
    if (++chunk < work.chunks) return true;
    chunk = 0, ++slab;
    if (++panel == work.panels) panel = 0, ++matrix;
    return true;
  }
  __device__ int length(const Work& work) const {
    return static_cast<int>(min(work.p.k - chunk * kChunk, int64_t{kChunk}));
  }
};

// What a group's scale, and whether it is wide, depend on.
struct Extremes {
  uint32_t largest;   // magnitude bits
  uint32_t smallest;  // twice the magnitude bits that are not zero, less 1

  static __device__ Extremes none() { return {0, ~0u}; }
  __device__ void add(float x) {
    float most = float_of(largest);
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x)));
    largest = bits_of(most);
    smallest = min(smallest, 2 * bits_of(x) - 1);
  }
  __device__ void add(const Extremes& other) {
    largest = max(largest, other.largest);
    smallest = min(smallest, other.smallest);
  }
  // Those of lanes whose numbers differ in the bits from `first` to below `end`.
  __device__ void add_lanes(int first, int end) {
    for (int lanes = first; lanes < end; lanes *= 2) {
      add(Extremes{__shfl_xor_sync(~0u, largest, lanes), __shfl_xor_sync(~0u, smallest, lanes)});
    }
  }
  __device__ float undo_scale(float scale) const {
    const float least = float_of((smallest + 1) / 2);
    return fp16x3::undo_scale(largest, fp16x3::is_wide(least, least * scale));
  }
};

template <class Tile>
struct Smem {
  alignas(128) float stage[Tile::kStages][Tile::kStageFloats];
  // The fragments of split_x().
  alignas(128) uint8_t x[Tile::kResident ? Tile::kRows * kChunk * 4 : 16];
  Extremes extremes[Tile::kUnits][Tile::kLoaders][Tile::kCols];  // of what one warp loaded
  float undo_x[Tile::kRows];
  uint64_t full[Tile::kUnits], empty[Tile::kStages];
};

// Where four neighbours lie in a stage, in floats: along K of one column,
template <class Tile>
__device__ int along_k_offset(int col, int k) {
  return col * Tile::kK + (k ^ col / Tile::kTiles % 2 * 16);
}
// or columns at one K. Both such that a warp reads and writes without conflicts.
template <class Tile>
__device__ int along_cols_offset(int k, int col) {
  if constexpr (Tile::kCols == 16) {
    return (k ^ k / 4 % 2) * 16 + (col ^ k / 8 % 2 * 8);
  } else {
    return k * 32 + (col ^ k / 4 % 4 * 8);
  }
}

// Copies four neighbours, of which `inside` are in the matrix, and zeros for the rest.
__device__ void copy_four(float* smem, const float* data, int64_t stride, int inside,
                          bool vectors) {
  if (vectors) {
    device::copy_16(smem, data, min(max(inside, 0), 4) * 4);
  } else {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      device::copy_4(smem + i, data + i * stride, i < inside ? 4 : 0);
    }
  }
}

template <class Tile, bool kAlongK>
__device__ void load_units(const Work& work, Smem<Tile>& smem, int64_t first, int64_t units) {
  constexpr int kFours = Tile::kStageFloats / 4 / (Tile::kLoaders * 32);  // a thread and stage
  constexpr int kColSets = kAlongK ? Tile::kCols / 4 : 4;  // columns that a thread looks at
  constexpr int kFoursPerRow = Tile::kCols / 4;
  constexpr int kSteps = Tile::kStagesPerUnit;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Column (the first of four) and K of this thread's i-th four in a stage.
  auto col_of = [&](int i) {
    return kAlongK ? i % kColSets * 4 + lane / 8 : lane % kFoursPerRow * 4;
  };
  auto k_of = [&](int i) {
    return kAlongK ? warp * (Tile::kK / Tile::kLoaders) + (i / kColSets * 8 + lane % 8) * 4
                   : (warp * kFours + i) * (32 / kFoursPerRow) + lane / kFoursPerRow;
  };
  int place[kFours];  // where it lies in the stage
  UNROLL
  for (int i = 0; i < kFours; ++i) {
    place[i] = kAlongK ? along_k_offset<Tile>(col_of(i), k_of(i))
                       : along_cols_offset<Tile>(k_of(i), col_of(i));
  }
  const int64_t col_stride = work.w.row_stride, k_stride = work.w.col_stride;
  // Fours at a time: of other columns, 32 of K apart, or of other K, one by one.
  constexpr int kSets = kAlongK ? kColSets : kFours;
  const int64_t set_stride = kAlongK ? 4 * col_stride : 32 / kFoursPerRow * k_stride;
  const int64_t own = col_of(0) * col_stride + k_of(0) * k_stride;

  const float* anywhere = static_cast<const float*>(work.w.data);
  const float* data = nullptr;  // of the unit that is being copied: its first column and K
  int cols_left = 0, length = 0;
  int done_length = 0;  // of the unit that is being measured

  Extremes extremes[kColSets];
  UNROLL
  for (Extremes& each : extremes) each = Extremes::none();

  Unit unit(work, first), done_unit = unit;  // that is being copied, measured
  int slot = 0;
  const int64_t steps = units * kSteps;
  int stage = 0, parity = 1, measured = 0;
  for (int64_t step = 0; step < steps + Tile::kAhead; ++step) {
    if (step < steps) {
      const int k = static_cast<int>(step % kSteps) * Tile::kK;
      if (k == 0) {
        if (step > 0) unit.next(work);
        const int64_t col = (work.first_group + unit.group) * Tile::kCols;
        data = anywhere + batch_offset(work.p.batch, work.w, unit.matrix) + col * col_stride +
               unit.chunk * kChunk * k_stride;
        cols_left = static_cast<int>(min(work.w_count - col, int64_t{Tile::kCols}));
        length = unit.length(work);
      }
      device::wait(&smem.empty[stage], parity);
      if (work.vectors && k + Tile::kK <= length && cols_left == Tile::kCols) {
        const float* from = data + own + k * k_stride;
        UNROLL
        for (int i = 0; i < kSets; ++i, from += set_stride) {
          UNROLL
          for (int j = 0; j < kFours / kSets; ++j) {
            device::copy_16(smem.stage[stage] + place[j * kSets + i], from + j * 32, 16);
          }
        }
      } else if (k < length) {
        UNROLL
        for (int i = 0; i < kFours; ++i) {
          const int col = col_of(i), at = k + k_of(i);
          const int inside =
              kAlongK ? (col < cols_left ? length - at : 0) : (at < length ? cols_left - col : 0);
          const float* from = inside > 0 ? data + col * col_stride + at * k_stride : anywhere;
          copy_four(smem.stage[stage] + place[i], from, kAlongK ? k_stride : col_stride, inside,
                    work.vectors);
        }
      }
      if (++stage == Tile::kStages) stage = 0, parity ^= 1;
    }
    __pipeline_commit();
    if (step < Tile::kAhead) continue;

    __pipeline_wait_prior(Tile::kAhead);
    const int64_t done = step - Tile::kAhead;
    const int k = static_cast<int>(done % kSteps) * Tile::kK;
    if (k == 0) done_length = done_unit.length(work);
    if (k < done_length) {
      UNROLL
      for (int i = 0; i < kFours; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(smem.stage[measured] + place[i]);
        extremes[kAlongK ? i % kColSets : 0].add(four.x);
        extremes[kAlongK ? i % kColSets : 1].add(four.y);
        extremes[kAlongK ? i % kColSets : 2].add(four.z);
        extremes[kAlongK ? i % kColSets : 3].add(four.w);
      }
    }
    if (k == (kSteps - 1) * Tile::kK) {  // of this warp's part of the chunk
      UNROLL
      for (int i = 0; i < kColSets; ++i) {
        extremes[i].add_lanes(kAlongK ? 1 : kFoursPerRow, kAlongK ? 8 : 32);
        const int col = kAlongK ? i * 4 + lane / 8 : lane % kFoursPerRow * 4 + i;
        if (kAlongK ? lane % 8 == 0 : lane < kFoursPerRow) {
          smem.extremes[slot][warp][col] = extremes[i];
        }
        extremes[i] = Extremes::none();
      }
      __syncwarp();
      if (lane == 0) device::arrive(&smem.full[slot]);
      slot = slot + 1 == Tile::kUnits ? 0 : slot + 1;
      done_unit.next(work);
    }
    if (++measured == Tile::kStages) measured = 0;
  }
}

// Where the fragments of 16 of K of a row of x lie (of row 8 with those of row 0, and so on), in
// bytes: such that neither who writes nor who reads has conflicts.
template <class Tile>
__device__ int x_offset(int k16, int row) {
  return k16 * (Tile::kRows * 64) + (row ^ k16 % 2) * 64;
}

// Brings a chunk of x to shared memory, split: 16 bytes of XFragment's hi and lo for each lane.
template <class Tile>
__device__ void split_x(const Work& work, Smem<Tile>& smem, const Unit& unit, int64_t first_row) {
  constexpr int kFours = kChunk / 4 / 32;     // a lane and row
  constexpr int kWarpRows = Tile::kRows / 8;  // rows g and g + 8
  static_assert(Tile::kMaxWarps == 8, "a warp has one g");
  const int g = threadIdx.x / 32 - Tile::kLoaders, lane = threadIdx.x % 32;
  const int length = unit.length(work);
  const int64_t k_stride = work.x_matrix.col_stride;
  float x[kWarpRows][kFours][4];
  UNROLL
  for (int r = 0; r < kWarpRows; ++r) {
    const int64_t row = first_row + g + r * 8;
    const float* data = static_cast<const float*>(work.x_matrix.data) +
                        batch_offset(work.p.batch, work.x_matrix, unit.matrix) +
                        row * work.x_matrix.row_stride +
                        (unit.chunk * kChunk + lane * 4) * k_stride;
    const int left = row < work.x_count ? length - lane * 4 : 0;
    UNROLL
    for (int i = 0; i < kFours; ++i, data += 128 * k_stride) {
      float(&to)[4] = x[r][i];
      if (work.x_vectors && left >= i * 128 + 4) {
        const float4 four = *reinterpret_cast<const float4*>(data);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
      } else {
        UNROLL
        for (int j = 0; j < 4; ++j) to[j] = i * 128 + j < left ? data[j * k_stride] : 0.0f;
      }
    }
  }
  float scale[kWarpRows];
  UNROLL
  for (int r = 0; r < kWarpRows; ++r) {
    Extremes extremes = Extremes::none();
    UNROLL
    for (int i = 0; i < kFours * 4; ++i) extremes.add(x[r][i / 4][i % 4]);
    extremes.add_lanes(1, 32);
    scale[r] = fp16x3::scale(extremes.largest);
    if (lane == 0) smem.undo_x[g + r * 8] = extremes.undo_scale(scale[r]);
  }
  UNROLL
  for (int i = 0; i < kFours; ++i) {
    uint32_t hi[kWarpRows][2], lo[kWarpRows][2];
    UNROLL
    for (int r = 0; r < kWarpRows; ++r) {
      UNROLL
      for (int j = 0; j < 2; ++j) {
        device::split_two(x[r][i][j * 2] * scale[r], x[r][i][j * 2 + 1] * scale[r], hi[r][j],
                          lo[r][j]);
      }
    }
    uint8_t* to = smem.x + x_offset<Tile>(i * 8 + lane / 4, g) + lane % 4 * 16;
    if constexpr (kWarpRows == 1) {
      *reinterpret_cast<uint4*>(to) = {hi[0][0], lo[0][0], hi[0][1], lo[0][1]};
    } else {
      *reinterpret_cast<uint4*>(to) = {hi[0][0], hi[1][0], hi[0][1], hi[1][1]};
      *reinterpret_cast<uint4*>(to + 512) = {lo[0][0], lo[1][0], lo[0][1], lo[1][1]};
    }
  }
}

// Fragments of 16 of K. A tensor core's sum does not ask which product comes first: lane % 4 takes
// four neighbours along K, of w and of x.
template <class Tile>
struct WFragment {
  uint32_t hi[Tile::kTiles][2], lo[Tile::kTiles][2];
};
// Where x is eight rows short, its lo halves take the place of rows 8 to 15: `lo` is hi halves over
// lo halves, and `hi` zeros over hi halves.
struct XFragment {
  uint32_t hi[4], lo[4];
};

// Where a lane finds its elements of w, of a stage and 16 of K. Column kTiles * g + t of the warp's
// is column g of tile t.
template <class Tile, bool kAlongK>
class WReader {
 public:
  __device__ WReader(const Smem<Tile>& smem, int first_col) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const int col = first_col + g * Tile::kTiles;
    if constexpr (kAlongK) {  // the first 16 of K, the second
      from_[0] = smem.stage[0] + along_k_offset<Tile>(col, q * 4);
      from_[1] = smem.stage[0] + along_k_offset<Tile>(col, q * 4 + 16);
    } else {  // the first of K, the second
      from_[0] = smem.stage[0] + along_cols_offset<Tile>(q * 4, col);
      from_[1] = smem.stage[0] + along_cols_offset<Tile>(q * 4 + 1, col);
    }
  }

  // `offset`: of the stage and the 32 of K, from the first, in floats.
  template <int kK16>
  __device__ void read(float (&x)[Tile::kTiles][4], int offset) const {
    if constexpr (kAlongK) {
      UNROLL
      for (int t = 0; t < Tile::kTiles; ++t) {
        const float4 four = *reinterpret_cast<const float4*>(from_[kK16] + t * Tile::kK + offset);
        x[t][0] = four.x, x[t][1] = four.y, x[t][2] = four.z, x[t][3] = four.w;
      }
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* from = from_[i % 2] + (kK16 * 16 + i / 2 * 2) * Tile::kCols + offset;
        if constexpr (Tile::kTiles == 1) {
          x[0][i] = *from;
        } else {
          const float2 two = *reinterpret_cast<const float2*>(from);
          x[0][i] = two.x, x[1][i] = two.y;
        }
      }
    }
  }
  static constexpr int kPair = kAlongK ? 32 : 32 * Tile::kCols;  // floats from 32 of K to the next

 private:
  const float* from_[2];
};

template <class Tile>
__device__ void split_w(WFragment<Tile>& w, const float (&x)[Tile::kTiles][4],
                        const float (&scale)[Tile::kTiles]) {
  UNROLL
  for (int t = 0; t < Tile::kTiles; ++t) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      device::split_two(x[t][i * 2] * scale[t], x[t][i * 2 + 1] * scale[t], w.hi[t][i], w.lo[t][i]);
    }
  }
}

// Reads the lane's halves of rows g and g + 8; of what launch_split() wrote, the latter lie
// `second` bytes further.
template <class Tile>
__device__ void read_x(XFragment& x, const uint8_t* hi, int to_lo, int second) {
  auto four = [](uint32_t(&to)[4], const uint8_t* at) {
    const uint4 all = *reinterpret_cast<const uint4*>(at);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  };
  auto two = [](uint32_t(&to)[4], int first, const uint8_t* at) {
    const uint2 all = *reinterpret_cast<const uint2*>(at);
    to[first] = all.x, to[first + 2] = all.y;
  };
  if constexpr (Tile::kRows == 8) {
    four(x.lo, hi);
    x.hi[0] = x.hi[2] = 0, x.hi[1] = x.lo[0], x.hi[3] = x.lo[2];
  } else if constexpr (Tile::kResident) {
    four(x.hi, hi);
    four(x.lo, hi + to_lo);
  } else {
    two(x.hi, 0, hi), two(x.hi, 1, hi + second);
    two(x.lo, 0, hi + to_lo), two(x.lo, 1, hi + to_lo + second);
  }
}

template <class Tile, bool kAlongK, bool kWIsA, int kPromote>
__device__ void multiply_units(const Work& work, Smem<Tile>& smem, int64_t first, int64_t units) {
  constexpr int kSteps = Tile::kStagesPerUnit, kTiles = Tile::kTiles;
  constexpr int kPairsPerStage = Tile::kK / 32;
  constexpr int kRowsOfSums = Tile::kRows / 8;
  const int rank = threadIdx.x / 32 - Tile::kLoaders, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;
  const int team_warps = work.warps * Tile::kColWarps;
  const int team = rank / team_warps, warp = rank % team_warps / Tile::kColWarps;
  const int col_warp = rank % Tile::kColWarps, first_col = col_warp * kTiles * 8;
  const WReader<Tile, kAlongK> w_reader(smem, first_col);
  const int64_t padded_rows = work.x.padded_rows();
  Unit unit(work, first);
  bool other_x = true;

  for (int64_t index = 0; index < units; ++index, other_x = unit.next(work)) {
    const int64_t row = (unit.panel * work.warps + warp) * 16;
    if (Tile::kResident && other_x) {  // every team comes here
      const int threads = work.teams * Tile::kColWarps * 32;
      device::sync_threads(1, threads);  // nobody multiplies
      split_x(work, smem, unit, row);
      device::sync_threads(1, threads);  // x is there
    }
    if (index % work.teams != team) continue;
    const bool busy = row < work.x_count;
    const int length = unit.length(work);
    const int pairs = static_cast<int>(ceil_div(length, 32));  // of 16 of K

    const int64_t position = index * kSteps;
    const int slot = static_cast<int>(index % Tile::kUnits);
    device::wait(&smem.full[slot], static_cast<int>(index / Tile::kUnits % 2));

    float scale[kTiles], undo_w[kTiles];
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const int col = first_col + g * kTiles + t;
      Extremes extremes = Extremes::none();
      UNROLL
      for (int i = 0; i < Tile::kLoaders; ++i) extremes.add(smem.extremes[slot][i][col]);
      scale[t] = fp16x3::scale(extremes.largest);
      undo_w[t] = extremes.undo_scale(scale[t]);
    }
    // Where x is eight rows short, `low` is the part over the low sum: products with zeros change
    // neither.
    float total[kTiles][4] = {}, part[kTiles][4] = {}, low[kTiles][4] = {};
    int stage = static_cast<int>(position % Tile::kStages);
    if (busy) {
      auto multiply = [&](const XFragment& x, const WFragment<Tile>& w) {
        UNROLL
        for (int t = 0; t < kTiles; ++t) {
          device::multiply_add(low[t], kWIsA ? x.hi : x.lo, kWIsA ? w.lo[t] : w.hi[t]);
        }
        if constexpr (kRowsOfSums == 2) {
          UNROLL
          for (int t = 0; t < kTiles; ++t) device::multiply_add(part[t], x.hi, w.hi[t]);
        }
        UNROLL
        for (int t = 0; t < kTiles; ++t) {
          device::multiply_add(low[t], kWIsA ? x.lo : x.hi, kWIsA ? w.hi[t] : w.lo[t]);
        }
      };
      auto promote = [&] {
        UNROLL
        for (int t = 0; t < kTiles; ++t) {
          float(&parts)[4] = kRowsOfSums == 1 ? low[t] : part[t];
          UNROLL
          for (int i = 0; i < kRowsOfSums * 2; ++i) total[t][i] += parts[i], parts[i] = 0;
        }
      };
      // Rows g and g + 8 of x, of a pair's first 16 of K and its second.
      const uint8_t* x_from[2];
      int to_lo, second, x_pair;
      if constexpr (Tile::kResident) {
        to_lo = 512, second = 0, x_pair = x_offset<Tile>(2, 0);
        UNROLL
        for (int i = 0; i < 2; ++i) x_from[i] = smem.x + x_offset<Tile>(i, g) + q * 16;
      } else {
        const int64_t x_tile = row / Packed::kRows;
        const int plane_bytes = Packed::plane_bytes(work.x.tile_rows(x_tile));
        const uint8_t* x =
            work.x.halves + row % Packed::kRows * 64 +
            work.x.step_offset(unit.matrix, x_tile, unit.chunk * (kChunk / Packed::kK));
        UNROLL
        for (int i = 0; i < 2; ++i) x_from[i] = x + Packed::swizzle(g, i * 2 + q / 2) + q % 2 * 8;
        to_lo = plane_bytes, second = row + 8 < padded_rows ? 8 * 64 : 0, x_pair = 2 * plane_bytes;
      }
      auto read_x_pair = [&](XFragment& x, int pair, int i) {
        read_x<Tile>(x, x_from[i] + pair * x_pair, to_lo, second);
      };

      // What comes next is read and split while the tensor cores multiply.
      XFragment x_frag[2];
      WFragment<Tile> w_frag[2];
      float w_next[kTiles][4];
      int offset = stage * Tile::kStageFloats;
      UNROLL
      for (int i = 0; i < 2; ++i) read_x_pair(x_frag[i], 0, i);
      w_reader.template read<0>(w_next, offset);
      split_w<Tile>(w_frag[0], w_next, scale);
      int in_stage = 0;
      _Pragma("unroll 1") for (int pair = 0; pair < pairs; ++pair) {
        const bool more = pair + 1 < pairs;  // else the last are read again
        const int this_stage = stage;
        const bool stage_ends = ++in_stage == kPairsPerStage;
        if (stage_ends) in_stage = 0, stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
        const int next_offset =
            more ? stage * Tile::kStageFloats + in_stage * w_reader.kPair : offset;
        const int next_pair = more ? pair + 1 : pair;

        w_reader.template read<1>(w_next, offset);
        multiply(x_frag[0], w_frag[0]);
        read_x_pair(x_frag[0], next_pair, 0);
        if (kPromote == 16) promote();
        split_w<Tile>(w_frag[1], w_next, scale);

        w_reader.template read<0>(w_next, next_offset);
        multiply(x_frag[1], w_frag[1]);
        read_x_pair(x_frag[1], next_pair, 1);
        split_w<Tile>(w_frag[0], w_next, scale);
        promote();
        offset = next_offset;
        if (stage_ends) {
          __syncwarp();
          if (lane == 0) device::arrive(&smem.empty[this_stage]);
        }
      }
    }
    // Stages that hold less than kK of K, or nothing.
    __syncwarp();
    if (lane == 0) {
      for (int i = busy ? pairs / kPairsPerStage : 0; i < kSteps; ++i) {
        device::arrive(&smem.empty[(position + i) % Tile::kStages]);
      }
    }
    if (!busy) continue;

    float undo_x[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (Tile::kResident) {
        undo_x[i] = smem.undo_x[(g + i * 8) % Tile::kRows];
      } else {
        undo_x[i] = row + g + i * 8 < padded_rows
                        ? work.x.undo[unit.matrix * work.x.matrix_groups() +
                                      unit.chunk * padded_rows + row + g + i * 8]
                        : 1.0f;
      }
    }
    float4 sums[kTiles];
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      float sum[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const float undo_col = __shfl_sync(~0u, undo_w[t], (q * 2 + i % 2) * 4);
        const float low_sum = low[t][kRowsOfSums == 1 ? i % 2 + 2 : i];
        sum[i] = i / 2 < kRowsOfSums
                     ? fp16x3::chunk_sum(total[t][i], low_sum, undo_x[i / 2], undo_col)
                     : 0;
      }
      sums[t] = {sum[0], sum[1], sum[2], sum[3]};
    }

    if (work.chunks > 1) {
      const int64_t tile =
          ((unit.slab * work.groups + unit.group) * work.warps + warp) * Tile::kColWarps + col_warp;
      if (Tile::kResident) device::wait_for_previous_kernel();  // which zeroes `arrived`
      float4* all = work.sums + tile * work.chunks * (kTiles * 32) + lane;
      UNROLL
      for (int t = 0; t < kTiles; ++t) __stcg(all + (unit.chunk * kTiles + t) * 32, sums[t]);
      __syncwarp();
      int before = 0;
      if (lane == 0) {
        before = ::cuda::atomic_ref<int, ::cuda::thread_scope_device>(work.arrived[tile])
                     .fetch_add(1, ::cuda::std::memory_order_acq_rel);
      }
      if (__shfl_sync(~0u, before, 0) < work.chunks - 1) continue;
      if (lane == 0) work.arrived[tile] = 0;  // for the next launch
      UNROLL
      for (int t = 0; t < kTiles; ++t) sums[t] = {-0.0f, -0.0f, -0.0f, -0.0f};
      _Pragma("unroll 4") for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
        UNROLL
        for (int t = 0; t < kTiles; ++t) {
          const float4 sum = __ldcg(all + (chunk * kTiles + t) * 32);
          sums[t].x += sum.x, sums[t].y += sum.y, sums[t].z += sum.z, sums[t].w += sum.w;
        }
      }
    }

    const int64_t c_offset = batch_offset(work.p.batch, work.p.c, unit.matrix);
    UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const float sum[4] = {sums[t].x, sums[t].y, sums[t].z, sums[t].w};
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const int64_t x_row = row + g + i / 2 * 8;
        const int64_t w_col = (work.first_group + unit.group) * Tile::kCols + first_col +
                              (q * 2 + i % 2) * kTiles + t;
        if (x_row >= work.x_count || w_col >= work.w_count || i / 2 >= kRowsOfSums) continue;
        const int64_t c_row = kWIsA ? w_col : x_row, c_col = kWIsA ? x_row : w_col;
        float value = sum[i];
        if (isnan(value)) value = sum_again(work.p, unit.matrix, c_row, c_col, work.recomputed);
        if (work.stores_sums) {
          static_cast<float*>(
              work.p.c.data)[c_offset + c_row * work.p.c.row_stride + c_col * work.p.c.col_stride] =
              value;
        } else {
          store_one(work.p, c_offset, c_row, c_col, value);
        }
      }
    }
  }
}

template <class Tile, bool kAlongK, bool kWIsA, int kPromote>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ Work work) {
  static_assert(sizeof(Smem<Tile>) <= kMaxSharedMemory);
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kUnits; ++i) device::init_barrier(&smem.full[i], Tile::kLoaders);
    for (int i = 0; i < Tile::kStages; ++i) {
      device::init_barrier(&smem.empty[i], work.warps * Tile::kColWarps);
    }
    device::publish_barriers();
  }
  __syncthreads();
  device::let_next_kernel_start();

  const int64_t all = work.units();
  const int64_t first = all * blockIdx.x / gridDim.x;
  const int64_t units = all * (blockIdx.x + 1) / gridDim.x - first;
  if (threadIdx.x < Tile::kLoaders * 32) {
    load_units<Tile, kAlongK>(work, smem, first, units);  // w was there before x was split
  } else {
    // What splits x where it is not split here; where it is, that can wait.
    if (!Tile::kResident) device::wait_for_previous_kernel();
    multiply_units<Tile, kAlongK, kWIsA, kPromote>(work, smem, first, units);
  }
}

constexpr int kZeroThreads = 256;

__global__ void zero_kernel(int* counters, int64_t count) {
  device::let_next_kernel_start();
  for (int64_t i = blockIdx.x * kZeroThreads + threadIdx.x; i < count;
       i += gridDim.x * kZeroThreads) {
    counters[i] = 0;
  }
}

// Room for the sums of chunks that one launch may take.
constexpr int64_t kMaxSumBytes = int64_t{64} << 20;

template <class Tile>
void launch(Work work, bool w_is_a, const Context& context) {
  const Problem& p = work.p;
  const int64_t all_groups = ceil_div(work.w_count, Tile::kCols);
  work.panels = ceil_div(work.x_count, Tile::kRows == 8 ? 8 : 16 * work.warps);
  work.chunks = ceil_div(p.k, kChunk);
  const int64_t all_slabs = work.panels * p.batch.count;

  // As many groups and slabs a launch as there is room for their sums.
  const int64_t group_tiles = work.warps * Tile::kColWarps;
  const int64_t group_bytes = group_tiles * work.chunks * Tile::kTiles * 32 * sizeof(float4);
  const int64_t room =
      work.chunks == 1 ? all_groups * all_slabs : std::max(kMaxSumBytes / group_bytes, int64_t{1});
  const int64_t groups = std::min(all_groups, room);
  const int64_t slabs = std::min(all_slabs, std::max(room / all_groups, int64_t{1}));

  Operand x{work.x_matrix, p.batch, {.rows = work.x_count, .k = p.k}};

  WorkspaceLayout layout;
  const int64_t counters = work.chunks == 1 ? 0 : slabs * groups * group_tiles;
  const int64_t arrived_at = layout.reserve(counters * sizeof(int));
  const int64_t sums_at = layout.reserve(work.chunks == 1 ? 0 : slabs * groups * group_bytes);
  int64_t x_at = 0, undo_at = 0;
  if (!Tile::kResident) {
    x_at = layout.reserve(x.packed.matrix_bytes() * p.batch.count);
    undo_at = layout.reserve(x.packed.matrix_groups() * p.batch.count * sizeof(float));
  }
  auto* workspace =
      layout.bytes > 0 ? static_cast<uint8_t*>(context.allocate(layout.bytes)) : nullptr;
  work.arrived = reinterpret_cast<int*>(workspace + arrived_at);
  work.sums = reinterpret_cast<float4*>(workspace + sums_at);
  if (!Tile::kResident) {
    x.packed.halves = workspace + x_at;
    x.packed.undo = reinterpret_cast<float*>(workspace + undo_at);
    work.x = x.packed;
    launch_split({&x, 1}, {work.arrived, static_cast<size_t>(counters)}, context);
  } else if (counters > 0) {
    const int64_t blocks = std::min<int64_t>(ceil_div(counters, kZeroThreads), context.processors);
    zero_kernel<<<static_cast<unsigned>(blocks), kZeroThreads, 0,
                  static_cast<cudaStream_t>(context.stream)>>>(work.arrived, counters);
    check(cudaGetLastError());
  }
  // Before the first launch may come a kernel of somebody else.
  bool follows_ours = !Tile::kResident || counters > 0;

  // Neighbours that lie together are copied together.
  auto by_fours = [&](const Matrix& matrix, int64_t near, int64_t far) {
    return in_vectors<float4>(p.batch, matrix, near, far);
  };
  const bool along_k = work.w.col_stride < work.w.row_stride;
  work.vectors = along_k ? by_fours(work.w, work.w.col_stride, work.w.row_stride)
                         : by_fours(work.w, work.w.row_stride, work.w.col_stride);
  work.x_vectors = by_fours(work.x_matrix, work.x_matrix.col_stride, work.x_matrix.row_stride);

  auto choose = [&]<int kPromote>() {
    return along_k ? (w_is_a ? fp16x3_skinny_kernel<Tile, true, true, kPromote>
                             : fp16x3_skinny_kernel<Tile, true, false, kPromote>)
                   : (w_is_a ? fp16x3_skinny_kernel<Tile, false, true, kPromote>
                             : fp16x3_skinny_kernel<Tile, false, false, kPromote>);
  };
  const auto kernel = fp16x3::promotion(p.k) == 16 ? choose.template operator()<16>()
                                                   : choose.template operator()<32>();
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Smem<Tile>)));
  const RecomputedCounter counter(context);
  work.recomputed = counter.on_gpu();
  const int threads = (Tile::kLoaders + work.teams * work.warps * Tile::kColWarps) * 32;
  for (work.first_slab = 0; work.first_slab < all_slabs; work.first_slab += slabs) {
    work.slabs = std::min(slabs, all_slabs - work.first_slab);
    for (work.first_group = 0; work.first_group < all_groups; work.first_group += groups) {
      work.groups = std::min(groups, all_groups - work.first_group);
      const int64_t blocks = std::min<int64_t>(work.units(), context.processors);
      if (follows_ours) {
        launch_after(kernel, static_cast<unsigned>(blocks), threads, sizeof(Smem<Tile>), context,
                     work);
      } else {
        kernel<<<static_cast<unsigned>(blocks), threads, sizeof(Smem<Tile>),
                 static_cast<cudaStream_t>(context.stream)>>>(work);
        check(cudaGetLastError());
      }
      follows_ours = true;
    }
  }
  counter.read();
}

}  // namespace

void launch_fp16x3_skinny(const Problem& p, const Context& context) {
  const bool w_is_a = p.m > p.n;
  Work work{};
  work.p = p;
  work.w = w_is_a ? p.a : p.b;
  work.x_matrix = w_is_a ? p.b : p.a;
  Matrix& by_columns = w_is_a ? work.x_matrix : work.w;
  std::swap(by_columns.row_stride, by_columns.col_stride);
  work.w_count = w_is_a ? p.m : p.n;
  work.x_count = w_is_a ? p.n : p.m;
  const Epilogue& e = p.epilogue;
  work.stores_sums =
      e.alpha == 1 && e.beta == 0 && e.bias == nullptr && e.activation == Activation::kNone;

  // Where there are few units, small ones, so that no processor is idle.
  const int64_t small_units = ceil_div(work.x_count, 16) * ceil_div(work.w_count, 16) *
                              ceil_div(p.k, kChunk) * p.batch.count;
  work.warps = 1;
  work.teams = 4;
  if (work.x_count <= 8) {
    launch<Short8>(work, w_is_a, context);
  } else if (work.x_count <= 16 || small_units <= 3 * context.processors) {
    launch<Short16>(work, w_is_a, context);
  } else {
    work.warps = work.x_count <= 32 ? 2 : 4;
    work.teams = 1;
    launch<Long>(work, w_is_a, context);
  }
}

}  // namespace tiled::cuda
