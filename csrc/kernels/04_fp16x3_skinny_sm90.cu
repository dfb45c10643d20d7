// 04 fp16x3_skinny: the long operand is split in flight.
//
// Idea:  where one side of C is short, the other side's operand is most of what there is to read,
//        and splitting it beforehand would triple that. Here it comes from memory once: into
//        registers, where the largest magnitude of each group is found, and from there, split, to
//        shared memory, for wgmma. `w` is the long operand, whichever of A and B, and `x` the short
//        one, which is split beforehand (fp16x3_split): up to kRows rows of it are multiplied at a
//        time, as wgmma's rows, and so many as are not there cost what they would.
// Limit: how long products of one sum take one after another, and that a block has room for one
// unit
//        that is split and one that waits in registers: so each waits for the other's last stage.
//        Where x is long, the L2 cache: each block reads all of x for its few columns of w.
// Next:  narrower units, so that there is room for two; blocks of a cluster that share what they
//        read of x.
//
// A block walks through units, a chunk of K by kCols columns of w for all rows of a panel of x. A
// unit is a sequence of stages, kStageK of K each:
//
//   splitters    find the unit's scales; wait empty[s], copy x's part into stage s, split w's
//                part there -> full[s]; load the registers for the next unit
//   multipliers  wait full[s], multiply, promote; a stage later -> empty[s];
//                leave the chunk's sums in memory
//
// A second kernel adds the chunks' sums in order.

#include "device/halves.cuh"
#include "device/pipeline.cuh"
#include "device/wgmma.cuh"
#include "epilogue.h"
#include "fp16x3.h"
#include "kernels/fp16x3_again.cuh"
#include "kernels/fp16x3_chunk.cuh"
#include "kernels/fp16x3_parts.h"
#include "kernels/fp16x3_range.cuh"
#include "launch.h"
#include "sum.h"

namespace tiled::cuda {
namespace {

namespace wgmma = device::wgmma;

constexpr int kMinK = 512;  // so that every kK is promoted

struct Tile {
  static constexpr int kRows = 64, kCols = 32;  // of x, of w
  static constexpr int kStageK = 64, kStagesPerChunk = kChunk / kStageK;
  static constexpr int kMaxStages = 22;

  // Warps, in this order.
  static constexpr int kMultipliers = 4, kSplitters = 16;
  static constexpr int kThreads = (kMultipliers + kSplitters) * 32;
  static constexpr int kFours = kCols * kChunk / 4 / (kSplitters * 32);  // of w, a thread and unit

  static constexpr int kPlane = Packed::plane_bytes(kCols);              // of w, kK of K
  static constexpr int kElements = kRows * kCols / (kMultipliers * 32);  // of C a thread
};

struct Work {
  Problem p;
  Matrix w;  // row_stride: between columns of w, which are rows of A where w is A; col_stride: K
  int64_t w_count, x_count;
  Packed x;           // one panel, kRows at most, of each matrix
  int64_t first_row;  // of it
  bool w_is_a;
  int stages;                         // in shared memory
  int64_t first_matrix;               // of the batch
  int64_t first_group;                // a group is kCols columns of w
  unsigned matrices, chunks, groups;  // in this launch
  float* sums;                     // of chunks: (matrices, groups, chunks, x's padded rows, kCols)
  unsigned long long* recomputed;  // counts marked elements, or null

  // From hi halves of x and of w, in 16 bytes: to lo halves, and to those that the first and second
  // of the low products take. The first is of A's lo half.
  uint32_t x_lo, x_first, x_second, w_first, w_second;

  __host__ __device__ unsigned tiles() const { return matrices * groups; }
  __host__ __device__ unsigned units() const { return tiles() * chunks; }
  __host__ __device__ int x_rows() const { return static_cast<int>(x.padded_rows()); }
  __host__ __device__ int x_stage_bytes() const { return x_rows() * Tile::kStageK * 4; }
};

// A unit's place. Its number counts groups first, then chunks, then matrices.
struct Place {
  unsigned matrix, chunk, group;  // matrix and group count from the launch's first

