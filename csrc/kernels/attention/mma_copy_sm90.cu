// Copies q, k or v of 16-bit floats to rows that TMA loads, if it cannot load the tensor in place.

#include <cstdint>

#include "kernels/attention/mma.h"
#include "kernels/common/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::attention {
namespace {

constexpr int kThreads = 256;

// A thread writes 8 columns.
__global__ void __launch_bounds__(kThreads) copy_heads_kernel(const HeadsCopy copy) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t vectors = copy.padded / 8;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= copy.batch * copy.heads * copy.rows * vectors) return;
  const int64_t first = index % vectors * 8, row = index / vectors % copy.rows;
  const int64_t matrix = index / vectors / copy.rows;
  const int64_t head = matrix % copy.heads, batch = matrix / copy.heads;
  const auto at = [&](const Heads& x) {
    return batch * x.batch_stride + head * x.head_stride + row * x.row_stride +
           first * x.col_stride;
  };
  const auto* from = static_cast<const uint16_t*>(copy.from.data) + at(copy.from);
  uint32_t two[4];
  UNROLL
  for (int i = 0; i < 8; i += 2) {
    const auto element = [&](int c) {
      return first + c < copy.columns ? uint32_t{__ldg(from + c * copy.from.col_stride)} : 0u;
    };
    two[i / 2] = element(i) | element(i + 1) << 16;
  }
  auto* to = static_cast<uint16_t*>(const_cast<void*>(copy.to.data)) + at(copy.to);
  *reinterpret_cast<uint4*>(to) = {two[0], two[1], two[2], two[3]};
}

}  // namespace

void launch_copy(const HeadsCopy& copy, const Context& context) {
  const int64_t threads = copy.batch * copy.heads * copy.rows * (copy.padded / 8);
  launch_pdl(copy_heads_kernel, static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0,
             context, copy);
}

}  // namespace tiled::cuda::attention
