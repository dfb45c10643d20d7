// Running sums of rows.
//
// Idea:  A warp sums a segment, with a group of 4 elements in each lane, by 5 shuffles, and has up
//        to 8 segments at once: of a chunk or, if rows have one segment at most, of several rows. A
//        block has a longer row and each of its warps a chunk, so a row is read once: later warps
//        and later chunks get the sums of those before through shared memory.
//        A few long rows are divided among blocks. One kernel computes the sums of chunks; the next
//        adds those before its blocks, and computes the running sums.
// Limit: memory. Few rows of up to 32 chunks do not fill the GPU, and divided rows are read twice.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_cumsum.h"
#include "kernels/common/launch.h"
#include "kernels/common/workspace.h"
#include "kernels/rows/cumsum.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::cumsum {
namespace {

namespace order = tiled::cumsum;
using order::kGroup, order::kSegment;

constexpr int kWarp = 32, kSegments = order::kChunk / kSegment;
static_assert(kSegment == kWarp * kGroup);

constexpr int kWarps = 8;  // of a block
// Those of a block with a long row if there are few such rows. An SM's registers have a chunk for
// each of 32 warps if it is of floats.
template <typename T>
constexpr int kWarpsOfLongRow = std::is_same_v<T, double> ? 8 : 32;

// A group, loaded at once: by two instructions if it has 32 bytes.
template <typename T>
struct alignas(kGroup * sizeof(T) < 16 ? kGroup * sizeof(T) : 16) Vector {
  T elements[kGroup];
};

__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }

// The groups of a lane in global memory: one in each of a chunk's segments, kSegment elements
// apart. Elements are counted from the lane's first one, in the order of their sums.
template <typename T>
class Groups {
 public:
  // Element `first` of a row is the lane's first.
  __device__ Groups(const CumSumProblem& p, int64_t row, int64_t first, bool is_vectorized)
      : step_(p.is_reversed ? -1 : 1),
        left_(static_cast<int>(min(p.columns - first, int64_t{order::kChunk}))),
        is_vectorized_(is_vectorized) {
    const int64_t offset = p.is_reversed ? p.columns - 1 - first : first;
    x_ = static_cast<const T*>(p.x.data) + row * p.x.pitch + offset;
    out_ = static_cast<T*>(p.out) + row * p.columns + offset;
  }

  // Returns the group of element `at`, with 0 past the row's end.
  __device__ Vector<T> load(int at) const {
    Vector<T> group = {};
    if (is_vectorized_) {
      if (at < left_) group = ordered(*reinterpret_cast<const Vector<T>*>(x_ + lowest(at)));
    } else {
      UNROLL
      for (int i = 0; i < kGroup; ++i) {
        if (at + i < left_) group.elements[i] = x_[step_ * (at + i)];
      }
    }
    return group;
  }

  // Stores start + sums[i] as the group of element `at`, up to the row's end.
  template <typename A>
  __device__ void store(int at, A start, const A (&sums)[kGroup]) const {
    Vector<T> group;
    UNROLL
    for (int i = 0; i < kGroup; ++i) group.elements[i] = narrow<T>(start + sums[i]);
    if (is_vectorized_) {
      if (at < left_) *reinterpret_cast<Vector<T>*>(out_ + lowest(at)) = ordered(group);
    } else {
      UNROLL
      for (int i = 0; i < kGroup; ++i) {
        if (at + i < left_) out_[step_ * (at + i)] = group.elements[i];
      }
    }
  }

 private:
  // Returns the offset of a group in memory, where elements of a reversed row descend.
  __device__ int lowest(int at) const { return step_ * at - (step_ < 0 ? kGroup - 1 : 0); }
  __device__ Vector<T> ordered(const Vector<T>& x) const {
    const auto& [a, b, c, d] = x.elements;
    return step_ < 0 ? Vector<T>{{d, c, b, a}} : x;
  }

  const T* x_;
  T* out_;
  int step_, left_;
  bool is_vectorized_;
};

// Replaces a lane's elements by their running sums, and returns the sum of the segment up to the
// lane's group. `place` is the lane's, among those with the same row.
template <typename A>
__device__ A sum_groups(A (&x)[kGroup], int place) {
  UNROLL
  for (int i = 1; i < kGroup; ++i) x[i] = x[i - 1] + x[i];
  A total = x[kGroup - 1];
  UNROLL
  for (int width = 1; width < kWarp; width *= 2) {
    const A earlier = __shfl_up_sync(~0u, total, width);
    if (place >= width) total = earlier + total;
  }
  return total;
}

