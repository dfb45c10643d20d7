// Splits k and v of an attention, and q and dout for the backward pass, into float16 parts
// (parts.h), a tile of 64 rows a block.

#include <algorithm>
#include <cstdint>

#include "kernels/attention/packed.cuh"
#include "kernels/attention/parts.h"
#include "kernels/attention/split_rows.cuh"
#include "kernels/common/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::attention {
namespace {

constexpr int kThreads = 128;

struct Params {
  RowReader k, v;
  SplitOperands to;
  PackedRows packed;
};

__device__ inline auto store_to_parts(const Parts& to, uint32_t matrix, int first) {
  return [=, &to](int row, int column, uint2 hi, uint2 lo) {
    if (first + row >= to.rows) return;
    Half* at = to.data + (int64_t{matrix} * 2 * to.rows + first + row) * to.columns + column;
    *reinterpret_cast<uint2*>(at) = hi;
    *reinterpret_cast<uint2*>(at + to.rows * to.columns) = lo;
  };
}

template <int kBlocks, bool kPacked>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ Params params) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const bool is_v = blockIdx.y == 1;
  const uint32_t index = blockIdx.x, tiles = params.to.key_tiles, matrix = index / tiles;
  const int tile = static_cast<int>(index - matrix * tiles);
  const auto store = store_to_parts(is_v ? params.to.v : params.to.k, matrix, tile * kRows);
  const auto split = [&](const RowReader& k, const RowReader& v, int first) {
    if (is_v) {
      ValueScaler scaler{params.to.value_scales[index], v.rows - first};
      split_rows<kBlocks>(v, v.matrix(matrix), first, scaler, store);
    } else {
      KeyScaler scaler{params.to.key_scales[index]};
      split_rows<kBlocks>(k, k.matrix(matrix), first, scaler, store);
    }
  };
  if constexpr (kPacked) {
    const PackedTile at(params.packed, kRows, tile);
    const int begin = params.packed.begin(at.range), rows = params.packed.end(at.range) - begin;
    if (!params.packed.is_sequence(at.range) || at.first >= rows) return;
    split(params.k.part(begin, rows), params.v.part(begin, rows), at.first);
  } else {
    split(params.k, params.v, tile * kRows);
  }
}

// --- The backward pass ---------------------------------------------------------------------------

struct BackwardParams {
  RowReader from[BackwardOperands::kCount];
  StateReader states;
  BackwardOperands to;
  PackedRows packed_queries, packed_keys;
};

template <int kBlocks, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    split_backward_kernel(const __grid_constant__ BackwardParams params) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const BackwardOperands::Operand& to = params.to.operand[blockIdx.y];
  const RowReader& from = params.from[blockIdx.y];
  const uint32_t index = blockIdx.x, matrix = index / to.tiles;
  if (matrix >= to.parts.matrices) return;
  const int tile = static_cast<int>(index - matrix * to.tiles);
  const auto store = store_to_parts(to.parts, matrix, tile * kRows);
  const auto split = [&](const RowReader& rows, const StateReader& states, int first) {
    KeyScaler scaler{to.scales[index]};
    split_rows<kBlocks>(rows, rows.matrix(matrix), first, scaler, store);
    if (blockIdx.y == BackwardOperands::kDout) {
      states.read<kBlocks>(matrix, first, params.to.states[index]);
    }
  };
  if constexpr (kPacked) {
    const bool is_query = blockIdx.y <= BackwardOperands::kDout;
    const PackedRows& packed = is_query ? params.packed_queries : params.packed_keys;
    const PackedTile at(packed, kRows, tile);
    const int begin = packed.begin(at.range), rows = packed.end(at.range) - begin;
    if (!packed.is_sequence(at.range) || at.first >= rows) return;
    split(from.part(begin, rows), params.states.part(matrix, begin, rows), at.first);
  } else {
    split(from, params.states, tile * kRows);
  }
}

}  // namespace

void launch_split(const AttentionBackward& p, const BackwardOperands& to, const Context& context) {
  const BackwardParams params{{RowReader(p.q, p.heads, p.query_rows(), p.head_size),
                               RowReader(p.dout, p.heads, p.query_rows(), p.value_size),
                               RowReader(p.k, p.kv_heads, p.key_rows(), p.head_size),
                               RowReader(p.v, p.kv_heads, p.key_rows(), p.value_size)},
                              StateReader(p),
                              to,
                              p.packed_queries,
                              p.packed_keys};
  const auto blocks_of = [](const BackwardOperands::Operand& operand) {
    return operand.parts.matrices * operand.tiles;
  };
  const auto blocks = static_cast<unsigned>(std::max(blocks_of(to.operand[BackwardOperands::kQ]),
                                                     blocks_of(to.operand[BackwardOperands::kK])));
  const auto kernel_of = [&]<bool kPacked>() {
    return to.operand[0].parts.columns == 64 ? split_backward_kernel<1, kPacked>
                                             : split_backward_kernel<2, kPacked>;
  };
  const auto kernel = p.is_packed() ? kernel_of.operator()<true>() : kernel_of.operator()<false>();
  launch_pdl(kernel, dim3(blocks, BackwardOperands::kCount), kThreads, 0, context, params);
}

void launch_split(const AttentionProblem& p, const SplitOperands& to, const Context& context) {
  const Params params{RowReader(p.k, p.kv_heads, p.key_rows(), p.head_size),
                      RowReader(p.v, p.kv_heads, p.key_rows(), p.value_size), to, p.packed_keys};
  const auto tiles = static_cast<unsigned>(to.k.matrices * to.key_tiles);
  const auto kernel_of = [&]<bool kPacked>() {
    return to.k.columns == 64 ? split_kernel<1, kPacked> : split_kernel<2, kPacked>;
  };
  const auto kernel = p.is_packed() ? kernel_of.operator()<true>() : kernel_of.operator()<false>();
  launch_pdl(kernel, dim3(tiles, 2), kThreads, 0, context, params);
}

}  // namespace tiled::cuda::attention