  __device__ Place(const Work& work, unsigned unit)
      : matrix(unit / work.groups / work.chunks),
        chunk(unit / work.groups % work.chunks),
        group(unit % work.groups) {}
  __device__ int length(const Work& work) const {  // along K
    return static_cast<int>(min(work.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}));
  }
};

__device__ int stages_of(int length) { return (length + Tile::kStageK - 1) / Tile::kStageK; }

// Where to read a unit.
struct Unit {
  const float* w;  // its first element
  const uint8_t* x;
  int length, cols_left;  // along K; in w, from its first

  __device__ Unit(const Work& work, unsigned index) {
    const Place place(work, index);
    const int64_t matrix = work.first_matrix + place.matrix;
    const int64_t col = (work.first_group + place.group) * Tile::kCols;
    const int64_t k = int64_t{place.chunk} * kChunk;
    w = static_cast<const float*>(work.w.data) + batch_offset(work.p.batch, work.w, matrix) +
        col * work.w.row_stride + k * work.w.col_stride;
    x = work.x.halves + work.x.step_offset(matrix, 0, k / Packed::kK);
    length = place.length(work);
    cols_left = static_cast<int>(min(work.w_count - col, int64_t{Tile::kCols}));
  }
};

struct Smem {
  // In turns: while kUnits are split, the next kUnits take the place of those before.
  static constexpr unsigned kUnits = 32;
  alignas(16) uint8_t units[2 * kUnits][sizeof(Unit)];
  // Of the columns of a unit, by all splitters, in turns: one is written, one read, one cleared.
  uint32_t largest[3][Tile::kCols], smallest[3][Tile::kCols];
  float undo[Tile::kMaxStages][Tile::kCols];  // of the unit whose last stage it is
  unsigned first_unit, end_unit;              // the block's: neighbours, which share x
  uint64_t full[Tile::kMaxStages], empty[Tile::kMaxStages];
  // After it lie the stages of x, hi and lo planes of one kK, then of the other, and those of w
  // likewise: so that wgmma, which reads kRows of x where there are fewer, reads some of ours.
  static constexpr int kBytes = 6144;

  __device__ Unit& unit(unsigned index) {
    return *reinterpret_cast<Unit*>(units[index % (2 * kUnits)]);
  }
  __device__ uint8_t* x(const Work& work, int stage) {
    return reinterpret_cast<uint8_t*>(this) + kBytes + stage * work.x_stage_bytes();
  }
  __device__ uint8_t* w(const Work& work, int stage) {
    return x(work, work.stages) + stage * kStageBytes;
  }
  static constexpr int kStageBytes = Tile::kCols * Tile::kStageK * 4;
};

static_assert(sizeof(Smem) <= Smem::kBytes);

// A stage of the pipeline, and the parity of its phase.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void next(const Work& work) { advance(work, 1); }
  __device__ void advance(const Work& work, int stages) {
    for (stage += stages; stage >= work.stages; stage -= work.stages) parity ^= 1;
  }
};

// Which of a unit of w a lane of a splitter has: fours of neighbours, along K of one column, or of
// columns at one K; a warp has all columns and kStageK of K.
template <bool kAlongK>
struct Fours {
  unsigned lane;

  // Of the i-th: the first column and K in the stage.
  __device__ constexpr int col(int i) const {
    return kAlongK ? i / 2 * 4 + lane / 8 : lane % 8 * 4;
  }
  __device__ constexpr int k(int i) const {
    return kAlongK ? i % 2 * 32 + lane % 8 * 4 : i / 4 * 16 + lane / 8 * 4 + i % 4;
  }

