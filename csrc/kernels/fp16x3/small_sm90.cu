// fp16x3_small: one launch that loads, splits and multiplies.
//
// Idea: a small product takes less time than the launches around it, and not much more than its
// instructions take to come from memory. So a block does everything for its tile, in few
// instructions, for any K up to one chunk. Its rows of A and columns of B come to shared memory by
// cp.async as they are; as they come, each warp finds their largest magnitudes; then it splits them
// in place, and the block multiplies the parts by mma.sync.
//
// Limit: every block of a row of tiles splits the same rows of A, and every block of a column of
// tiles the same columns of B. The latency of the low sum: two dependent products every 16 of K.
//
// Next: the blocks of a cluster share what one of them has split.
//
//   a warp      cp.async -> its own range -> smem.ranges
//   the block   __syncthreads: all ranges are there     a warp splits what it loaded
//               __syncthreads: all parts are there      a warp multiplies warp tiles -> smem.sums
//               __syncthreads: all sums are there       a thread descales and stores elements

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "core/complex.h"
#include "core/order_chunked.h"
#include "core/order_fp16x3.h"
#include "core/problem.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/recompute_element.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared_address.cuh"

namespace tiled::cuda {
namespace fp16x3_small {

// Operand rows are A's rows and B's columns. A panel is 16 operand rows by all of K; a fragment is
// 16 of K of a panel, 1 KB. A warp loads, measures and splits fragments of one panel only. Lane l
// always has row l % 16 and eight elements along K: the first eight if l < 16, or else the second
// eight.

// A warp tile is 16 rows by kWarpCols columns.
template <int kM_, int kN_, int kWarpCols_, int kWarps_, bool kComplex_>
struct Tile {
  static constexpr bool kComplex = kComplex_;  // B is stored as in_place_b() describes it
  static constexpr int kM = kM_, kN = kN_, kOperandRows = kM + kN, kWarpCols = kWarpCols_;
  static constexpr int kWarps = kWarps_, kThreads = kWarps * 32;
  static constexpr int kPanels = kOperandRows / 16, kPanelsOfA = kM / 16;
  static constexpr int kWarpsPerPanel = kWarps / kPanels;
  static constexpr int kWarpTiles = kM / 16 * (kN / kWarpCols);
  static constexpr int kBlocksPerSm = 24 / kWarps;  // for which an SM has registers
  static constexpr int kInFlight = 8;               // fragments of a warp that are in flight
  static_assert(kWarps % kPanels == 0);
};

struct Fragment {
  static constexpr int kBytes = 1024, kLoOffset = kBytes / 2;
  alignas(128) uint8_t bytes[kBytes];
};

template <class Tile>
struct Smem {
  Range ranges[Tile::kWarpsPerPanel][Tile::kOperandRows];  // of what one warp loaded of a row
  float inverse_scale[Tile::kOperandRows];
  float2 sums[Tile::kM][Tile::kN];  // total and low
  Fragment fragments[];             // (K / 16, kPanels)

  static size_t bytes(int64_t k) {
    return sizeof(Smem) + static_cast<size_t>(ceil_div(k, 16) * Tile::kPanels) * sizeof(Fragment);
  }
};

struct OperandParams {
  Matrix matrix;  // row_stride: between operand rows; col_stride: along K
  int64_t count;  // of operand rows
  bool k_major;
  bool vectorized;  // allows 128-bit copies
  SignsOfB signs;   // of a complex operand
};

// A fragment that is not yet split has 16 segments of 16 elements that are adjacent in memory.
// Segment i is row i of a K-major operand, or k = i / 2 + i % 2 * 8 of an MN-major one. Elements
// that are read from one row stay within 128 bytes, since copies would be slower otherwise. They
// are permuted in units of four, so that no two lanes share a bank when each reads eight of K.
//
// Returns the offset of an element of a segment, in floats. For segment + 2i, if that addition
// carries nothing, it is the exclusive or of this offset and i * two_segments().
__device__ inline int segment_offset(bool k_major, int segment, int element) {
  return (segment * 16 + element) ^ (k_major ? segment / 2 * 4 : 0);
}
__device__ inline int two_segments(bool k_major) { return k_major ? 36 : 32; }

// Goes through a warp's fragments and reads the lane's eight elements of each.
template <class Tile>
class FragmentReader {
 public:
  __device__ FragmentReader(const Fragment* first, const OperandParams& operand)
      : k_major_(operand.k_major) {
    const int row = threadIdx.x % 16, k_half = threadIdx.x / 16 % 2;
    const float* data = reinterpret_cast<const float*>(first->bytes);
    from_[0] = data + (k_major_ ? segment_offset(true, row, k_half * 8)
                                : segment_offset(false, k_half, row));
    from_[1] = data + segment_offset(true, row, k_half * 8 + 4);
  }
  __device__ void next(float (&x)[8]) {
    if (k_major_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 x4 = *reinterpret_cast<const float4*>(from_[i]);
        x[i * 4] = x4.x, x[i * 4 + 1] = x4.y, x[i * 4 + 2] = x4.z, x[i * 4 + 3] = x4.w;
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) x[i] = from_[0][i * two_segments(false)];
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      from_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 4;
    }
  }

