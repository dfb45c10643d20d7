// Splits float32 operands into hi and lo fp16 parts, reading each element once.
//
// A block takes kRows rows of one chunk. It keeps them in registers while it finds the largest
// magnitude of each row; then it scales, splits and writes them as core/presplit.h lays them out. A
// thread takes eight elements along K at a time, which are 16 bytes of each plane. Adjacent threads
// take adjacent rows, so MN-major operands are read by whole 32-byte sectors; of K-major ones the
// four groups of eight threads of a warp read a cache line of each of eight rows.

#include <type_traits>

#include "core/order_fp16x3.h"
#include "kernels/common/launch.h"
#include "kernels/common/load_x8.cuh"
#include "kernels/fp16x3/complex_column.cuh"
#include "kernels/fp16x3/range.cuh"
#include "kernels/fp16x3/split.h"
#include "ptx/pack.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kRows = LoFlags::kRows;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kThreadsPerRow = kThreads / kRows;
constexpr int kVectors = kChunk / 8 / kThreadsPerRow;  // of eight elements, a thread
static_assert(kThreadsPerRow % (Presplit::kK / 8) == 0, "a thread's vectors are whole steps apart");

struct OperandParams {
  OperandToSplit operand;
  bool vectorized = false;  // 128-bit loads along K
  bool is_cut = false;      // into the groups of a grouped product
  unsigned row_blocks = 0, chunks = 0, blocks = 0;
};

struct SplitParams {
  OperandParams operands[2];
  const GroupTile* group_tiles = nullptr;
  FilterTaps filters;
};

// What a block splits: rows and K in the operand, and their place in the presplit.
struct Part {
  int64_t row, k;           // of the block's first element in the operand
  int rows, length;         // of the block, at most kRows, and of its chunk
  int64_t first_row, step;  // of the tile and of the chunk in the presplit
  int in_tile, tile_rows;   // the block's first row in its tile, and the tile's rows
  int64_t scales_row, scales_chunk;

  // A tile has whole blocks.
  __device__ Part(const Presplit& presplit, unsigned row_block, int64_t chunk)
      : row(int64_t{row_block} * kRows),
        k(chunk * kChunk),
        rows(static_cast<int>(min(presplit.rows - row, int64_t{kRows}))),
        length(static_cast<int>(min(presplit.k - k, int64_t{kChunk}))),
        first_row(row / Presplit::kRows * Presplit::kRows),
        step(k / Presplit::kK),
        in_tile(static_cast<int>(row - first_row)),
        tile_rows(presplit.tile_rows(row / Presplit::kRows)),
        scales_row(row),
        scales_chunk(chunk) {}
  // Rows are cut: the blocks make up whole tiles.
  __device__ void cut_rows(const GroupTile* tiles, unsigned row_block) {
    constexpr unsigned kBlocks = Presplit::kRows / kRows;
    const GroupTile tile = tiles[row_block / kBlocks];
    in_tile = static_cast<int>(row_block % kBlocks) * kRows;
    row = tile.first + in_tile;
    rows = tile.group == GroupTile::kNoGroup ? 0 : min(tile.count - in_tile, kRows);
    first_row = int64_t{tile.padded} * CutOperands::kPad;
    tile_rows = static_cast<int>(ceil_div(tile.count, kRows)) * kRows;
    scales_row = first_row + in_tile;
  }
  // K is cut.
  __device__ void cut_k(const GroupTile* tiles, int64_t chunk) {
    const GroupTile tile = tiles[chunk];
    k = tile.first, step = tile.padded;
    length = tile.group == GroupTile::kNoGroup ? 0 : tile.count;
  }
};

// Loads eight numbers along K of a column of B', from four complex numbers. `left` of
// the eight are in the matrix.
__device__ void load_complex_x8(float (&x)[8], const float2* data, int64_t stride, int64_t left,
                                bool vectorized, const ComplexColumn& column) {
  float2 z[4];
  if (vectorized && left >= 8) {
    UNROLL
    for (int i = 0; i < 4; i += 2) {
      const float4 x4 = *reinterpret_cast<const float4*>(data + i);
      z[i] = {x4.x, x4.y}, z[i + 1] = {x4.z, x4.w};
    }
  } else {
    UNROLL
    for (int i = 0; i < 4; ++i) z[i] = 2 * i < left ? data[i * stride] : float2{};
  }
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const float2 numbers = column.numbers(z[i]);
    x[i * 2] = numbers.x, x[i * 2 + 1] = numbers.y;
  }
}

