#pragma once
// Rows in registers, and the warps that share them.
//
// A lane has elements 4 l to 4 l + 3 of each kParts of a chunk: those of four of the parts that
// core/order_rows.h adds. A warp has one or several short rows; or the warps of a thread block, and
// from nine chunks on of a cluster, have a chunk each of one row. They exchange sums through shared
// memory, all to all, so that a sum takes one barrier.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "core/order_rows.h"
#include "core/rows.h"
#include "kernels/common/launch.h"
#include "ptx/max_nan.cuh"
#include "ptx/pack.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "ptx/cluster.cuh"
#endif

namespace tiled::cuda::rows {

namespace order = tiled::rows;

inline constexpr int kWarp = 32, kVector = order::kParts / kWarp;  // parts of a lane
inline constexpr int kStepsOfChunk = order::kChunk / order::kParts;
static_assert(kVector == 4);

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }

// --- Sums and largest elements of a warp ---------------------------------------------------------

// Adds the values of lanes `distance` apart, then half as far, down to 1.
template <typename A>
__device__ A add_lanes(A x, int distance) {
  UNROLL
  for (; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// Returns the sum of a chunk from the sums of a lane's four parts, in every lane of the kLanes that
// have the chunk. A lane goes on with two parts, and then with one, since lanes need not all add
// the same.
template <int kLanes = kWarp, typename A>
__device__ A sum_parts(const A (&parts)[kVector]) {
  constexpr int kHalf = kLanes / 2, kQuarter = kLanes / 4;
  const bool has_upper = (lane_index() & kHalf) != 0, has_odd = (lane_index() & kQuarter) != 0;
  A even = has_upper ? parts[2] : parts[0], odd = has_upper ? parts[3] : parts[1];
  even += __shfl_xor_sync(~0u, has_upper ? parts[0] : parts[2], kHalf);
  odd += __shfl_xor_sync(~0u, has_upper ? parts[1] : parts[3], kHalf);
  A sum = has_odd ? odd : even;
  sum += __shfl_xor_sync(~0u, has_odd ? even : odd, kQuarter);
  sum = add_lanes(sum, kQuarter / 2);
  sum += __shfl_xor_sync(~0u, sum, kHalf);
  return sum + __shfl_xor_sync(~0u, sum, kQuarter);
}

__device__ inline float max_of(float x, float y) { return ptx::max_nan(x, y); }
__device__ inline double max_of(double x, double y) { return order::max_or_nan(x, y); }

// Returns the largest element of kLanes lanes of a warp, in every lane.
template <int kLanes = kWarp, typename A>
__device__ A warp_max(A x) {
  UNROLL
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = max_of(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}

// --- A row in global memory ----------------------------------------------------------------------

// A lane's adjacent elements, loaded at once; by two instructions if they have 32 bytes. They stay
// words until all loads are under way: a 16-bit element is a part of a register.
template <typename T>
struct alignas(kVector * sizeof(T) < 16 ? kVector * sizeof(T) : 16) Vector {
  using A = accumulator_t<T>;

  uint32_t words[kVector * sizeof(T) / 4];

  __device__ void unpack(A (&to)[kVector]) const {
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      if constexpr (sizeof(T) == 2) {
        to[i] = widen(T{static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))});
      } else if constexpr (sizeof(T) == 4) {
        to[i] = float_of(words[i]);
      } else {
        const auto lo = static_cast<int>(words[2 * i]), hi = static_cast<int>(words[2 * i + 1]);
        to[i] = __hiloint2double(hi, lo);
      }
    }
  }

  // Rounds to T.
  __device__ void pack(const A (&from)[kVector]) {
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      if constexpr (sizeof(T) == 2) {
        constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;
        if (i % 2 == 0) words[i / 2] = ptx::pack_x2<kIsBFloat16>(from[i], from[i + 1]);
      } else if constexpr (sizeof(T) == 4) {
        words[i] = bits_of(from[i]);
      } else {
        words[2 * i] = static_cast<uint32_t>(__double2loint(from[i]));
        words[2 * i + 1] = static_cast<uint32_t>(__double2hiint(from[i]));
      }
    }
  }
};

