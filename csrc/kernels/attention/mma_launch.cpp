// Which kernel takes attention of 16-bit floats, and its workspace.

#include <algorithm>

#include "kernels/attention/mma.h"
#include "kernels/attention/share_keys.h"
#include "kernels/common/tensor_map.h"

namespace tiled::cuda::attention {

namespace order = tiled::attention_mma;

namespace {

// The tensor with strides that mean something: 0 for a dimension of one element.
Heads with_used_strides(Heads x, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  if (batch == 1) x.batch_stride = 0;
  if (heads == 1) x.head_stride = 0;
  if (columns == 1) x.col_stride = 1;
  if (rows == 1) x.row_stride = ceil_div(columns, 8) * 8;
  return x;
}

Batch batch_of(int64_t batch, int64_t heads) {
  return {.rank = 2, .count = batch * heads, .size = {batch, heads}};
}

Matrix matrix_of(const Heads& x) {
  return {.data = x.data,
          .row_stride = x.row_stride,
          .col_stride = x.col_stride,
          .batch_stride = {x.batch_stride, x.head_stride}};
}

// Gives x a copy's memory if TMA cannot load it in place.
struct Copies {
  HeadsCopy each[3];
  int count = 0;

  void add(Heads& x, int64_t batch, int64_t heads, int64_t rows, int64_t columns,
           Workspace& workspace) {
    if (is_tma_aligned(x, batch, heads, rows, columns)) return;
    const int64_t padded = std::max<int64_t>(ceil_div(columns, 8), 1) * 8;
    const Heads to{workspace.take<uint16_t>(batch * heads * rows * padded).data(),
                   heads * rows * padded, rows * padded, padded, 1};
    each[count++] = {x, to, batch, heads, rows, columns, padded};
    x = to;
  }
};

// The chunks of keys that a block of the decode kernel takes.
int64_t choose_chunks_per_block(const AttentionProblem& p, const Context& context) {
  const int64_t chunks = ceil_div(p.keys, order::kChunk);
  const int64_t rows = p.heads / p.kv_heads * p.queries;
  const int64_t blocks = p.batch * p.kv_heads * ceil_div(rows, 16);
  const int64_t at_once = context.sms * (p.columns() <= 128 ? 2 : 1);
  return choose_parts_per_block(chunks, blocks, at_once, /*most_waves=*/8,
                                {.start = 0.2, .stored = 1.05, .join = 0.4});
}

// Whether the decode kernel takes the problem: few rows share keys, or there are so few queries in
// all that they would leave most SMs without work.
bool has_few_queries(const AttentionProblem& p, const Context& context) {
  if (p.heads / p.kv_heads * p.queries <= 32) return true;
  return p.batch * p.heads * ceil_div(p.queries, 128) * 8 < context.sms;
}

}  // namespace

bool is_tma_aligned(const Heads& given, int64_t batch, int64_t heads, int64_t rows,
                    int64_t columns) {
  const Heads x = with_used_strides(given, batch, heads, rows, columns);
  return columns > 0 && x.col_stride == 1 && x.row_stride >= 8 &&
         tiled::is_tma_aligned(batch_of(batch, heads), matrix_of(x), sizeof(uint16_t));
}

HeadsMap heads_map(const Heads& given, int64_t batch, int64_t heads, int64_t rows, int64_t columns,
                   DType dtype) {
  const Heads x = with_used_strides(given, batch, heads, rows, columns);
  // A copy of no columns has padding.
  return {tensor_map(batch_of(batch, heads), matrix_of(x), rows, std::max<int64_t>(columns, 1),
                     kMmaRows, 64, CU_TENSOR_MAP_SWIZZLE_128B, dtype),
          x.head_stride != 0, x.batch_stride != 0};
}

bool launch_16bit(const AttentionProblem& given, const Context& context) {
  AttentionProblem p = given;
  const bool is_few = has_few_queries(p, context);
  const int64_t chunks_per_block = is_few ? choose_chunks_per_block(p, context) : 0;
  const bool shares_keys = is_few && chunks_per_block * order::kChunk < p.keys;
  Copies copies;
  ChunkStates states;
  const auto take_buffers = [&](bool with_states) {
    return [&, with_states](Workspace& workspace) {
      p = given, copies = {}, states = {};
      copies.add(p.k, p.batch, p.kv_heads, p.keys, p.head_size, workspace);
      copies.add(p.v, p.batch, p.kv_heads, p.keys, p.value_size, workspace);
      if (!is_few) copies.add(p.q, p.batch, p.heads, p.queries, p.head_size, workspace);
      if (with_states) states = ChunkStates::take(p, workspace);
    };
  };
  // Without memory for states each block has all keys of its queries.
  for (bool with_states = shares_keys;; with_states = false) {
    const int64_t bytes = workspace_bytes(take_buffers(with_states));
    void* memory = bytes == 0 ? nullptr : context.allocate(bytes);
    if (bytes != 0 && memory == nullptr) {
      if (with_states) continue;
      return false;
    }
    Workspace workspace(memory);
    take_buffers(with_states)(workspace);
    break;
  }
  for (int i = 0; i < copies.count; ++i) {
    const HeadsCopy& copy = copies.each[i];
    launch_copy(copy, context);
  }
  if (is_few) {
    launch_mma_decode(p, chunks_per_block, states, context);
  } else {
    launch_mma_large(p, context);
  }
  return true;
}

}  // namespace tiled::cuda::attention
