#include "select/presplit.h"

#include "core/order_fp16x3.h"
#include "cpu/presplit.h"

#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/fp16x3/split.h"
#endif

namespace tiled {

bool can_presplit(DType dtype, int64_t k, const Context& context) {
  return dtype == DType::kFloat32 && k >= fp16x3::kMinK &&
         (context.on_host() || context.on_hopper());
}

void write_presplit(const Matrix& source, const Presplit& presplit, const Context& context) {
  if (context.on_host()) {
    cpu::write_presplit(source, presplit, context);
    return;
  }
#ifdef TORCH_TILED_WITH_CUDA
  const cuda::OperandToSplit operand{.matrix = source, .batch = {}, .presplit = presplit};
  cuda::launch_split({&operand, 1}, {}, context);
#endif
}

}  // namespace tiled
