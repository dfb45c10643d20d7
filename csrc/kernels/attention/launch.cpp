#include "kernels/attention/launch.h"

#include <algorithm>

#include "kernels/attention/parts.h"

namespace tiled::cuda {

bool attention_accepts(const AttentionProblem& p, const Context& context) {
  return context.on_hopper() && p.dtype == DType::kFloat32 &&
         std::max(p.head_size, p.value_size) <= 128;
}

bool launch_attention(const AttentionProblem& p, const Context& context) {
  constexpr int64_t kFewKeys = 128;
  if (p.keys <= kFewKeys) {
    attention::launch_small(p, context);
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
  const auto take_buffers = [&](Workspace& workspace) {
    return attention::BackwardOperands::take(p, workspace);
  };
  void* memory = context.allocate(workspace_bytes(take_buffers));
  if (memory == nullptr) return false;
  Workspace workspace(memory);
  const attention::BackwardOperands operands = take_buffers(workspace);
  attention::launch_split(p, operands, context);
  if (p.dq.data != nullptr) attention::launch_backward_queries(p, operands, context);
  if (p.dk.data != nullptr || p.dv.data != nullptr) {
    attention::launch_backward_keys(p, operands, context);
  }
  return true;
}

}  // namespace tiled::cuda