 private:
  bool k_major_;
  const float* from_[2];
};

// Copies a warp's fragments of a panel, one after another, with zeros beyond the operand's end.
template <class Tile>
class FragmentCopy {
 public:
  // Begins with the panel's rows from `first_row` on, and at `first_k`.
  __device__ FragmentCopy(const OperandParams& operand, const Batch& batch, int64_t matrix,
                          int64_t first_row, int first_k, Fragment* fragment)
      : k_major_(operand.k_major),
        vectorized_(operand.vectorized),
        rows_(static_cast<int>(min(operand.count - first_row, int64_t{16}))) {
    const int lane = threadIdx.x % 32;
    const int64_t row_stride = operand.matrix.row_stride, k_stride = operand.matrix.col_stride;
    const int64_t inner_stride = k_major_ ? k_stride : row_stride;
    const int64_t outer_stride = k_major_ ? row_stride : k_stride;
    // This lane copies from segments `segment + 2i`: four elements each of i = 0 and i = 4, or one
    // element each of eight i.
    const int segment = lane / (vectorized_ ? 4 : 16);
    inner_ = vectorized_ ? lane % 4 * 4 : lane % 16;
    outer_ = k_major_ ? segment : segment / 2 + segment % 2 * 8;
    offset_ = segment_offset(k_major_, segment, inner_);
    from_step_ = k_major_ ? 2 * outer_stride : outer_stride;
    next_step_ = kStep * k_stride;
    from_[0] = static_cast<const float*>(operand.matrix.data) +
               batch_offset(batch, operand.matrix, matrix) + first_row * row_stride +
               first_k * k_stride + inner_ * inner_stride + outer_ * outer_stride;
    from_[1] = from_[0] + 4 * from_step_;
    auto* data = reinterpret_cast<float*>(fragment->bytes);
    to_[0] = data + offset_, to_[1] = data + (offset_ ^ 4 * two_segments(k_major_));
  }

  // Copies a fragment that has `k_left` of K, or 16.
  __device__ void copy(int k_left) const {
    const int outer_step = k_major_ ? 2 : 1;
    if (vectorized_ && rows_ == 16 && k_left >= 16) {
      UNROLL
      for (int i = 0; i < 2; ++i) ptx::cp_async_16_zfill(to_[i], from_[i], 16);
      return;
    }
    const int inner_left = (k_major_ ? k_left : rows_) - inner_;
    const int outer_left = inner_left > 0 ? (k_major_ ? rows_ : k_left) - outer_ : 0;
    if (vectorized_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::cp_async_x4_zfill(ptx::shared_address(to_[i]), from_[i],
                               i * 4 * outer_step < outer_left ? min(inner_left, 4) * 4 : 0);
      }
    } else {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        ptx::cp_async_4_zfill(to_[0] - offset_ + (offset_ ^ i * two_segments(k_major_)),
                              from_[0] + i * from_step_, i * outer_step < outer_left ? 4 : 0);
      }
    }
  }
  __device__ void next() {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      to_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 4;
      from_[i] += next_step_;
    }
  }

 private:
  static constexpr int kStep = Tile::kWarpsPerPanel * 16;
  bool k_major_, vectorized_;
  int rows_, inner_, outer_, offset_;
  int64_t from_step_, next_step_;
  const float* from_[2];
  float* to_[2];
};