// A row of `size` elements. is_vectorized: all vectors are aligned, and the row ends with one.
template <typename T>
class Row {
 public:
  using Element = T;
  using A = accumulator_t<T>;

  __device__ Row(const Rows& x, int64_t row, int64_t size, bool is_vectorized)
      : data_(static_cast<const T*>(x.data) + row * x.pitch),
        size_(size),
        is_vectorized_(is_vectorized) {}

  __device__ bool is_vectorized() const { return is_vectorized_; }
  __device__ const T* at(int64_t element) const { return data_ + element; }
  // The elements from one on, up to kChunk.
  __device__ int left(int64_t element) const {
    return static_cast<int>(min(size_ - element, int64_t{order::kChunk}));
  }

  // Stores four values, rounded, at an element of the result, up to the row's end.
  __device__ void store(int64_t element, const A (&values)[kVector]) const {
    T* to = const_cast<T*>(data_) + element;
    if (is_vectorized_) {
      Vector<T> vector;
      vector.pack(values);
      if (element < size_) *reinterpret_cast<Vector<T>*>(to) = vector;
    } else {
      UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (i < left(element)) to[i] = narrow<T>(values[i]);
      }
    }
  }

 private:
  const T* data_;
  int64_t size_;
  bool is_vectorized_;
};

// The first element of lane `lane` in a chunk, or in what is kParts * step after its beginning.
__device__ inline int64_t element_of(int lane, int64_t chunk, int step) {
  return chunk * order::kChunk + step * order::kParts + lane * kVector;
}

// Loads kSteps vectors, kParts apart from `first` on, of each of kRows rows, row(r); past a row's
// end `filler`, which T has.
template <int kRows, int kSteps, class RowAt, typename A>
__device__ void load_rows(const RowAt& row, int64_t first, A filler,
                          A (&to)[kRows][kSteps][kVector]) {
  using T = typename decltype(row(0))::Element;
  if (row(0).is_vectorized()) {
    Vector<T> vectors[kRows][kSteps];
    UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int left = row(r).left(first);
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        vectors[r][step].pack({filler, filler, filler, filler});
        if (step * order::kParts >= left) continue;
        const T* from = row(r).at(first + step * order::kParts);
        vectors[r][step] = *reinterpret_cast<const Vector<T>*>(from);
      }
    }
    UNROLL
    for (int r = 0; r < kRows; ++r) {
      UNROLL
      for (int step = 0; step < kSteps; ++step) vectors[r][step].unpack(to[r][step]);
    }
  } else {
    UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int left = row(r).left(first);
      UNROLL
      for (int step = 0; step < kSteps; ++step) {
        UNROLL
        for (int i = 0; i < kVector; ++i) {
          const int at = step * order::kParts + i;
          to[r][step][i] = at < left ? widen(*row(r).at(first + at)) : filler;
        }
      }
    }
  }
}

// Returns whether vectors of T are aligned in all rows, and no row ends within one.
template <typename T>
bool is_vectorized(const Rows& x, int64_t columns) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.data) % alignof(Vector<T>) == 0;
  return is_aligned && x.pitch % kVector == 0 && columns % kVector == 0;
}

// --- The warps of a row --------------------------------------------------------------------------

// How a launch divides rows.
struct Division {
  int64_t rows, columns;
  int64_t first_row;   // of the grid
  int blocks_of_row;   // a cluster, if there are several
  bool is_vectorized;  // of all operands
};

// Calls f(r, step, i) for each element of a lane that is in the steps of `count` elements.
template <int kRows, int kSteps, class F>
__device__ void for_elements(int count, const F& f) {
  UNROLL
  for (int step = 0; step < kSteps; ++step) {
    if (kSteps > 1 && step * order::kParts >= count) break;
    UNROLL
    for (int r = 0; r < kRows; ++r) {
      UNROLL
      for (int i = 0; i < kVector; ++i) f(r, step, i);
    }
  }
}