  // The column whose range the lane finds.
  __device__ int own_col() const { return lane % 8 * 4 + lane / 8; }
  // The scale of the i-th four's column, or of the i-th neighbour's, of those that the lanes have.
  __device__ float scale_of(int i, float scale) const {
    return kAlongK ? __shfl_sync(~0u, scale, i / 2, 8) : __shfl_sync(~0u, scale, i * 8 + lane % 8);
  }

  // Where a column lies among a stage's rows, such that a warp writes without conflicts.
  static __device__ int row(int col) { return kAlongK ? col : col % 4 * 8 + col / 4; }
  // Where four neighbours along K lie in a stage: of the i-th four, or of the j-th column of the
  // fours from the i-th on, they are at(i, j) after place(flips(i)). It is Packed::swizzle().
  __device__ uint32_t place(bool flips) const {
    const unsigned row = kAlongK ? lane / 8 : lane % 8, k4 = kAlongK ? lane % 8 : lane / 8;
    return row * 64 + (k4 / 2 ^ row / 2 ^ (flips ? 2 : 0)) * 16 + k4 % 2 * 8;
  }
  static __device__ constexpr bool flips(int i) { return i / (kAlongK ? 2 : 4) % 2 > 0; }
  static __device__ constexpr uint32_t at(int i, int j) {
    return kAlongK ? i / 2 * 256 + i % 2 * 2 * Tile::kPlane : j * 512 + i / 8 * 2 * Tile::kPlane;
  }
};