// Returns the sum of the groups before a lane's, from the sum that includes it.
template <typename A>
__device__ A sum_before(A total, int place) {
  const A earlier = __shfl_up_sync(~0u, total, 1);
  return place > 0 ? earlier : A{0};
}

// A lane's part of a chunk: the running sums in its groups, and the sum of the chunk before each.
template <typename T>
class SummedChunk {
 public:
  using A = accumulator_t<T>;

  // Loads a chunk with elements in the segments up to `count`. A count that is known to the
  // compiler saves a loop of chunks many registers, so those loops take all segments.
  __device__ SummedChunk(const CumSumProblem& p, int64_t row, int64_t chunk, bool is_vectorized,
                         int count = order::kChunk)
      : groups_(p, row, chunk * order::kChunk + lane_of_warp() * kGroup, is_vectorized),
        count_(count) {
    Vector<T> x[kSegments];
    UNROLL
    for (int s = 0; s < kSegments; ++s) x[s] = groups_.load(s * kSegment);
    UNROLL
    for (int s = 0; s < kSegments; ++s) {
      if (s * kSegment >= count_) break;
      UNROLL
      for (int i = 0; i < kGroup; ++i) sums_[s][i] = widen(x[s].elements[i]);
      const A total = sum_groups(sums_[s], lane_of_warp());
      starts_[s] = sum_ + sum_before(total, lane_of_warp());
      sum_ += __shfl_sync(~0u, total, kWarp - 1);
    }
  }

  // Returns the sum of the chunk in every lane.
  __device__ A sum() const { return sum_; }

  // Stores the running sums of the row, from the sum before the chunk.
  __device__ void store(A before) const {
    UNROLL
    for (int s = 0; s < kSegments; ++s) {
      if (s * kSegment >= count_) break;
      groups_.store(s * kSegment, before + starts_[s], sums_[s]);
    }
  }

 private:
  Groups<T> groups_;
  int count_;
  A sums_[kSegments][kGroup], starts_[kSegments];
  A sum_ = 0;
};

// --- Rows of up to one segment, several in a warp ------------------------------------------------

