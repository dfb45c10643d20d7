// The gradients of softmax and of its logarithm.
//
// Idea:  A warp has a row of up to one chunk, and a block a longer one, of which each warp has a
//        chunk of both operands in registers.
// Limit: memory. Rows too long for a block's registers are read twice.

#include <cstdint>

#include "kernels/rows/chunk.cuh"
#include "kernels/rows/launch.h"
#include "ptx/pdl.cuh"

namespace tiled::cuda::rows {
namespace {

// What a warp has of a row of both operands, and of the result.
template <typename T>
struct Operands {
  using A = accumulator_t<T>;

  Row<T> grad_row, y_row, out_row;
  bool is_log;
  Chunk<A> grad, y;

  __device__ Operands(const SoftmaxBackward& p, int64_t row, bool is_vectorized)
      : grad_row(row_of<T>(p.grad, row, p.columns, is_vectorized)),
        y_row(row_of<T>(p.y, row, p.columns, is_vectorized)),
        out_row(row_of<T>({p.out, p.columns}, row, p.columns, is_vectorized)),
        is_log(p.is_log) {}

  // Past the row's end the gradient is -0, which changes no sum: neither by itself nor times 0.
  __device__ void load(int64_t chunk) {
    grad_row.load(chunk, A{-0.0}, grad);
    y_row.load(chunk, A{0}, y);
  }

  // Returns the chunk's sum in every lane.
  __device__ A sum(int64_t chunk) {
    A parts[kVector] = {};
    for_elements<A>(grad, grad_row.count(chunk), [&](A g, int step, int i) {
      parts[i] = is_log ? parts[i] + g : fma(g, y[step][i], parts[i]);
    });
    return sum_parts(parts);
  }

  __device__ void store(int64_t chunk, A sum) const {
    if (is_log) {
      out_row.store(chunk, [&](int step, int i) {
        return fma(-order::exp_of(y[step][i]), sum, grad[step][i]);
      });
    } else {
      out_row.store(chunk, [&](int step, int i) { return y[step][i] * (grad[step][i] - sum); });
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kRowsOfBlock* kWarp)
    softmax_backward_warp_kernel(const SoftmaxBackward p, bool is_vectorized, int64_t first_block) {
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  const int64_t row = (first_block + blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  Operands<T> operands(p, row, is_vectorized);
  operands.load(0);
  operands.store(0, operands.sum(0));
}

// kIsHeld: the row has at most one chunk for each warp.
template <typename T, bool kIsHeld>
__global__ void __launch_bounds__(kWarps* kWarp)
    softmax_backward_block_kernel(const SoftmaxBackward p, bool is_vectorized,
                                  int64_t first_block) {
  using Sum = RowSum<accumulator_t<T>, kWarps>;
  __shared__ typename Sum::Smem smem;
  ptx::pdl_launch_dependents();
  ptx::pdl_wait();
  Operands<T> operands(p, first_block + blockIdx.x, is_vectorized);
  const auto sum = Sum(smem)(p.columns, [&](int64_t chunk) {
    operands.load(chunk);
    return operands.sum(chunk);
  });
  const int64_t chunks = ceil_div(p.columns, order::kChunk);
  for (int64_t chunk = threadIdx.x / kWarp; chunk < chunks; chunk += kWarps) {
    if (!kIsHeld) operands.load(chunk);
    operands.store(chunk, sum);
    if (kIsHeld) break;
  }
}

template <typename T>
void launch(const SoftmaxBackward& p, const Context& context) {
  const bool is_vectorized = rows::is_vectorized<T>(p.grad, p.columns) &&
                             rows::is_vectorized<T>(p.y, p.columns) &&
                             rows::is_vectorized<T>({p.out, 0}, p.columns);
  const auto launch = [&](auto* kernel, int warps) {
    launch_blocks(kernel, warps, p, is_vectorized, context);
  };
  if (p.columns <= order::kChunk) {
    launch(softmax_backward_warp_kernel<T>, kRowsOfBlock);
  } else if (p.columns <= kWarps * order::kChunk) {
    launch(softmax_backward_block_kernel<T, true>, kWarps);
  } else {
    launch(softmax_backward_block_kernel<T, false>, kWarps);
  }
}

}  // namespace
}  // namespace tiled::cuda::rows

namespace tiled::cuda {

void launch_softmax_backward(const SoftmaxBackward& p, const Context& context) {
  with_element_type(p.dtype, [&]<typename T>() { rows::launch<T>(p, context); });
}

}  // namespace tiled::cuda
