#include "kernels/attention/launch.h"

#include <algorithm>

#include "kernels/attention/mma.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/share_keys.h"

namespace tiled::cuda {

constexpr int64_t kLargeColumns = 128;  // the most that the kernels of long sequences take

bool attention_accepts(const AttentionProblem& p, const Context& context) {
  return context.on_hopper() && p.dtype != DType::kFloat64 && p.columns() <= 256;
}

bool attention_backward_accepts(const AttentionProblem& p, const Context& context) {
  return attention_accepts(p, context) && p.dtype == DType::kFloat32 &&
         p.columns() <= kLargeColumns;
}

namespace {

// One query of each head: the heads that share keys become the queries of one head.
AttentionProblem with_heads_as_queries(AttentionProblem p) {
  if (p.queries != 1 || p.is_packed()) return p;
  const int64_t group = p.heads / p.kv_heads;
  p.keys = p.visible_keys(0), p.causal = false;
  p.queries = group, p.heads = p.kv_heads;
  for (Heads* x : {&p.q, &p.mask}) x->row_stride = x->head_stride, x->head_stride *= group;
  p.out.row_stride = p.out.head_stride, p.out.head_stride *= group;
  return p;
}

// The tiles of keys that a block of the kernel of few queries takes. Blocks that share keys store a
// tile's sums, which takes time by the number of their queries.
int64_t choose_tiles_per_block(const AttentionProblem& p, const Context& context) {
  const int64_t tiles = std::max<int64_t>(ceil_div(p.keys, attention::kRows), 1);
  const int64_t blocks = p.batch * p.heads * p.query_tiles(attention::kRows);
  const int64_t at_once = context.sms * attention::small_blocks_of_sm(p.columns());
  const double stored = 1 + 2 * std::min(static_cast<double>(p.queries) / attention::kRows, 1.0);
  return attention::choose_parts_per_block(tiles, blocks, at_once, /*most_waves=*/4,
                                           {.start = 1, .stored = stored, .join = 4});
}

void launch_few_queries(const AttentionProblem& p, const Context& context) {
  const int64_t tiles = choose_tiles_per_block(p, context);
  attention::TileStates states;
  if (tiles * attention::kRows < p.keys) {
    const auto take_buffers = [&](Workspace& workspace) {
      return attention::TileStates::take(p, workspace);
    };
    // Without memory each block has all keys of its queries.
    void* memory = context.allocate(workspace_bytes(take_buffers));
    if (memory != nullptr) {
      Workspace workspace(memory);
      states = take_buffers(workspace);
    }
  }
  attention::launch_small(p, tiles, states, context);
}

}  // namespace

bool launch_attention(const AttentionProblem& given, const Context& context) {
  if (is_16bit(given.dtype)) return attention::launch_16bit(given, context);
  constexpr int64_t kFewKeys = 128;
  const AttentionProblem p = with_heads_as_queries(given);
  if (p.keys <= kFewKeys || p.queries <= attention::kRows || p.columns() > kLargeColumns) {
    launch_few_queries(p, context);
    return true;
  }
  const auto take_buffers = [&](Workspace& workspace) {
    return attention::SplitOperands::take(p, workspace);
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const attention::SplitOperands parts = take_buffers(workspace);
  attention::launch_split(p, parts, context);
  attention::launch_large(p, parts, context);
  return true;
}

bool launch_attention_backward(const AttentionBackward& p, const Context& context) {
  if (!p.is_packed() && attention::accepts_small_backward(p)) {
    attention::launch_small_backward(p, context);
    return true;
  }
  const auto take_buffers = [&](Workspace& workspace) {
    return attention::BackwardOperands::take(p, workspace);
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const attention::BackwardOperands operands = take_buffers(workspace);
  attention::launch_split(p, operands, context);
  if (p.needs_queries()) attention::launch_backward_queries(p, operands, context);
  if (p.needs_keys()) attention::launch_backward_keys(p, operands, context);
  return true;
}

}  // namespace tiled::cuda