// A warp with rows of up to kSteps * kParts elements. kLanes lanes have kRows rows, next to those
// of the warp's other lanes; fewer than 32 lanes have the first parts, and the others' are +0.
template <int kRows_, int kSteps_, int kLanes_>
class ShortRows {
 public:
  static constexpr int kRows = kRows_, kSteps = kSteps_, kLanes = kLanes_, kThreads = 4 * kWarp;
  static constexpr int kRowsOfBlock = kThreads / kLanes * kRows;
  static constexpr bool kIsHeld = true;  // each chunk stays in registers
  template <typename A>
  struct Smem {};

  template <typename A>
  __device__ ShortRows(const Division& division, Smem<A>&)
      : first_row(division.first_row + int64_t{blockIdx.x} * kRowsOfBlock +
                  static_cast<int>(threadIdx.x) / kLanes * kRows),
        columns_(static_cast<int>(division.columns)) {}

  const int64_t first_row;  // of the lane's rows
  __device__ bool warp_has_rows(const Division& division) const {
    return first_row - lane_index() / kLanes * kRows < division.rows;
  }
  __device__ bool is_first_lane() const { return lane() == 0; }
  __device__ int64_t element(int64_t, int step = 0) const { return element_of(lane(), 0, step); }
  __device__ int count(int64_t) const { return columns_; }
  // Row first_row + r of x; an empty one if there is none.
  template <typename T>
  __device__ Row<T> row(const Division& division, const Rows& x, int r) const {
    const bool exists = kRows * kWarp / kLanes == 1 || first_row + r < division.rows;
    return {x, first_row + r, exists ? columns_ : 0, division.is_vectorized};
  }

  template <class F>
  __device__ void for_chunks(const F& f) const {
    f(int64_t{0});
  }

  // Replaces a lane's largest elements by those of rows.
  template <typename A>
  __device__ void max_of_rows(Smem<A>&, A (&x)[kRows]) const {
    UNROLL
    for (A& each : x) each = warp_max<kLanes>(each);
  }

