#include "binding/cumsum.h"

#include "binding/row_operand.h"
#include "binding/run.h"
#include "core/order_cumsum.h"
#include "cpu/cumsum.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/rows/cumsum.h"
#endif

namespace tiled {

Tensor row_cumsum(const Tensor& x, bool is_reversed) {
  constexpr const char* kOp = "tiled::_row_cumsum";
  check_rows(kOp, {"x", x});
  Tensor out = allocate(kOp, Shape(x.sizes().begin(), x.sizes().end()), x.scalar_type(), x);
  if (out.numel() == 0) return out;
  const RowOperand operand(x);
  const int64_t columns = columns_of(x);
  const CumSumProblem p{.is_reversed = is_reversed,
                        .dtype = *supported(x.scalar_type()),
                        .rows = out.numel() / columns,
                        .columns = columns,
                        .x = operand.rows,
                        .out = out.mutable_data_ptr()};
  const Launches launches(kOp, x);
#ifdef TORCH_TILED_WITH_CUDA
  if (x.is_cuda()) {
    cuda::launch_cumsum(p, launches.context);
    return out;
  }
#endif
  cpu::launch_cumsum(p, launches.context);
  return out;
}

}  // namespace tiled