// A fragment of a complex B that is not yet split has the 8 x 8 numbers that its 16 rows and 16 of
// K stand for (core/complex.h), in 8 segments that are adjacent in memory: columns of a K-major B,
// or else rows. They are permuted by pairs, so that lanes that read two at once share no bank.
// Returns the offset of a number of a segment, in numbers.
__device__ inline int number_offset(bool k_major, int segment, int number) {
  return (segment * 8 + number) ^ (k_major ? segment / 2 % 2 * 2 : 0);
}

// FragmentCopy of a complex B.
template <class Tile>
class ComplexCopy {
 public:
  __device__ ComplexCopy(const OperandParams& operand, const Batch& batch, int64_t matrix,
                         int64_t first_row, int first_k, Fragment* fragment)
      : k_major_(operand.k_major),
        rows_(static_cast<int>(min(operand.count - first_row, int64_t{16}))) {
    const int lane = threadIdx.x % 32;
    const int64_t row_stride = operand.matrix.row_stride, k_stride = operand.matrix.col_stride;
    const int64_t outer_stride = k_major_ ? row_stride : k_stride;
    inner_ = lane % 8, outer_ = lane / 8;  // of the lane's two segments, four apart
    from_step_ = 4 * outer_stride;
    next_step_ = kStep / 2 * k_stride;
    const float* first = static_cast<const float*>(operand.matrix.data) +
                         batch_offset(batch, operand.matrix, matrix) + first_row * row_stride +
                         first_k * k_stride;
    from_ = reinterpret_cast<const float2*>(first) + inner_ * (k_major_ ? k_stride : row_stride) +
            outer_ * outer_stride;
    to_ = reinterpret_cast<float2*>(fragment->bytes) + number_offset(k_major_, outer_, inner_);
  }

  __device__ void copy(int k_left) const {
    const int inner_left = (k_major_ ? k_left : rows_) / 2 - inner_;
    const int outer_left = inner_left > 0 ? (k_major_ ? rows_ : k_left) / 2 - outer_ : 0;
    UNROLL
    for (int i = 0; i < 2; ++i) {
      ptx::cp_async_8_zfill(ptx::shared_address(to_ + i * 32), from_ + i * from_step_,
                            i * 4 < outer_left ? 8 : 0);
    }
  }
  __device__ void next() {
    to_ += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 8;
    from_ += next_step_;
  }

 private:
  static constexpr int kStep = Tile::kWarpsPerPanel * 16;
  bool k_major_;
  int rows_, inner_, outer_;
  int64_t from_step_, next_step_;
  const float2* from_;
  float2* to_;
};

// FragmentReader of a complex B, which reads the elements that the lane's row has of B'.
template <class Tile>
class ComplexReader {
 public:
  __device__ ComplexReader(const Fragment* first, const OperandParams& operand)
      : k_major_(operand.k_major), column_(operand.signs, threadIdx.x % 2) {
    const int col = threadIdx.x % 16 / 2, first_k = threadIdx.x / 16 % 2 * 4;
    const auto* data = reinterpret_cast<const float2*>(first->bytes);
    from_[0] =
        data + (k_major_ ? number_offset(true, col, first_k) : number_offset(false, first_k, col));
    from_[1] = data + number_offset(true, col, first_k + 2);
  }
  __device__ void next(float (&x)[8]) {
    float2 z[4];
    if (k_major_) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 pair = *reinterpret_cast<const float4*>(from_[i]);
        z[i * 2] = {pair.x, pair.y}, z[i * 2 + 1] = {pair.z, pair.w};
      }
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i) z[i] = from_[0][number_offset(false, i, 0)];
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 numbers = column_.numbers(z[i]);
      x[i * 2] = numbers.x, x[i * 2 + 1] = numbers.y;
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      from_[i] += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes / 8;
    }
  }

 private:
  bool k_major_;
  ComplexColumn column_;
  const float2* from_[2];
};