  // Sums kSums sums of each row. add(chunk, parts) adds the elements of a chunk.
  template <int kFirstSlot, int kSums, typename A, class Add>
  __device__ void sum(Smem<A>&, const Add& add, A (&sums)[kRows][kSums]) const {
    A parts[kRows][kSums][kVector] = {};
    add(int64_t{0}, parts);
    UNROLL
    for (int r = 0; r < kRows; ++r) {
      UNROLL
      for (int k = 0; k < kSums; ++k) sums[r][k] = sum_parts<kLanes>(parts[r][k]);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  int columns_;
};

// The warps of division.blocks_of_row blocks with one row. kIsHeld: each warp has at most one
// chunk; otherwise warp w has chunks w, w + the number of warps, and so on.
template <bool kIsHeld_>
class OneRow {
 public:
  static constexpr int kMostWarps = 8, kMostBlocks = 8;  // of a block; of a cluster, as all GPUs of
                                                         // compute capability 9.0 can run
  static constexpr int kRows = 1, kSteps = kStepsOfChunk, kLanes = kWarp;
  static constexpr int kThreads = kMostWarps * kWarp;
  static constexpr int kRowsOfBlock = 1;
  static constexpr bool kIsHeld = kIsHeld_;
  static constexpr int kSlots = 2, kLevels = 3;  // levels: rows of up to 2^40 elements
  // A slot has a number of each warp. Level 0 has the sums of chunks, level 1 those of whole chunks
  // of level 0, and so on.
  template <typename A>
  struct Smem {
    A slots[kSlots][kMostWarps * kMostBlocks];
    A levels[kIsHeld ? 1 : kLevels][kIsHeld ? 1 : order::kChunk];
    A total;
  };

  template <typename A>
  __device__ OneRow(const Division& division, Smem<A>&)
      : first_row(division.first_row + blockIdx.x / division.blocks_of_row),
        columns_(division.columns),
        blocks_(division.blocks_of_row),
        warps_(blocks_ * static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(blockIdx.x) % blocks_ * (static_cast<int>(blockDim.x) / kWarp) +
              warp_index()) {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) ptx::cluster_arrive();
#endif
  }

  const int64_t first_row;
  __device__ bool warp_has_rows(const Division&) const { return true; }
  __device__ bool is_first_lane() const { return warp_ == 0 && lane_index() == 0; }
  __device__ int64_t element(int64_t chunk, int step = 0) const {
    return element_of(lane_index(), chunk, step);
  }
  __device__ int count(int64_t chunk) const {
    return static_cast<int>(min(columns_ - chunk * order::kChunk, int64_t{order::kChunk}));
  }

  template <typename T>
  __device__ Row<T> row(const Division& division, const Rows& x, int) const {
    return {x, first_row, columns_, division.is_vectorized};
  }

  template <class F>
  __device__ void for_chunks(const F& f) const {
    for (int64_t chunk = warp_; chunk * order::kChunk < columns_; chunk += warps_) {
      f(chunk);
      if (kIsHeld) break;
    }
  }

  // Uses slot 0.
  template <typename A>
  __device__ void max_of_rows(Smem<A>& smem, A (&x)[kRows]) {
    meet();
    put(smem.slots[0], warp_, warp_max(x[0]));
    sync();
    const int lane = lane_index();
    const A low = lane < warps_ ? smem.slots[0][lane] : -INFINITY;
    const A high = lane + kWarp < warps_ ? smem.slots[0][lane + kWarp] : -INFINITY;
    x[0] = warp_max(max_of(low, high));
  }

  // Uses kSums slots, which no other exchange of this kernel may use.
  template <int kFirstSlot, int kSums, typename A, class Add>
  __device__ void sum(Smem<A>& smem, const Add& add, A (&sums)[kRows][kSums]) {
    static_assert(kFirstSlot + kSums <= kSlots);
    meet();
    if constexpr (kIsHeld) {
      A parts[kRows][kSums][kVector] = {};
      for_chunks([&](int64_t chunk) { add(chunk, parts); });
      UNROLL
      for (int k = 0; k < kSums; ++k) {
        put(smem.slots[kFirstSlot + k], warp_, sum_parts(parts[0][k]));
      }
      sync();
      UNROLL
      for (int k = 0; k < kSums; ++k) sums[0][k] = sum_slot(smem.slots[kFirstSlot + k]);
    } else {
      UNROLL
      for (int k = 0; k < kSums; ++k) {
        sums[0][k] = sum_levels(smem, [&](int64_t chunk) {
          A parts[kRows][kSums][kVector] = {};
          add(chunk, parts);
          return sum_parts(parts[0][k]);
        });
      }
    }
  }

 private:
  // Waits until all blocks of the row have started, and may be written to.
  __device__ void meet() {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1 && !have_met_) ptx::cluster_wait();
#endif
    have_met_ = true;
  }

  // A barrier for all warps of the row.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) return ptx::cluster_sync();
#endif
    __syncthreads();
  }

  // Stores a warp's x at numbers[index] in all blocks of the row.
  template <typename A>
  __device__ void put(A* numbers, int index, A x) const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      if (lane_index() < blocks_) *ptx::map_shared_rank(numbers + index, lane_index()) = x;
      return;
    }
