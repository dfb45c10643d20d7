#include "prepare.h"

#include "cpu/packed.h"
#include "fp16x3.h"

#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/fp16x3_parts.h"
#endif

namespace tiled {

bool takes_halves(DType dtype, int64_t k, const Context& context) {
  return dtype == DType::kFloat32 && k >= fp16x3::kMinK &&
         (context.on_host() || context.on_hopper());
}

void prepare(const Matrix& source, const Packed& packed, const Context& context) {
  if (context.on_host()) {
    cpu::pack(source, packed, context);
    return;
  }
#ifdef TORCH_TILED_WITH_CUDA
  const cuda::Operand operand{.matrix = source, .batch = {}, .packed = packed};
  cuda::launch_split({&operand, 1}, {}, context);
#endif
}

}  // namespace tiled