// The lane's number, read anew: what depends on it is then computed where it is needed, instead of
// being kept in registers, of which a splitter has few.
__device__ unsigned read_lane() {
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Reads a thread's part of a unit, zeros beyond the end.
template <bool kAlongK, bool kVectors>
class Reader {
 public:
  // `any`: or nothing but zeros.
  __device__ Reader(const Work& work, const Unit& unit, Fours<kAlongK> own, int stage, bool any)
      : data_(unit.w + own.col(0) * work.w.row_stride +
              (stage * Tile::kStageK + own.k(0)) * work.w.col_stride),
        cols_left_(unit.cols_left - own.col(0)),
        k_left_(any && cols_left_ > 0 ? unit.length - stage * Tile::kStageK - own.k(0) : 0),
        all_inside_(kVectors && any && unit.cols_left == Tile::kCols &&
                    unit.length >= (stage + 1) * Tile::kStageK) {}

  // Four fours from the i-th on; in ascending order.
  __device__ void read(const Work& work, float (&x)[Tile::kFours][4], int i) {
    if (all_inside_) {  // the same for all lanes
      UNROLL
      for (int each = i; each < i + 4; ++each) read_four(work, x[each], each);
    } else {
      UNROLL
      for (int each = i; each < i + 4; ++each) read_inside(work, x[each], each);
    }
  }

 private:
  __device__ void advance(const Work& work, int i) {
    constexpr Fours<kAlongK> first_lane{.lane = 0};
    if (i == 0) return;
    const int cols = first_lane.col(i) - first_lane.col(i - 1);
    const int k = first_lane.k(i) - first_lane.k(i - 1);
    data_ += cols * work.w.row_stride + k * (kAlongK && kVectors ? 1 : work.w.col_stride);
  }
  __device__ void read_four(const Work& work, float (&x)[4], int i) {
    advance(work, i);
    const float4 four = __ldcg(reinterpret_cast<const float4*>(data_));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }
  __device__ void read_inside(const Work& work, float (&x)[4], int i) {
    advance(work, i);
    constexpr Fours<kAlongK> first_lane{.lane = 0};
    const int col = first_lane.col(i), k = first_lane.k(i);
    const int64_t near = kVectors ? 1 : kAlongK ? work.w.col_stride : work.w.row_stride;
    UNROLL
    for (int j = 0; j < 4; ++j) {
      // Where columns are read as vectors, all are there or none.
      const bool inside = kAlongK ? col < cols_left_ && k + j < k_left_
                                  : (kVectors || col + j < cols_left_) && k < k_left_;
      x[j] = inside ? data_[j * near] : 0.0f;
    }
  }

  const float* data_;
  int cols_left_, k_left_;  // to the end of the matrix or chunk, from the thread's first
  bool all_inside_;
};

// Copies a stage of a unit of x, and is an arrival; one thread calls it. Where K has no second kK,
// it is the first again, which meets zeros of w.
__device__ void copy_x(const Work& work, Smem& smem, const Unit& unit, int stage_of_unit,
                       int stage) {
  const int bytes = work.x_stage_bytes();
  const uint8_t* from = unit.x + stage_of_unit * bytes;
  uint8_t* to = smem.x(work, stage);
  uint64_t* full = &smem.full[stage];
  device::arrive_expecting(full, bytes);
  const bool whole = unit.length > stage_of_unit * Tile::kStageK + Packed::kK;
  device::copy(to, from, whole ? bytes : bytes / 2, full);
  if (!whole) device::copy(to + bytes / 2, from, bytes / 2, full);
}

// Of what a warp has of the lane's own column.
template <bool kAlongK>
__device__ Range range_of_column(const float (&x)[Tile::kFours][4], unsigned lane) {
  constexpr int kCols = kAlongK ? 8 : 4;   // that a lane has something of, and as many have them
  constexpr int kLanes = kAlongK ? 1 : 8;  // from one of those lanes to the next
  Range range[kCols];
  UNROLL
  for (int i = 0; i < Tile::kFours; ++i) {
    UNROLL
    for (int j = 0; j < 4; ++j) range[kAlongK ? i / 2 : j].add(x[i][j]);
  }
  // Each lane gives away half of its columns, until it has its own.
  UNROLL
  for (int half = kCols / 2; half > 0; half /= 2) {
    const bool upper = lane & half * kLanes;
    UNROLL
    for (int i = 0; i < half; ++i) {
      const Range given = upper ? range[i] : range[i + half];
      if (upper) range[i] = range[i + half];
      range[i].add({__shfl_xor_sync(~0u, given.largest, half * kLanes),
                    __shfl_xor_sync(~0u, given.smallest, half * kLanes)});
    }
  }
  return range[0];
}

template <bool kAlongK, bool kVectors>
__device__ void split(const Work& work, Smem& smem) {
  static_assert(Tile::kSplitters == Tile::kStagesPerChunk, "a warp has a stage of a unit");
  const int warp = threadIdx.x / 32 - Tile::kMultipliers;
  float x[Tile::kFours][4];
  {
    Reader<kAlongK, kVectors> reader(work, smem.unit(0), {read_lane()}, warp, true);
    UNROLL
    for (int i = 0; i < Tile::kFours; i += 4) reader.read(work, x, i);
  }
  // Of the warp's part of a unit; it may be turns further than Turn::next() goes.
  Turn turn{.parity = 1};
  turn.advance(work, warp);
  NO_UNROLL
  for (unsigned index = smem.first_unit; index < smem.end_unit; ++index) {
    const unsigned lane = read_lane();
    const Fours<kAlongK> own{lane};
    const Range part_range = range_of_column<kAlongK>(x, lane);
    const unsigned now = index % 3, cleared = (index + 2) % 3;
    atomicMax(&smem.largest[now][own.own_col()], part_range.largest);
    atomicMin(&smem.smallest[now][own.own_col()], part_range.smallest);
    device::sync_threads(1, Tile::kSplitters * 32);
    const Range range{smem.largest[now][own.own_col()], smem.smallest[now][own.own_col()]};
    const float scale = fp16x3::scale(range.largest);
    if (warp == 0) smem.largest[cleared][lane] = 0, smem.smallest[cleared][lane] = ~0u;

    const Unit& unit = smem.unit(index - smem.first_unit);
    const int stages = stages_of(unit.length), stage = turn.stage;
    Reader<kAlongK, kVectors> reader(work, smem.unit(index + 1 - smem.first_unit), own, warp,
                                     index + 1 < smem.end_unit);
    if (warp < stages) {
      // Where there are fewer stages than in a unit, this one has been filled for it before.
      for (int turns = warp / work.stages; turns >= 0; --turns) {
        device::wait(&smem.empty[stage], (turn.parity + turns) % 2);
      }
      if (index == smem.first_unit) device::wait_for_previous_kernel();  // which split x
      if (lane == 0) copy_x(work, smem, unit, warp, stage);
      if (warp == stages - 1) smem.undo[stage][own.row(own.own_col())] = range.undo_scale(scale);

      // What has been split makes room for the next unit.
      uint32_t to[2];
      UNROLL
      for (int i = 0; i < 2; ++i) {
        to[i] = static_cast<uint32_t>(__cvta_generic_to_shared(smem.w(work, stage))) + own.place(i);
      }
      float col_scale;
      UNROLL
      for (int i = 0; i < Tile::kFours; i += 4) {
        UNROLL
        for (int j = 0; j < 4; ++j) {
          // The (i + j)-th, or four of K of the j-th column.
          if (!kAlongK || j % 2 == 0) col_scale = own.scale_of(kAlongK ? i + j : j, scale);
          float four[4];
          UNROLL
          for (int l = 0; l < 4; ++l) {
            four[l] = (kAlongK ? x[i + j][l] : x[i + l][j]) * col_scale;
          }
          uint2 hi, lo;
          device::split_two(four[0], four[1], hi.x, lo.x);
          device::split_two(four[2], four[3], hi.y, lo.y);
          const int first = kAlongK ? i + j : i;
          const uint32_t place = to[own.flips(first)] + own.at(first, j);
          device::store_shared(place, hi);
          device::store_shared(place + Tile::kPlane, lo);
        }
        if (kVectors) reader.read(work, x, i);
      }
      device::publish_writes();
      __syncwarp();
      if (lane == 0) device::arrive(&smem.full[stage]);
    } else if (kVectors) {
      UNROLL
      for (int i = 0; i < Tile::kFours; i += 4) reader.read(work, x, i);
    }
    turn.advance(work, stages);
    if (!kVectors) {
      UNROLL
      for (int i = 0; i < Tile::kFours; i += 4) reader.read(work, x, i);
    }
  }
}

template <bool kAlongK>
__device__ void multiply(const Work& work, Smem& smem) {
  constexpr int kNone = -1;
  constexpr int kSteps = Tile::kStageK / Packed::kK;
  constexpr uint32_t kToLo = Tile::kPlane / 16;  // of w
  static_assert(fp16x3::promotion(kMinK) == Packed::kK && fp16x3::promotion(kChunk) == Packed::kK);
  static_assert(kSteps == 2);
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 * 16 + lane / 4, q = lane % 4;  // and row + 8
  const int rows = work.x_rows();
  const uint32_t x_smem = wgmma::low_word(smem.x(work, 0));
  const uint32_t w_smem = wgmma::low_word(smem.w(work, 0));
  device::wait_for_previous_kernel();
  Turn turn;
  NO_UNROLL
  for (unsigned index = smem.first_unit; index < smem.end_unit; ++index) {
    const Place place(work, index);
    const float* x_undo = work.x.undo +
                          (work.first_matrix + place.matrix) * work.x.matrix_groups() +
                          place.chunk * rows + row;
    float undo_x[2];
    UNROLL
    for (int i = 0; i < 2; ++i) undo_x[i] = row + i * 8 < rows ? x_undo[i * 8] : 1.0f;

    float total[Tile::kElements], low[Tile::kElements];
    UNROLL
    for (int i = 0; i < Tile::kElements; ++i) total[i] = 0, low[i] = 0;
    int to_release = kNone;
    NO_UNROLL
    for (int stages = stages_of(place.length(work)); stages > 0; --stages) {
      device::wait(&smem.full[turn.stage], turn.parity);
      // The same in all lanes; so it comes into a uniform register.
      const uint32_t x = __reduce_or_sync(~0u, x_smem + turn.stage * (work.x_stage_bytes() / 16));
      const uint32_t w = __reduce_or_sync(~0u, w_smem + turn.stage * (Smem::kStageBytes / 16));
      float part[kSteps][Tile::kElements] = {};
      wgmma::keep(low);
      UNROLL
      for (int step = 0; step < kSteps; ++step) wgmma::keep(part[step]);
      wgmma::fence();
      // Of 16 of K: the main product, and the first and second of the low ones. Those that follow
      // each other are of different sums where they can be.
      auto multiply_add = [&](float(&d)[Tile::kElements], int k16, uint32_t x_half, uint32_t w_half,
                              bool accumulate) {
        const uint32_t x_at = x + (k16 / 2 * 2 * work.x_lo + x_half + k16 % 2 * 2);
        const uint32_t w_at = w + (k16 / 2 * 2 * kToLo + w_half + k16 % 2 * 2);
        wgmma::multiply_add(d, wgmma::describe(x_at), wgmma::describe(w_at), accumulate);
      };
      auto main = [&](int k16) { multiply_add(part[k16 / 2], k16, 0, 0, k16 % 2 > 0); };
      auto first = [&](int k16) { multiply_add(low, k16, work.x_first, work.w_first, true); };
      auto second = [&](int k16) { multiply_add(low, k16, work.x_second, work.w_second, true); };
      main(0), first(0), main(1);
      wgmma::commit();
      second(0), main(2), first(1), main(3);
      wgmma::commit();
      second(1), first(2), second(2), first(3), second(3);
      wgmma::commit();
      wgmma::wait<2>();
      wgmma::keep(part[0]);
      if (to_release != kNone && lane == 0) device::arrive(&smem.empty[to_release]);
      to_release = turn.stage;
      turn.next(work);
      UNROLL
      for (int i = 0; i < Tile::kElements; ++i) total[i] += part[0][i];
      wgmma::wait<1>();
      wgmma::keep(part[1]);
      UNROLL
      for (int i = 0; i < Tile::kElements; ++i) total[i] += part[1][i];
    }
    float2 undo_w[Tile::kElements / 4];
    UNROLL
    for (int i = 0; i < Tile::kElements / 4; ++i) {
      undo_w[i] = *reinterpret_cast<const float2*>(&smem.undo[to_release][i * 8 + q * 2]);
    }
    // Splitters have begun this unit or a later one, so none looks for those before.
    const unsigned in_block = index - smem.first_unit;
    const unsigned later = Smem::kUnits + threadIdx.x;
    if (threadIdx.x < Smem::kUnits && in_block > 0 && in_block % Smem::kUnits == 0 &&
        index + later < smem.end_unit) {
      smem.unit(in_block + later) = Unit(work, index + later);
    }
    wgmma::wait<0>();
    wgmma::keep(low);
    __syncwarp();
    if (lane == 0) device::arrive(&smem.empty[to_release]);

    finish_chunk(total, low, undo_x, undo_w);
    const int64_t tile = place.matrix * work.groups + place.group;
    float* sums = work.sums + ((tile * work.chunks + place.chunk) * rows + row) * Tile::kCols;
    UNROLL
    for (int down = 0; down < 2; ++down) {
      if (row + down * 8 >= rows) continue;
      float* to = sums + down * 8 * Tile::kCols;
      const float* from = total + down * 2;
      if constexpr (kAlongK) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
          __stcg(reinterpret_cast<float2*>(to + i * 8 + q * 2),
                 float2{from[i * 4], from[i * 4 + 1]});
        }
      } else {  // where Fours::row() put them
        UNROLL
        for (int i = 0; i < 2; ++i) {
          __stcg(reinterpret_cast<float4*>(to + (q * 2 + i) * 4),
                 float4{from[i], from[i + 4], from[i + 8], from[i + 12]});
        }
      }
    }
  }
}

