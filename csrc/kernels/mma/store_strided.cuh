#pragma once
// The epilogue of a thread's elements in shared memory, and their stores to C.

#include <cstdint>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// Applies the epilogue to `count` elements of a thread and stores them: acc_stride apart in shared
// memory, c_stride in C. kAtOnce at a time hide the latency of activations; as many as make the
// last group full are read beyond `count`, though not stored.
template <int kAtOnce, class Out>
__device__ void store_strided(const Epilogue& epilogue, const float* acc, int acc_stride,
                              float bias, Out* c, int64_t c_stride, int count) {
  NO_UNROLL
  for (int first = 0; first < count;
       first += kAtOnce, acc += kAtOnce * acc_stride, c += kAtOnce * c_stride) {
    float x[kAtOnce];
    bool stores[kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = acc[i * acc_stride];
      stores[i] = first + i < count;
      const float old = stores[i] && epilogue.beta != 0 ? widen(c[i * c_stride]) : 0;
      x[i] = combine(epilogue, x[i], bias, old);
    }
    activate_each(epilogue.activation, x);
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (stores[i]) c[i * c_stride] = narrow<Out>(x[i]);
    }
  }
}

}  // namespace tiled::cuda
