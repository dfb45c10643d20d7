#pragma once

#include <cstdint>

#include "core/epilogue.h"

namespace tiled::cuda {

// store(), compiled once however often it is called.
inline __device__ __noinline__ void store_noinline(const Problem& p, int64_t c_offset, int64_t row,
                                                   int64_t col, float sum) {
  store<float>(p, c_offset, row, col, sum);
}

}  // namespace tiled::cuda