#endif
    if (lane_index() == 0) numbers[index] = x;
  }

  // The sum of the chunks' sums, of which there are at most two for a lane.
  template <typename A>
  __device__ A sum_slot(const A* slot) const {
    const int lane = lane_index();
    A sum = lane < warps_ ? slot[lane] : A(0);
    sum = A(0) + sum;  // a part begins with +0
    sum += lane + kWarp < warps_ ? slot[lane + kWarp] : A(0);
    return add_lanes(sum, kWarp / 2);
  }

  // The sum of a row of any length; of_chunk(chunk) is that of a chunk, in every lane of its warp.
  template <typename A, class F>
  __device__ A sum_levels(Smem<A>& smem, const F& of_chunk) {
    const int64_t chunks = ceil_div(columns_, order::kChunk);
    for (int64_t first = 0; first < chunks; first += order::kChunk) {
      const int count = static_cast<int>(min(chunks - first, int64_t{order::kChunk}));
      sync();  // the last sums have been read
      for (int i = warp_; i < count; i += warps_) put(smem.levels[0], i, of_chunk(first + i));
      sync();
      if (warp_index() == 0) join(smem, first / order::kChunk, count, first + count == chunks);
    }
    __syncthreads();
    return smem.total;
  }

  // Sums what is in level 0, and a level that is full, or the last one, to the next level.
  template <typename A>
  __device__ static void join(Smem<A>& smem, int64_t index, int count, bool is_last) {
    for (int level = 0; level < kLevels; ++level) {
      const A sum = count == 1 ? smem.levels[level][0] : sum_numbers(smem.levels[level], count);
      const int at = static_cast<int>(index % order::kChunk);
      index /= order::kChunk;
      if (is_last && at == 0 && index == 0) {
        if (lane_index() == 0) smem.total = sum;
        return;
      }
      if (lane_index() == 0 && level + 1 < kLevels) smem.levels[level + 1][at] = sum;
      __syncwarp();
      count = at + 1;
      if (!is_last && count < order::kChunk) return;
    }
  }

  // The sum of up to kChunk numbers in shared memory, in every lane.
  template <typename A>
  __device__ static A sum_numbers(const A* numbers, int count) {
    A parts[kVector] = {};
    for (int first = lane_index() * kVector; first < count; first += order::kParts) {
      UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (first + i < count) parts[i] += numbers[first + i];
      }
    }
    return sum_parts(parts);
  }

  const int64_t columns_;
  const int blocks_, warps_, warp_;
  bool have_met_ = false;
};

// --- Launches ------------------------------------------------------------------------------------

// Calls launch.operator()<Scope>(blocks, cluster, threads, division) for grids of all rows, with
// the class above that fits. is_read_once: a chunk need not stay in registers.
template <class F>
void for_rows(int64_t rows, int64_t columns, bool is_vectorized, bool is_read_once,
              const Context& context, const F& launch) {
  const auto with = [&]<class Scope>(std::type_identity<Scope>, int warps, int blocks_of_row) {
    constexpr int64_t kMostRows = int64_t{1} << 27;  // of a grid
    for (int64_t first = 0; first < rows; first += kMostRows) {
      const int64_t count = std::min(rows - first, kMostRows);
      const auto blocks = static_cast<unsigned>(ceil_div(count, Scope::kRowsOfBlock));
      launch.template operator()<Scope>(
          blocks * static_cast<unsigned>(blocks_of_row), static_cast<unsigned>(blocks_of_row),
          warps * kWarp, Division{first + count, columns, first, blocks_of_row, is_vectorized});
    }
  };
  constexpr int kWarps = OneRow<true>::kMostWarps, kBlocks = OneRow<true>::kMostBlocks;
  constexpr int kWarpsOfBlock = 4, kRows = 4;  // of short rows
  const int64_t chunks = ceil_div(columns, order::kChunk);
  const bool has_many_rows = rows >= int64_t{context.sms} * 16 * kWarpsOfBlock;
  if (columns <= order::kParts / 2 && has_many_rows) {
    with(std::type_identity<ShortRows<kRows, 1, kWarp / 2>>(), kWarpsOfBlock, 1);
  } else if (columns <= order::kParts && has_many_rows) {
    with(std::type_identity<ShortRows<kRows, 1, kWarp>>(), kWarpsOfBlock, 1);
  } else if (chunks <= 1) {
    with(std::type_identity<ShortRows<1, kStepsOfChunk, kWarp>>(), kWarpsOfBlock, 1);
  } else if (chunks <= kWarps) {
    with(std::type_identity<OneRow<true>>(), static_cast<int>(chunks), 1);
  } else if (!context.on_hopper() || (is_read_once && rows >= context.sms)) {
    with(std::type_identity<OneRow<false>>(), kWarps, 1);
  } else if (chunks <= kWarps * kBlocks) {
    const int blocks = static_cast<int>(ceil_div(chunks, kWarps));
    with(std::type_identity<OneRow<true>>(), static_cast<int>(ceil_div(chunks, blocks)), blocks);
  } else {
    with(std::type_identity<OneRow<false>>(), kWarps, kBlocks);
  }
}

}  // namespace tiled::cuda::rows