// Rows of filters, in shared memory.
constexpr int kFilterPitch = kChunk + 4;  // no bank conflicts
using FilterRows = float[kRows][kFilterPitch];

// Loads a block's part of the filters. Adjacent threads take adjacent channels.
__device__ void load_filters(FilterRows& rows, const Matrix& source, const FilterTaps& taps,
                             const Part& part) {
  for (int k = threadIdx.x; k < part.length; k += kThreads) {
    const unsigned in_row = static_cast<unsigned>(part.k) + k;
    const unsigned tap = in_row / taps.padded_channels, line = tap / taps.count[1];
    const unsigned channel = in_row - tap * taps.padded_channels;
    const int64_t offset = line / taps.count[0] * taps.stride[0] +
                           line % taps.count[0] * taps.stride[1] +
                           tap % taps.count[1] * taps.stride[2] + channel * source.col_stride;
    const float* from = static_cast<const float*>(source.data) + part.row * source.row_stride;
    UNROLL
    for (int row = 0; row < kRows; ++row, from += source.row_stride) {
      rows[row][k] = row < part.rows && channel < taps.channels ? __ldg(from + offset) : 0.0f;
    }
  }
  __syncthreads();
}

template <typename T>
__device__ void load_narrow_x8(float (&x)[8], const T* data, int64_t stride, int64_t left,
                               bool vectorized) {
  alignas(16) T numbers[8];
  if (vectorized && left >= 8) {
    *reinterpret_cast<uint4*>(numbers) = *reinterpret_cast<const uint4*>(data);
  } else {
    UNROLL
    for (int i = 0; i < 8; ++i) numbers[i] = i < left ? data[i * stride] : T{};
  }
  UNROLL
  for (int i = 0; i < 8; ++i) x[i] = widen(numbers[i]);
}

// Writes whether a block's rows may have lo parts, also for the rows that its tile lacks.
__device__ void store_has_lo(const OperandParams& own, int64_t matrix, int64_t chunk,
                             unsigned row_block, bool has_lo) {
  constexpr unsigned kOfTile = LoFlags::kOfTile;
  const OperandToSplit& operand = own.operand;
  uint8_t* flags = operand.has_lo.of(operand.presplit, matrix, chunk, row_block / kOfTile);
  flags[row_block % kOfTile] = has_lo;
  if (row_block != own.row_blocks - 1) return;
  for (unsigned i = row_block % kOfTile + 1; i < kOfTile; ++i) flags[i] = 0;
}