template <bool kAlongK, bool kVectors>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp16x3_skinny_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  if (threadIdx.x < Tile::kCols) {
    UNROLL
    for (int i = 0; i < 3; ++i) {
      smem.largest[i][threadIdx.x] = 0, smem.smallest[i][threadIdx.x] = ~0u;
    }
  }
  const uint64_t units = work.units();
  const auto first = static_cast<unsigned>(units * blockIdx.x / gridDim.x);
  const auto end = static_cast<unsigned>(units * (blockIdx.x + 1) / gridDim.x);
  if (threadIdx.x < 2 * Smem::kUnits && first + threadIdx.x < end) {
    smem.unit(threadIdx.x) = Unit(work, first + threadIdx.x);
  }
  if (threadIdx.x == 0) {
    smem.first_unit = first, smem.end_unit = end;
    for (int i = 0; i < work.stages; ++i) {
      device::init_barrier(&smem.full[i], 2);  // x, w
      device::init_barrier(&smem.empty[i], Tile::kMultipliers);
    }
    device::publish_barriers();
  }
  __syncthreads();
  device::let_next_kernel_start();
  if (threadIdx.x < Tile::kMultipliers * 32) {
    multiply<kAlongK>(work, smem);
  } else {
    split<kAlongK, kVectors>(work, smem);
  }
}