// Returns how many lanes have a row: a power of two.
HOST_DEVICE inline int lanes_of_row(int64_t columns) {
  int lanes = 1;
  while (lanes * kGroup < columns) lanes *= 2;
  return lanes;
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    cumsum_segment_kernel(const CumSumProblem p, bool is_vectorized, int64_t first_block) {
  using A = accumulator_t<T>;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int lanes = lanes_of_row(p.columns), place = lane_of_warp() % lanes;
  const int64_t warp = (first_block + blockIdx.x) * kWarps + warp_of_block();
  const int64_t first = warp * kSegments * (kWarp / lanes) + lane_of_warp() / lanes;
  const auto row_of = [&](int s) { return first + s * (kWarp / lanes); };
  Vector<T> groups[kSegments] = {};
  UNROLL
  for (int s = 0; s < kSegments; ++s) {
    if (row_of(s) < p.rows) {
      groups[s] = Groups<T>(p, row_of(s), place * kGroup, is_vectorized).load(0);
    }
  }
  UNROLL
  for (int s = 0; s < kSegments; ++s) {
    A x[kGroup];
    UNROLL
    for (int i = 0; i < kGroup; ++i) x[i] = widen(groups[s].elements[i]);
    const A start = A{0} + sum_before(sum_groups(x, place), place);
    if (row_of(s) < p.rows) {
      Groups<T>(p, row_of(s), place * kGroup, is_vectorized).store(0, start, x);
    }
  }
}

// --- Rows of up to one chunk, each a warp's ------------------------------------------------------

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    cumsum_warp_kernel(const CumSumProblem p, bool is_vectorized, int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = (first_block + blockIdx.x) * kWarps + warp_of_block();
  if (row < p.rows) SummedChunk<T>(p, row, 0, is_vectorized, static_cast<int>(p.columns)).store(0);
}

// --- Longer rows, each a block's -----------------------------------------------------------------

// kMaxWarps: the most warps of a block, a power of two.
template <typename T, int kMaxWarps>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    cumsum_block_kernel(const CumSumProblem p, bool is_vectorized, int64_t first_block) {
  using A = accumulator_t<T>;
  __shared__ A totals[2][kMaxWarps];  // of the chunks of this turn, and of the one before
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int warp = warp_of_block(), warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t row = first_block + blockIdx.x, chunks = ceil_div(p.columns, order::kChunk);
  A of_superchunks = 0, of_chunks = 0;
  for (int64_t turn = 0; turn * warps < chunks; ++turn) {
    if (turn > 0 && turn * warps % order::kChunk == 0) {
      of_superchunks += of_chunks;
      of_chunks = 0;
    }
    const SummedChunk<T> chunk(p, row, turn * warps + warp, is_vectorized);
    if (lane_of_warp() == 0) totals[turn % 2][warp] = chunk.sum();
    __syncthreads();
    A before = 0;
    for (int i = 0; i < warps; ++i) {
      if (i == warp) before = of_chunks;
      of_chunks += totals[turn % 2][i];
    }
    chunk.store(of_superchunks + before);
  }
}

// --- Few long rows, each divided among blocks ----------------------------------------------------

// The sums of chunks and superchunks, (rows, chunks) and (rows, superchunks).
template <typename A>
struct Totals {
  A* of_chunks;
  A* of_superchunks;
};

// Where a warp is: each has a chunk of a row, and a block those of one superchunk.
struct ChunkIndex {
  int64_t row, chunk, chunks;  // chunk < chunks, or past the row's end

  __device__ ChunkIndex(int64_t columns, int64_t block) : chunks(ceil_div(columns, order::kChunk)) {
    const int64_t blocks = ceil_div(chunks, kWarps);
    row = block / blocks;
    chunk = block % blocks * kWarps + warp_of_block();
  }
};

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_chunks_kernel(const CumSumProblem p, Totals<accumulator_t<T>> totals, bool is_vectorized,
                      int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const ChunkIndex index(p.columns, first_block + blockIdx.x);
  if (index.chunk >= index.chunks) return;
  const SummedChunk<T> chunk(p, index.row, index.chunk, is_vectorized);
  if (lane_of_warp() != 0) return;
  totals.of_chunks[index.row * index.chunks + index.chunk] = chunk.sum();
}

// Returns the sum of numbers in global memory, ascending from +0, in every lane of a warp.
template <typename A>
__device__ A sum_ascending(const A* numbers, int64_t count) {
  A sum = 0, next = lane_of_warp() < count ? numbers[lane_of_warp()] : A{0};
  for (int64_t first = 0; first < count; first += kWarp) {
    const A current = next;
    const int64_t at = first + kWarp + lane_of_warp();
    next = at < count ? numbers[at] : A{0};
    UNROLL
    for (int lane = 0; lane < kWarp; ++lane) sum += __shfl_sync(~0u, current, lane);
  }
  return sum;
}

// A block is one warp and has a superchunk.
template <typename A>
__global__ void __launch_bounds__(kWarp)
    sum_superchunks_kernel(Totals<A> totals, int64_t chunks, int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t index = first_block + blockIdx.x, superchunks = ceil_div(chunks, order::kChunk);
  const int64_t row = index / superchunks, first = index % superchunks * order::kChunk;
  const A total = sum_ascending(totals.of_chunks + row * chunks + first,
                                min(int64_t{order::kChunk}, chunks - first));
  if (lane_of_warp() == 0) totals.of_superchunks[index] = total;
}

// Without the number of blocks, 2, ptxas would spill.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    cumsum_chunks_kernel(const CumSumProblem p, Totals<accumulator_t<T>> totals, bool is_vectorized,
                         int64_t first_block) {
  using A = accumulator_t<T>;
  __shared__ A before_block[2];  // in its superchunk, and before that one
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const ChunkIndex index(p.columns, first_block + blockIdx.x);
  const int64_t block = index.chunk - warp_of_block();  // its first chunk
  const int64_t superchunk = block / order::kChunk;
  const int64_t superchunks = ceil_div(index.chunks, order::kChunk);
  const A* of_chunks = totals.of_chunks + index.row * index.chunks;
  const SummedChunk<T> chunk(p, index.row, index.chunk, is_vectorized);
  if (warp_of_block() < 2) {
    const bool is_first = warp_of_block() == 0;
    const A sum = is_first
                      ? sum_ascending(of_chunks + superchunk * order::kChunk, block % order::kChunk)
                      : sum_ascending(totals.of_superchunks + index.row * superchunks, superchunk);
    if (lane_of_warp() == 0) before_block[warp_of_block()] = sum;
  }
  __syncthreads();
  A before = before_block[0];
  UNROLL
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp_of_block() && block + i < index.chunks) before += of_chunks[block + i];
  }
  chunk.store(before_block[1] + before);
}