// T: the dtype of a 16-bit operand, if there is one, or else float. kCut: what a grouped product
// cuts, rows (kM, also for columns of B) or K.
template <typename T, bool kComplexB, GroupedSide kCut = GroupedSide::kNone, bool kFilters = false>
__global__ void __launch_bounds__(kThreads, 4)
    split_kernel(const __grid_constant__ SplitParams params, int* zeroed, int64_t zeros) {
  ptx::pdl_launch_dependents();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < zeros; i += gridDim.x * kThreads) {
    zeroed[i] = 0;
  }
  const bool second = blockIdx.x >= params.operands[0].blocks;
  const OperandParams& own = params.operands[second];
  const Presplit& presplit = own.operand.presplit;
  const Matrix& source = own.operand.matrix;
  const unsigned block = second ? blockIdx.x - params.operands[0].blocks : blockIdx.x;
  const unsigned matrix = block / own.row_blocks / own.chunks;
  const int64_t chunk = block / own.row_blocks % own.chunks;
  const int block_row = threadIdx.x % kRows;
  const int k8 = threadIdx.x / kRows;  // the thread's first vector of the chunk
  Part part(presplit, block % own.row_blocks, chunk);
  if constexpr (kCut != GroupedSide::kNone) {
    if (own.is_cut) {
      kCut == GroupedSide::kM ? part.cut_rows(params.group_tiles, block % own.row_blocks)
                              : part.cut_k(params.group_tiles, chunk);
      if (part.rows <= 0 || part.length == 0) return;
    }
  }
  const int64_t row = part.row + block_row, k = part.k + k8 * 8;

  Range range;
  float x[kVectors][8];
  const bool complex = kComplexB && second;
  const bool narrow = sizeof(T) == 2 && own.operand.dtype != DType::kFloat32;
  const int64_t offset = batch_offset(own.operand.batch, source, matrix) +
                         (complex ? row / 2 * 2 : row) * source.row_stride + k * source.col_stride;
  const float* data = static_cast<const float*>(source.data) + (narrow ? 0 : offset);
  __shared__ std::conditional_t<kFilters, FilterRows, float[1]> filter_rows;
  if constexpr (kFilters) load_filters(filter_rows, source, params.filters, part);
  const int left = block_row < part.rows ? part.length - k8 * 8 : 0;
  UNROLL
  for (int j = 0; j < kVectors; ++j) {
    const int64_t next = j * (kThreadsPerRow * 8) * source.col_stride;
    const float* from = data + next;
    const int left_from = left - j * (kThreadsPerRow * 8);
    if constexpr (kFilters) {
      load_x8(x[j], &filter_rows[block_row][(k8 + j * kThreadsPerRow) * 8], 1, left_from, true);
    } else if (narrow) {
      load_narrow_x8(x[j], static_cast<const T*>(source.data) + offset + next, source.col_stride,
                     left_from, own.vectorized);
    } else if (complex) {
      load_complex_x8(x[j], reinterpret_cast<const float2*>(from), source.col_stride, left_from,
                      own.vectorized, ComplexColumn(own.operand.signs_of_b, row));
    } else {
      load_x8(x[j], from, source.col_stride, left_from, own.vectorized);
    }
  }
  range.add_row<kRows>(x);
  __shared__ uint32_t largest_smem[kWarps][kRows], smallest_smem[kWarps][kRows];
  if (threadIdx.x % 32 < kRows) {
    largest_smem[threadIdx.x / 32][block_row] = range.largest;
    smallest_smem[threadIdx.x / 32][block_row] = range.smallest;
  }
  __shared__ float inverse_scales[kRows];
  if (threadIdx.x < kRows) inverse_scales[block_row] = 0;
  __syncthreads();
  UNROLL
  for (int warp = 0; warp < kWarps; ++warp) {
    range.add({largest_smem[warp][block_row], smallest_smem[warp][block_row]});
  }

  const float scale = fp16x3::scale(range.largest);
  const bool is_wide = __syncthreads_or(range.is_wide(scale));
  if (narrow && own.operand.has_lo.bytes != nullptr && threadIdx.x == 0) {
    store_has_lo(own, matrix, chunk, block % own.row_blocks, is_wide);
  }
  if (is_wide) {
    UNROLL
    for (int j = 0; j < kVectors; ++j) {
      add_small_numbers(&inverse_scales[block_row], count_small_numbers(x[j], scale));
    }
    __syncthreads();
  }
  const int plane_bytes = Presplit::plane_bytes(part.tile_rows);
  uint8_t* first_step = presplit.hi_lo + matrix * presplit.matrix_bytes() +
                        part.first_row * presplit.padded_k() * 4 +
                        (part.step + k8 / (Presplit::kK / 8)) * 2 * plane_bytes +
                        Presplit::swizzle(part.in_tile + block_row, k8 % (Presplit::kK / 8));
  const int padded_length = (part.length + Presplit::kK - 1) / Presplit::kK * Presplit::kK;
  UNROLL
  for (int j = 0; j < kVectors; ++j) {
    if ((k8 + j * kThreadsPerRow) * 8 >= padded_length) break;
    uint4 hi, lo;
    ptx::split_x8(x[j], scale, hi, lo);
    uint8_t* step = first_step + j * (kThreadsPerRow * 8 / Presplit::kK) * 2 * plane_bytes;
    *reinterpret_cast<uint4*>(step) = hi;
    *reinterpret_cast<uint4*>(step + plane_bytes) = lo;
  }
  if (threadIdx.x < kRows) {
    store_inverse_scale(&inverse_scales[block_row], range.largest, range.is_coarse(scale));
    presplit
        .inverse_scales[matrix * presplit.matrix_groups() +
                        part.scales_chunk * presplit.padded_rows() + part.scales_row + block_row] =
        inverse_scales[block_row];
  }
}