constexpr int kFinishThreads = 128;

// Adds the sums of all chunks in order, and stores them: an element of C a thread.
__global__ void __launch_bounds__(kFinishThreads)
    fp16x3_skinny_finish_kernel(const __grid_constant__ Work work) {
  device::let_next_kernel_start();
  const auto rows = static_cast<unsigned>(work.x_rows());
  const unsigned line = blockIdx.x * (kFinishThreads / 32) + threadIdx.x / 32;  // kCols of a tile
  const unsigned tile = line / rows, col = threadIdx.x % Tile::kCols;
  const int64_t x_row = work.first_row + line % rows;
  const int64_t w_col = (work.first_group + tile % work.groups) * Tile::kCols + col;
  if (tile >= work.tiles() || x_row >= work.x_count || w_col >= work.w_count) return;
  const int64_t chunk_stride = rows * Tile::kCols;
  const float* sums =
      work.sums + tile * work.chunks * chunk_stride + line % rows * Tile::kCols + col;
  const int64_t matrix = work.first_matrix + tile / work.groups;
  const int64_t c_offset = batch_offset(work.p.batch, work.p.c, matrix);
  device::wait_for_previous_kernel();
  float sum = kEmptyTotal<float>;
  _Pragma("unroll 8") for (unsigned chunk = 0; chunk < work.chunks; ++chunk) {
    sum += __ldcg(sums + chunk * chunk_stride);
  }
  const int64_t c_row = work.w_is_a ? w_col : x_row, c_col = work.w_is_a ? x_row : w_col;
  if (isnan(sum)) sum = sum_again(work.p, matrix, c_row, c_col, work.recomputed);
  store<float>(work.p, c_offset, c_row, c_col, sum);
}