// --- Launches ------------------------------------------------------------------------------------

// Returns whether groups are aligned in all rows, and no row ends within one.
template <typename T>
bool is_aligned(const void* data, int64_t pitch, int64_t columns) {
  const bool is_first = reinterpret_cast<uintptr_t>(data) % alignof(Vector<T>) == 0;
  return is_first && pitch % kGroup == 0 && columns % kGroup == 0;
}

// Launches the kernels of divided rows, and returns whether there was memory for the sums.
template <typename T>
bool launch_divided(const CumSumProblem& p, bool is_vectorized, const Context& context) {
  using A = accumulator_t<T>;
  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  const int64_t superchunks = ceil_div(chunks, order::kChunk);
  const auto take_totals = [&](Workspace& workspace) {
    return Totals<A>{.of_chunks = workspace.take<A>(p.rows * chunks).data(),
                     .of_superchunks = workspace.take<A>(p.rows * superchunks).data()};
  };
  void* memory = context.allocate(workspace_bytes(take_totals));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const Totals<A> totals = take_totals(workspace);
  const int64_t blocks = p.rows * ceil_div(chunks, kWarps);
  for_grids(blocks, [&](int64_t first, unsigned count) {
    launch_pdl(sum_chunks_kernel<T>, count, kWarps * kWarp, 0, context, p, totals, is_vectorized,
               first);
  });
  if (superchunks > 1) {
    for_grids(p.rows * superchunks, [&](int64_t first, unsigned count) {
      launch_pdl(sum_superchunks_kernel<A>, count, kWarp, 0, context, totals, chunks, first);
    });
  }
  for_grids(blocks, [&](int64_t first, unsigned count) {
    launch_pdl(cumsum_chunks_kernel<T>, count, kWarps * kWarp, 0, context, p, totals, is_vectorized,
               first);
  });
  return true;
}

template <typename T>
void launch(const CumSumProblem& p, const Context& context) {
  const bool is_vectorized =
      is_aligned<T>(p.x.data, p.x.pitch, p.columns) && is_aligned<T>(p.out, p.columns, p.columns);
  const auto launch = [&](auto* kernel, int64_t blocks, int warps) {
    for_grids(blocks, [&](int64_t first, unsigned count) {
      launch_pdl(kernel, count, warps * kWarp, 0, context, p, is_vectorized, first);
    });
  };
  if (p.columns <= kSegment) {
    const int64_t rows_of_warp = kSegments * (kWarp / lanes_of_row(p.columns));
    launch(cumsum_segment_kernel<T>, ceil_div(p.rows, rows_of_warp * kWarps), kWarps);
    return;
  }
  if (p.columns <= order::kChunk) {
    launch(cumsum_warp_kernel<T>, ceil_div(p.rows, kWarps), kWarps);
    return;
  }
  constexpr int kLong = kWarpsOfLongRow<T>;
  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  const bool is_divided = chunks > kLong && p.rows * kWarps <= context.sms;
  if (is_divided && launch_divided<T>(p, is_vectorized, context)) return;
  const bool fills_gpu = p.rows >= 2 * context.sms;  // with blocks of kWarps warps
  int warps = 2;
  while (warps < chunks && warps < (fills_gpu ? kWarps : kLong)) warps *= 2;
  launch(warps > kWarps ? cumsum_block_kernel<T, kLong> : cumsum_block_kernel<T, kWarps>, p.rows,
         warps);
}

}  // namespace
}  // namespace tiled::cuda::cumsum

namespace tiled::cuda {

void launch_cumsum(const CumSumProblem& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { cumsum::launch<T>(p, context); });
}

}  // namespace tiled::cuda