OperandParams make_params(const OperandToSplit& operand) {
  const Matrix& matrix = operand.matrix;
  OperandParams params;
  params.operand = operand;
  const int64_t pitch = operand.is_complex ? 2 * matrix.row_stride : matrix.row_stride;
  const int64_t element_bytes = size_of(operand.dtype);
  params.vectorized = is_vector_aligned(operand.batch, matrix, matrix.col_stride, pitch,
                                        element_bytes == 2 ? 8 : 4, element_bytes);
  params.row_blocks = static_cast<unsigned>(operand.presplit.padded_rows() / kRows);
  params.chunks = static_cast<unsigned>(ceil_div(operand.presplit.k, kChunk));
  params.blocks = static_cast<unsigned>(params.row_blocks * params.chunks * operand.batch.count);
  return params;
}

// A cut operand has a block for each place that a tile of the list may have.
void cut(OperandParams& params, const CutOperands& cut) {
  const auto tiles = static_cast<unsigned>(cut.tiles.most);
  params.is_cut = true;
  if (cut.side == GroupedSide::kK) {
    params.chunks = tiles;
    params.vectorized = false;  // groups may begin anywhere
  } else {
    params.row_blocks = tiles * (Presplit::kRows / kRows);
  }
  params.blocks = params.row_blocks * params.chunks;
}

template <typename T>
__global__ void upcast_kernel(const __grid_constant__ OperandToSplit operand, float* to,
                              const int* only_if) {
  if (*only_if == 0) return;
  const Matrix& from = operand.matrix;
  const int64_t size = operand.presplit.rows * operand.presplit.k;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < size * operand.batch.count;
       i += threads) {
    const int64_t row = i % size / operand.presplit.k, k = i % operand.presplit.k;
    const auto* matrix =
        static_cast<const T*>(from.data) + batch_offset(operand.batch, from, i / size);
    to[i] = widen(matrix[row * from.row_stride + k * from.col_stride]);
  }
}

// Calls f.template operator()<T>() with the dtype of a 16-bit operand, or else float.
template <typename F>
void with_narrow_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f.template operator()<Half>();
    case DType::kBFloat16: return f.template operator()<BFloat16>();
    default: return f.template operator()<float>();
  }
}

}  // namespace

// A block reads at least 8 * kMinK elements, so an operand that fits in memory never needs more
// blocks than a grid can have.
void launch_split(std::span<const OperandToSplit> operands, std::span<int> zeroed,
                  const Context& context, const CutOperands& to_cut) {
  SplitParams params{};
  params.group_tiles = to_cut.tiles.tiles;
  unsigned blocks = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    params.operands[i] = make_params(operands[i]);
    if (to_cut.of[i]) cut(params.operands[i], to_cut);
    blocks += params.operands[i].blocks;
  }
  DType narrow = operands.front().dtype;
  if (narrow == DType::kFloat32) narrow = operands.back().dtype;
  with_narrow_type(narrow, [&]<typename T>() {
    auto kernel = operands.back().is_complex ? split_kernel<float, true> : split_kernel<T, false>;
    if (to_cut.side == GroupedSide::kK) {
      kernel = split_kernel<float, false, GroupedSide::kK>;
    } else if (to_cut.side != GroupedSide::kNone) {
      kernel = split_kernel<float, false, GroupedSide::kM>;
    }
    kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
        params, zeroed.data(), static_cast<int64_t>(zeroed.size()));
  });
  check(cudaGetLastError());
}

void launch_split_filters(const OperandToSplit& filters, const FilterTaps& taps,
                          const Context& context) {
  SplitParams params{};
  params.operands[0] = make_params(filters);
  params.filters = taps;
  split_kernel<float, false, GroupedSide::kNone, true>
      <<<params.operands[0].blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
          params, nullptr, 0);
  check(cudaGetLastError());
}

void launch_upcast(const OperandToSplit& operand, float* to, const int* only_if,
                   const Context& context) {
  constexpr int kBlocksPerSm = 4;
  with_narrow_type(operand.dtype, [&]<typename T>() {
    upcast_kernel<T>
        <<<kBlocksPerSm * context.sms, kThreads, 0, static_cast<cudaStream_t>(context.stream)>>>(
            operand, to, only_if);
  });
  check(cudaGetLastError());
}

}  // namespace tiled::cuda
