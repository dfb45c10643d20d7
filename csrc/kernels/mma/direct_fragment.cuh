#pragma once
// mma_direct: how a warp loads fragments of its operands from global memory to registers.
//
// An operand row is a row of A or a column of B. A fragment is 16 operand rows by 16 of K. Lane l
// has operand rows 2g and 2g + 1, g = l / 4, at k = 4q .. 4q + 3, q = l % 4. Both operands are
// loaded alike, and their k and rows are in another order than mma.sync names them, which changes
// no bits: the tensor core adds the 16 products of a sum exactly (cpu/tensor_core.h).

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/mma/plan.h"

namespace tiled::cuda::mma_direct {

using LoadMode = MmaDirectLoads;

struct Operand {
  const uint16_t* data;
  int64_t row_stride, k_stride;
  int64_t count;  // of operand rows
};

// What a lane has loaded of a fragment: pairs, or elements.
template <LoadMode kMode>
struct Loaded {
  uint32_t x[kMode == LoadMode::kElements ? 8 : 4];
};

// The lane's two operand rows of a fragment, at its first k. Rows beyond the operand's end are
// replaced by its last ones, since nothing they reach is stored.
template <LoadMode kMode>
class RowPair {
 public:
  RowPair() = default;
  __device__ RowPair(const Operand& operand, int64_t batch_offset, int64_t first) {
    const int lane = threadIdx.x % 32;
    int64_t row = min(first + lane / 4 * 2, operand.count - 1);
    if (kMode == LoadMode::kMnMajorPairs) row &= ~int64_t{1};  // the last pair is whole
    first_ =
        operand.data + batch_offset + row * operand.row_stride + lane % 4 * 4 * operand.k_stride;
    second_ = row + 1 < operand.count ? first_ + operand.row_stride : first_;
  }

  // Loads 16 of K and moves on to the next 16. `k_left` of K are left, from the fragment's first.
  __device__ Loaded<kMode> load(const Operand& operand, int k_left) {
    Loaded<kMode> to;
    const int64_t k_stride = kMode == LoadMode::kKMajorPairs ? 1 : operand.k_stride;
    const int inside = k_left - static_cast<int>(threadIdx.x) % 4 * 4;
    if constexpr (kMode == LoadMode::kElements) {
      UNROLL
      for (int i = 0; i < 4; ++i) {
        to.x[i] = i < inside ? __ldg(first_ + i * k_stride) : 0;
        to.x[4 + i] = i < inside ? __ldg(second_ + i * k_stride) : 0;
      }
      second_ += 16 * k_stride;
    } else if constexpr (kMode == LoadMode::kKMajorPairs) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        to.x[i] = i * 2 < inside ? load_pair(first_ + i * 2) : 0;
        to.x[2 + i] = i * 2 < inside ? load_pair(second_ + i * 2) : 0;
      }
      second_ += 16;
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i) to.x[i] = i < inside ? load_pair(first_ + i * k_stride) : 0;
    }
    first_ += 16 * k_stride;
    return to;
  }

 private:
  static __device__ uint32_t load_pair(const uint16_t* from) {
    return __ldg(reinterpret_cast<const uint32_t*>(from));
  }

  const uint16_t *first_, *second_;
};

// A fragment as mma.sync takes it: the first two k of both rows, then the other two.
struct Fragment {
  uint32_t x[4];

  template <LoadMode kMode>
  __device__ explicit Fragment(const Loaded<kMode>& from) {
    const auto low = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); };
    const auto high = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); };
    const auto& y = from.x;
    if constexpr (kMode == LoadMode::kElements) {
      x[0] = low(y[0], y[1]), x[1] = low(y[4], y[5]);
      x[2] = low(y[2], y[3]), x[3] = low(y[6], y[7]);
    } else if constexpr (kMode == LoadMode::kKMajorPairs) {
      x[0] = y[0], x[1] = y[2], x[2] = y[1], x[3] = y[3];
    } else {
      x[0] = low(y[0], y[1]), x[1] = high(y[0], y[1]);
      x[2] = low(y[2], y[3]), x[3] = high(y[2], y[3]);
    }
  }
};

}  // namespace tiled::cuda::mma_direct