// Room for the sums of chunks that one launch may take.
constexpr int64_t kMaxSumBytes = int64_t{64} << 20;

}  // namespace

void launch_fp16x3_skinny(const Problem& p, const Context& context) {
  Work work{};
  work.p = p;
  work.w_is_a = p.m > p.n;
  work.w = work.w_is_a ? p.a : p.b;
  Matrix x_matrix = work.w_is_a ? p.b : p.a;
  Matrix& by_columns = work.w_is_a ? x_matrix : work.w;
  std::swap(by_columns.row_stride, by_columns.col_stride);
  work.w_count = std::max(p.m, p.n);
  work.x_count = std::min(p.m, p.n);
  work.chunks = static_cast<unsigned>(ceil_div(p.k, kChunk));
  // Of the first panel of x; the last may be smaller.
  work.x = {.rows = std::min<int64_t>(work.x_count, Tile::kRows), .k = p.k};
  const int64_t all_groups = ceil_div(work.w_count, Tile::kCols);
  const int64_t tile_bytes = int64_t{work.chunks} * work.x_rows() * Tile::kCols * 4;
  // As many tiles a launch as there is room for their sums.
  const int64_t room = std::max(kMaxSumBytes / tile_bytes, int64_t{1});
  const int64_t groups = std::min(all_groups, room);
  const int64_t matrices = std::min(p.batch.count, std::max(room / all_groups, int64_t{1}));

  WorkspaceLayout layout;
  const int64_t sums_at = layout.reserve(groups * matrices * tile_bytes);
  const int64_t x_at = layout.reserve(work.x.matrix_bytes() * p.batch.count);
  const int64_t undo_at =
      layout.reserve(work.x.matrix_groups() * p.batch.count * int64_t{sizeof(float)});
  auto* workspace = static_cast<uint8_t*>(context.allocate(layout.bytes));
  work.sums = reinterpret_cast<float*>(workspace + sums_at);
  work.x.halves = workspace + x_at;
  work.x.undo = reinterpret_cast<float*>(workspace + undo_at);

  // Neighbours that lie together are read together, where all of them are there.
  const Matrix& w = work.w;
  const bool along_k = w.col_stride < w.row_stride;
  const bool vectors =
      along_k ? p.k % 4 == 0 && in_vectors<float4>(p.batch, w, w.col_stride, w.row_stride)
              : work.w_count % 4 == 0 && in_vectors<float4>(p.batch, w, w.row_stride, w.col_stride);
  const auto kernel =
      along_k ? (vectors ? fp16x3_skinny_kernel<true, true> : fp16x3_skinny_kernel<true, false>)
              : (vectors ? fp16x3_skinny_kernel<false, true> : fp16x3_skinny_kernel<false, false>);
  const RecomputedCounter counter(context);
  work.recomputed = counter.on_gpu();
  for (; work.first_row < work.x_count; work.first_row += Tile::kRows) {
    work.x.rows = std::min<int64_t>(work.x_count - work.first_row, Tile::kRows);
    Operand x{x_matrix, p.batch, work.x};
    x.matrix.data = static_cast<float*>(x_matrix.data) + work.first_row * x_matrix.row_stride;
    launch_split({&x, 1}, {}, context);

    const int stage_bytes = Smem::kStageBytes + work.x_stage_bytes();
    work.stages = std::min(Tile::kMaxStages, (kMaxSharedMemory - Smem::kBytes) / stage_bytes);
    const int smem_bytes = Smem::kBytes + work.stages * stage_bytes;
    work.x_lo = static_cast<uint32_t>(Packed::plane_bytes(work.x_rows()) / 16);
    work.x_first = work.w_is_a ? 0 : work.x_lo;
    work.x_second = work.x_lo - work.x_first;
    work.w_first = work.w_is_a ? Tile::kPlane / 16 : 0;
    work.w_second = Tile::kPlane / 16 - work.w_first;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
    for (work.first_matrix = 0; work.first_matrix < p.batch.count; work.first_matrix += matrices) {
      work.matrices = static_cast<unsigned>(std::min(matrices, p.batch.count - work.first_matrix));
      for (work.first_group = 0; work.first_group < all_groups; work.first_group += groups) {
        work.groups = static_cast<unsigned>(std::min(groups, all_groups - work.first_group));
        launch_after(kernel, std::min(work.units(), static_cast<unsigned>(context.processors)),
                     Tile::kThreads, static_cast<size_t>(smem_bytes), context, work);
        const int64_t lines = int64_t{work.tiles()} * work.x_rows();
        launch_after(fp16x3_skinny_finish_kernel,
                     static_cast<unsigned>(ceil_div(lines, kFinishThreads / 32)), kFinishThreads, 0,
                     context, work);
      }
    }
  }
  counter.read();
}

}  // namespace tiled::cuda