template <class Tile, bool kComplex>
using Copy = std::conditional_t<kComplex, ComplexCopy<Tile>, FragmentCopy<Tile>>;
template <class Tile, bool kComplex>
using Reader = std::conditional_t<kComplex, ComplexReader<Tile>, FragmentReader<Tile>>;

// Loads this warp's fragments of a panel, from `fragment` on, and returns the range of what its
// lane's row has in them.
template <class Tile, bool kComplex>
__device__ Range load_panel(const OperandParams& operand, const Batch& batch, int64_t matrix,
                            int64_t first_row, int first_k, int k, Fragment* fragment) {
  Copy<Tile, kComplex> copy(operand, batch, matrix, first_row, first_k, fragment);
  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  const int count = static_cast<int>(static_cast<unsigned>(k - first_k + kStep - 1) / kStep);
  const int in_flight = min(count, Tile::kInFlight);
  Reader<Tile, kComplex> reader(fragment, operand);
  Range range;
  NO_UNROLL
  for (int i = 0; i < count + in_flight; ++i) {
    if (i < count) copy.copy(k - first_k - i * kStep);
    __pipeline_commit();
    copy.next();
    if (i < in_flight) continue;
    if (count > Tile::kInFlight) {
      __pipeline_wait_prior(Tile::kInFlight);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncwarp();
    float x[8];
    reader.next(x);
    range.add_all(x);
  }
  range.add_lane(16);
  return range;
}

// Splits this warp's fragments in place. The hi parts of lane l become the l-th 16 bytes, as
// ldmatrix reads them, and its lo parts follow kLoOffset bytes later. Returns how many small
// numbers the lane has, if its row is wide.
template <class Tile, bool kComplex>
__device__ uint32_t split_panel(const OperandParams& operand, float scale, bool wide, int first_k,
                                int k, Fragment* fragment) {
  constexpr int kStep = Tile::kWarpsPerPanel * 16;
  Reader<Tile, kComplex> reader(fragment, operand);
  uint8_t* to = fragment->bytes + threadIdx.x % 32 * 16;
  uint32_t small_numbers = 0;
  NO_UNROLL
  for (int k_left = k - first_k; k_left > 0; k_left -= kStep) {
    float x[8];
    reader.next(x);
    if (wide) small_numbers += count_small_numbers(x, scale);
    __syncwarp();  // every lane has read
    uint4 hi, lo;
    ptx::split_x8(x, scale, hi, lo);
    *reinterpret_cast<uint4*>(to) = hi;
    *reinterpret_cast<uint4*>(to + Fragment::kLoOffset) = lo;
    to += Tile::kWarpsPerPanel * Tile::kPanels * Fragment::kBytes;
  }
  return small_numbers;
}

// --- Multiplying ---------------------------------------------------------------------------------

struct Params {
  OperandParams operands[2];       // A, B
  int64_t batch, row, col;         // of this launch's first tile
  bool identity_epilogue;          // C is the sums unchanged
  unsigned long long* recomputed;  // counts recomputed elements, or null
  Problem p;
};

// Multiplies a warp tile. Operands of the next 16 of K are read before the products of these.
template <class Tile>
__device__ void multiply(Smem<Tile>& smem, int k, int warp_tile) {
  constexpr int kColTiles = Tile::kWarpCols / 8;
  const int lane = threadIdx.x % 32;
  const int row = warp_tile % Tile::kPanelsOfA * 16;
  const int col = warp_tile / Tile::kPanelsOfA * Tile::kWarpCols;
  const uint8_t* a = smem.fragments[row / 16].bytes + lane * 16;
  const uint8_t* b = smem.fragments[Tile::kPanelsOfA + col / 16].bytes +
                     lane / 16 * Fragment::kLoOffset +
                     (lane / 8 % 2 * 16 + col % 16 + lane % 8) * 16;
  struct Operands {
    uint32_t a_hi[4], a_lo[4];
    uint32_t b[kColTiles][4];  // of eight columns, two registers of hi, then two of lo
  };
  Operands next;
  auto read = [&] {
    ptx::ldmatrix_x4(next.a_hi, a);
    ptx::ldmatrix_x4(next.a_lo, a + Fragment::kLoOffset);
    UNROLL
    for (int t = 0; t < kColTiles; ++t) ptx::ldmatrix_x4(next.b[t], b + t * 128);
  };
  const int promotion = fp16x3::promotion(k);
  float total[kColTiles][4] = {}, low[kColTiles][4] = {}, part[kColTiles][4] = {};
  read();
  NO_UNROLL
  for (int end = 16; end - 16 < k; end += 16) {
    const Operands own = next;
    // After the last step the same operands are read once more, and not used.
    const int step = end < k ? Tile::kPanels * Fragment::kBytes : 0;
    a += step, b += step;
    read();
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(low[t], own.a_lo, {own.b[t][0], own.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(part[t], own.a_hi, {own.b[t][0], own.b[t][1]});
    }
    UNROLL
    for (int t = 0; t < kColTiles; ++t) {
      ptx::mma_m16n8k16(low[t], own.a_hi, {own.b[t][2], own.b[t][3]});
    }
    if (end % promotion == 0 || end >= k) {
      UNROLL
      for (int t = 0; t < kColTiles; ++t) {
        UNROLL
        for (int i = 0; i < 4; ++i) total[t][i] += part[t][i], part[t][i] = 0;
      }
    }
  }
  UNROLL
  for (int t = 0; t < kColTiles; ++t) {
    UNROLL
    for (int i = 0; i < 4; i += 2) {
      float2* to = &smem.sums[row + lane / 4 + i * 4][col + t * 8 + lane % 4 * 2];
      *reinterpret_cast<float4*>(to) = {total[t][i], low[t][i], total[t][i + 1], low[t][i + 1]};
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    fp16x3_small_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  Smem<Tile>& smem = *reinterpret_cast<Smem<Tile>*>(smem_bytes);
  const Problem& p = params.p;
  const TileIndex tile{.batch = params.batch + blockIdx.z,
                       .row = params.row + static_cast<int64_t>(blockIdx.y) * Tile::kM,
                       .col = params.col + static_cast<int64_t>(blockIdx.x) * Tile::kN};
  const int k = static_cast<int>(p.k);
  {
    const int warp = threadIdx.x / 32, panel = warp % Tile::kPanels, rank = warp / Tile::kPanels;
    const bool is_b = panel >= Tile::kPanelsOfA, is_complex_b = Tile::kComplex && is_b;
    const OperandParams& operand = params.operands[is_b];
    const int row = panel * 16 + threadIdx.x % 16, first_k = rank * 16;
    const int64_t first_row =
        is_b ? tile.col + (panel - Tile::kPanelsOfA) * 16 : tile.row + panel * 16;
    Fragment* fragment = &smem.fragments[warp];
    const auto load = [&]<bool kComplex>() {
      return load_panel<Tile, kComplex>(operand, p.batch, tile.batch, first_row, first_k, k,
                                        fragment);
    };
    Range range = is_complex_b ? load.template operator()<Tile::kComplex>()
                               : load.template operator()<false>();
    smem.ranges[rank][row] = range;  // both lanes of a row write the same
    if (rank == 0) smem.inverse_scale[row] = 0;
    __syncthreads();
    UNROLL
    for (int i = 0; i < Tile::kWarpsPerPanel; ++i) range.add(smem.ranges[i][row]);
    const float scale = fp16x3::scale(range.largest);
    if (rank == 0) {
      store_inverse_scale(&smem.inverse_scale[row], range.largest, range.is_coarse(scale));
    }
    const auto split = [&]<bool kComplex>() {
      return split_panel<Tile, kComplex>(operand, scale, range.is_wide(scale), first_k, k,
                                         fragment);
    };
    const uint32_t small_numbers = is_complex_b ? split.template operator()<Tile::kComplex>()
                                                : split.template operator()<false>();
    add_small_numbers(&smem.inverse_scale[row], small_numbers);
  }
  __syncthreads();
  NO_UNROLL
  for (int i = threadIdx.x / 32; i < Tile::kWarpTiles; i += Tile::kWarps) multiply(smem, k, i);
  __syncthreads();

  const int col = threadIdx.x % Tile::kN;
  const int64_t c_col = tile.col + col;
  if (c_col >= p.n) return;
  const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
  float* c = static_cast<float*>(p.c.data) + c_offset + c_col * p.c.col_stride;
  const float col_scale = smem.inverse_scale[Tile::kM + col];
  const int promotion = fp16x3::promotion(k);
  static_assert(Tile::kThreads % Tile::kN == 0);
  NO_UNROLL
  for (int first = threadIdx.x / Tile::kN; first < Tile::kM / 2;
       first += Tile::kThreads / Tile::kN) {
    float sums[2];  // of rows first and first + kM / 2
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int row = first + j * (Tile::kM / 2);
      const float2 sum = smem.sums[row][col];
      sums[j] = fp16x3::chunk_sum(sum.x, sum.y, smem.inverse_scale[row], col_scale, promotion);
    }
    UNROLL
    for (int j = 0; j < 2; ++j) {
      const int64_t c_row = tile.row + first + j * (Tile::kM / 2);
      if (c_row >= p.m) continue;
      float sum = sums[j];
      if (isnan(sum)) {
        sum = recompute_element<Tile::kComplex>(p, params.operands[1].signs, tile.batch, c_row,
                                                c_col, params.recomputed);
      }
      if (params.identity_epilogue) {
        c[c_row * p.c.row_stride] = sum;
      } else {
        store_noinline(p, c_offset, c_row, c_col, sum);
      }
    }
  }
}

namespace {

template <class Tile>
void launch(Params& params, const Context& context) {
  const Problem& p = params.p;
  const auto kernel = fp16x3_small_kernel<Tile>;
  static_assert(sizeof(Smem<Tile>) <= Tile::kM * Tile::kN * 8 + 4096, "as fp16x3_small_smem()");
  const size_t bytes = Smem<Tile>::bytes(p.k);
  allow_shared_memory(kernel, kMaxSharedMemory);
  for_tile_grids(p, Tile::kM, Tile::kN, [&](int64_t batch, int64_t row, int64_t col, dim3 grid) {
    params.batch = batch, params.row = row, params.col = col;
    kernel<<<grid, Tile::kThreads, bytes, static_cast<cudaStream_t>(context.stream)>>>(params);
    check(cudaGetLastError());
  });
}

OperandParams operand_params(const Batch& batch, const Matrix& matrix, int64_t count,
                             const SignsOfB& signs) {
  const bool k_major = matrix.col_stride < matrix.row_stride;
  const auto [inner, outer] = std::minmax(matrix.row_stride, matrix.col_stride);
  return {matrix, count, k_major, is_vector_aligned<float4>(batch, matrix, inner, outer), signs};
}

template <bool kComplex>
bool run(const Problem& p, const Plan& plan, const SignsOfB& signs_of_b, const Context& context) {
  Params params{};
  params.operands[0] = operand_params(p.batch, p.a, p.m, {});
  params.operands[1] = operand_params(p.batch, transposed(p.b), p.n, signs_of_b);
  params.identity_epilogue = p.epilogue.is_identity();
  params.p = p;
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    params.recomputed = recomputed;
    return with_tile<std::size(h200::kFp16x3SmallTiles)>(plan.tile, [&]<int kIndex>() {
      constexpr h200::Fp16x3SmallTile kTile = h200::kFp16x3SmallTiles[kIndex];
      launch<Tile<kTile.m, kTile.n, kTile.warp_cols, kTile.warps, kComplex>>(params, context);
      return true;
    });
  });
}

}  // namespace
}  // namespace fp16x3_small

bool launch_fp16x3_small(const Problem& p, const Plan& plan, const Context& context) {
  return fp16x3_small::run<false>(p, plan, {}, context);
}

bool launch_fp16x3_small_complex(const Problem& p, const Plan& plan, const ComplexB& b,
                                 const Context& context) {
  return fp16x3_small::run<true>(p, plan, b.signs, context);
}

}  // namespace tiled::cuda
